"""The command of the experiments: options, rows that stay, runs that are asked for later."""

import dataclasses
from pathlib import Path

import pytest

from experiments import fixup_fig3_depth as fig3
from experiments import fixup_table2_imagenet, main, theory_signal
from experiments import fixup_table3_translation as table3
from experiments.experiment import Experiment, curve_of
from experiments.grid import changed, grid, telling
from experiments.main import Command, chosen
from nf_resnets import schemes
from nf_resnets.sweep.engine import Outcome
from nf_resnets.training.wave import row_of

POINT = {"model": "wrn-10-1", "stem_channels": 4, "steps": 4}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"scale": "huge"}, "--scale huge found; expected one of smoke, demo, laptop"),
        ({"grid": ("seed=0", "seed=1")}, "--grid has seed twice"),
        ({"grid": ("schema=fixup",)}, "the setting schema found; expected one of"),
        ({"grid": ("steps=-3",)}, "steps=-3 found"),
        ({"out": Path("/dev/null")}, "/dev/null"),
    ],
)
def test_bad_input_is_one_sentence(options, sentence, tmp_path):
    experiment = dataclasses.replace(fig3.EXPERIMENT, task=lambda *_: pytest.fail("data were read"))
    command = Command(**{"scale": "smoke", "out": tmp_path / "out", **options})
    with pytest.raises((ValueError, OSError)) as refused:
        main.main(experiment, command)
    assert sentence in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "out" / "rows.csv").exists()


def test_a_folder_of_an_earlier_version_is_read_and_not_gone_on_with(tmp_path):
    (tmp_path / "rows.csv").write_text("scheme,depth\n")
    with pytest.raises(ValueError, match=r"can be read, but not gone on with; choose another"):
        main.main(fig3.EXPERIMENT, Command(scale="smoke", out=tmp_path))
    assert (tmp_path / "rows.csv").read_text() == "scheme,depth\n"


def test_an_option_replaces_values_of_the_scale():
    command = Command(scale="cifar", grid=("model=wrn-10-1", "scheme=fixup,lsuv", "seed=7,8"))
    points = chosen(fig3.EXPERIMENT, command)
    named = [(point["model"], point["scheme"], point["seed"]) for point in points]
    assert named == [("wrn-10-1", each, seed) for each in ("fixup", "lsuv") for seed in (7, 8)]
    assert all(point["epochs"] == 1.0 for point in points)
    steps = changed(points, {"steps": [3]})
    assert {(point["steps"], point["epochs"]) for point in steps} == {(3, 0)}
    # Of settings that are no sweep's, a value has the type of those there.
    command = Command(scale="smoke", grid=("size=64", "epochs=3"))
    points = chosen(fixup_table2_imagenet.EXPERIMENT, command)
    assert {(point["size"], point["epochs"]) for point in points} == {(64, 3.0)}


@pytest.mark.parametrize(
    ("experiment", "axis"), [(fixup_table2_imagenet, "schedule=cosine"), (theory_signal, "seed=1")]
)
def test_a_setting_that_nothing_reads_is_refused(experiment, axis):
    with pytest.raises(ValueError, match="^the setting (schedule|seed) found; expected one"):
        chosen(experiment.EXPERIMENT, Command(scale="smoke", grid=(axis,)))


def test_what_a_table_of_untrained_networks_would_mix_is_refused():
    command = Command(scale="smoke", grid=("width=8,16",))
    with pytest.raises(ValueError, match="several values of width found"):
        chosen(theory_signal.EXPERIMENT, command)
    command = dataclasses.replace(command, grid=("width=16", "scheme=fixup"))
    assert {point["width"] for point in chosen(theory_signal.EXPERIMENT, command)} == {16}


def with_fake_runs(monkeypatch, accuracy, asked):
    """Runs that take no time: of each the row, as the engine keeps it."""

    def make(task, plans, rows, **_):
        asked.append([plan.settings["peak_lr"] for plan in plans])
        for plan in plans:
            rate = plan.settings["peak_lr"]
            state = accuracy(rate) if isinstance(accuracy(rate), str) else "finished"
            test = accuracy(rate) if state == "finished" else None
            curve = {"step": [1], "loss": [1.0], "accuracy": [0.5]}
            made = row_of(plan, state, None) | {"test_accuracy": test, "made": {}}
            rows.add([made | {"measures": {"curve": curve}}])
        there = rows.read()
        return Outcome({plan.key: there[plan.key] for plan in plans}, False, 0)

    monkeypatch.setattr(main.engine, "make", make)


def small(**fields):
    def table(results):
        return " ".join(f"{float(row['peak_lr']):g}" for row in results.rows)

    scales = {"smoke": grid(POINT, peak_lr=[0.25, 0.5], seed=[0])}
    return Experiment("small", scales, table, lambda results, path: None, lines=curve_of, **fields)


