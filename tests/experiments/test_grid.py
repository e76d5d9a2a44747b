"""The grid: the order in which runs are made, and what a failure takes with it."""

from types import SimpleNamespace

from experiments import grid


def point(name, program, cost=1.0, wave=0):
    return grid.Point({"name": name}, label=name, program=program, cost=cost, wave=wave)


class Rows:
    """A results folder in memory."""

    def __init__(self, path, names=()):
        self.path, self.rows = path, [{"name": name} for name in names]

    def has(self, name):
        return any(row["name"] == name for row in self.rows)

    def add(self, row):
        self.rows.append(row)


def test_low_waves_come_first_and_in_a_wave_the_costly_jobs(tmp_path):
    points = [
        point("deep", "p", 9, wave=100), point("cheap", "q"), point("one", "r", 2),
        point("two", "r", 2), point("there", "r", 50),
    ]  # fmt: skip
    jobs = grid.jobs_of(points, Rows(tmp_path, ["there"]))
    assert [[p.label for p in job] for job in jobs] == [["one", "two"], ["cheap"], ["deep"]]


def test_programs_are_made_once_a_job_and_failures_stay_with_their_run(tmp_path, monkeypatch):
    monkeypatch.setattr(grid, "stop_at_once", lambda word: None)
    made = []

    def make_program(first):
        if first.program == "broken":
            raise MemoryError("no room")
        made.append(first.program)
        return SimpleNamespace(steps=3)

    def run(program, point, on_step):
        if point.label == "bad":
            raise ValueError("bad luck")
        return {"name": point.label, "status": "finished", "test_accuracy": 0.5, "seconds": 1.0}

    folder = Rows(tmp_path)
    points = [point("a", "p"), point("bad", "p"), point("b", "p"), point("c", "broken")]
    failures = grid.make_rows(points, folder, workers=2, make_program=make_program, run=run)
    assert made == ["p"]
    assert sorted(row["name"] for row in folder.rows) == ["a", "b"]
    assert sorted(text.split(":")[0] for text in failures) == ["bad", "c"]
    assert any("bad luck" in text and "Traceback" in text for text in failures)
