"""The curves file: whole, resumable, and in step with the rows."""

import pytest

from experiments.curves import CurvesFile
from experiments.folder import ResultsFolder

COLUMNS = ("variant", "seed", "step", "loss")
KEY = ("variant", "seed")


def folder(path):
    return ResultsFolder(path, {"rate": 0.1}, grid=(), columns=(*KEY, "accuracy"), key=KEY)


def curves(held):
    return CurvesFile(held, columns=COLUMNS, key=KEY)


def steps(*losses):
    return [{"step": step, "loss": loss, "grad_norm": 1} for step, loss in enumerate(losses, 1)]


def test_curves_come_back_as_they_were_written(tmp_path):
    held = folder(tmp_path)
    kept = curves(held)
    kept.put({"variant": "a", "seed": 0}, steps(1 / 3, 0.25))
    kept.put({"variant": "b", "seed": 0}, steps(2.5))
    again = curves(held).of({"variant": "a", "seed": "0"})
    assert [float(line["loss"]) for line in again] == [1 / 3, 0.25]
    assert [line["step"] for line in again] == ["1", "2"]


def test_a_run_made_again_replaces_its_lines_only(tmp_path):
    held = folder(tmp_path)
    first = curves(held)
    first.put({"variant": "a", "seed": 0}, steps(1.0, 2.0))
    first.put({"variant": "b", "seed": 0}, steps(3.0))
    # Cut off here: neither row was written. The next start makes run a again.
    second = curves(held)
    second.put({"variant": "a", "seed": 0}, steps(7.0))
    third = curves(held)
    assert [line["loss"] for line in third.of({"variant": "a", "seed": 0})] == ["7.0"]
    assert [line["loss"] for line in third.of({"variant": "b", "seed": 0})] == ["3.0"]


def test_a_row_without_its_curve_is_refused(tmp_path):
    held = folder(tmp_path)
    curves(held).put({"variant": "a", "seed": 0}, steps(1.0))
    held.add({"variant": "a", "seed": 0, "accuracy": 0.5})
    curves(held)
    (tmp_path / "curves.csv").unlink()
    with pytest.raises(SystemExit, match="has no lines of the run a, 0, whose row is in rows.csv"):
        curves(held)