def test_rows_ask_for_more_runs_and_the_engine_gets_all_of_them(tmp_path, monkeypatch):
    asked = []
    with_fake_runs(monkeypatch, lambda rate: rate, asked)

    def grow(first, points, rows):
        best = max(rows, key=lambda row: row["test_accuracy"])
        assert len(first) == 2 and len(rows) == len(points)
        return [{**first[0], "peak_lr": 2 * best["peak_lr"]}] if best["peak_lr"] < 1 else []

    experiment, command = small(grow={"smoke": grow}), Command(scale="smoke", out=tmp_path)
    assert main.main(experiment, command) == 0
    # All points each time: what has a row is known by it, and waves stay as they were cut.
    assert asked == [[0.25, 0.5], [0.25, 0.5, 1.0]]
    assert (tmp_path / "table.txt").read_text() == "0.25 0.5 1\n"
    lines = (tmp_path / "rows-0-of-1.jsonl").read_text().splitlines()
    assert main.main(experiment, command) == 0 and asked[2:] == asked[:2]
    assert (tmp_path / "rows-0-of-1.jsonl").read_text().splitlines() == lines
    assert len((tmp_path / "curves.csv").read_text().splitlines()) == 4


def test_runs_that_differ_in_more_than_the_seed_have_titles_of_their_own(tmp_path, monkeypatch):
    with_fake_runs(monkeypatch, lambda rate: 0.5, [])
    experiment = small()
    experiment = dataclasses.replace(
        experiment, table=lambda results: "; ".join(row["title"] for row in results.rows)
    )
    for axes, text in (
        (("seed=0:1", "peak_lr=0.5"), "Fixup; Fixup"),
        (("weight_decay=0,0.5", "peak_lr=0.5"), "Fixup, weight_decay 0; Fixup, weight_decay 0.5"),
    ):
        main.main(experiment, Command(scale="smoke", grid=axes, out=tmp_path))
        assert (tmp_path / "table.txt").read_text() == text + "\n"


@pytest.mark.parametrize(
    ("models", "titles"),
    [("10-1,wrn-22-1", ("",)), ("10-1,wrn-10-2", (", wrn-10-1", ", wrn-10-2"))],
)
def test_a_table_has_columns_for_depths_and_not_for_widths(models, titles):
    experiment = fig3.EXPERIMENT
    command = Command(scale="smoke", grid=("scheme=fixup", f"model=wrn-{models}"))
    points = chosen(experiment, command)
    with schemes.registered(*experiment.schemes):
        title = telling(experiment.title, experiment.scales["smoke"], points)
    assert {title(point) for point in points} == {f"Fixup{words}" for words in titles}


def test_runs_on_several_data_are_refused_where_they_share_them():
    points = table3.SCALES["smoke"]
    points = [*points, {**points[0], "vocabulary": 300}]
    with pytest.raises(ValueError, match="several values of vocabulary found"):
        table3.task(points, Command())


def test_a_failed_run_is_counted_and_the_others_are_shown(tmp_path, monkeypatch, capsys):
    asked = []
    with_fake_runs(monkeypatch, lambda rate: "failed" if rate > 0.3 else 0.5, asked)
    assert main.main(small(), Command(scale="smoke", out=tmp_path)) == 1
    assert "Failed runs: 1; the same command tries them again." in capsys.readouterr().out
    assert (tmp_path / "table.txt").read_text() == "0.25\n"
    with_fake_runs(monkeypatch, lambda rate: 0.5, asked)
    assert main.main(small(), Command(scale="smoke", out=tmp_path)) == 0
    assert (tmp_path / "table.txt").read_text() == "0.25 0.5\n"


def test_a_folder_of_failures_alone_has_no_table(tmp_path, monkeypatch, capsys):
    with_fake_runs(monkeypatch, lambda rate: "failed", [])
    experiment = dataclasses.replace(small(), table=lambda results: min(results.rows))
    assert main.main(experiment, Command(scale="smoke", out=tmp_path)) == 1
    assert "No run has ended." in capsys.readouterr().out


def test_what_was_stopped_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(main.engine, "make", lambda *_, **__: Outcome({}, True, 0))
    with pytest.raises(SystemExit) as stopped:
        main.main(small(), Command(scale="smoke", out=tmp_path))
    assert stopped.value.code == 143 and "the same command goes on" in capsys.readouterr().out


def test_what_is_measured_is_measured_once_and_again_where_it_is_damaged(tmp_path, monkeypatch):
    measured = []

    def measure(point, data_dir):
        measured.append(point["depth"])
        return [{"depth": point["depth"], "value": 2 * point["depth"]}]

    experiment = Experiment(
        "small", {"smoke": grid({}, depth=[1, 2])}, lambda results: str(len(results.rows)),
        lambda results, path: None, measure=measure,
    )  # fmt: skip
    command = Command(scale="smoke", out=tmp_path)
    assert main.main(experiment, command) == main.main(experiment, command) == 0
    assert measured == [1, 2]
    assert (tmp_path / "rows.csv").read_text() == "depth,value\n1,2\n2,4\n"
    file = tmp_path / "rows-0-of-1.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"value":4', b'"value":5'))
    assert main.main(experiment, command) == 0 and measured == [1, 2, 2]
    assert (tmp_path / "rows.csv").read_text() == "depth,value\n1,2\n2,4\n"
    # By the first of several processes alone.
    monkeypatch.setattr(main.hosts, "is_process_zero", lambda: False)
    assert main.main(experiment, Command(scale="smoke", out=tmp_path / "new")) == 0
    assert measured == [1, 2, 2]
