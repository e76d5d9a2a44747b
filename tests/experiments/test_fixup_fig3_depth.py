"""Fixup's figure 3: bad input, its points, its table."""

import dataclasses
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import tyro

from experiments import fixup_fig3_depth as fig3
from experiments.experiment import Results
from experiments.folder import read_rows
from experiments.main import main, settings_of
from experiments.runs import ExperimentTask
from nf_resnets import data
from nf_resnets.roles import Leaf, Role

SINGLE = ("--steps", "--out")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--depths", 11), "depth=11 found; a WRN-n-k has n = 6N + 4 layers"),
        (("--depths", 10, 10), "expected no repetition"),
        (("--schemes", "fixupp"), "did you mean 'fixup'?"),
        (("--seeds", -1), "expected 0 <= seed"),
        (("--steps", -3), "--steps -3 found; expected at least 1"),
        (("--out", Path("")), "--out names no folder"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence):
    fields = {arguments[0][2:]: arguments[1] if arguments[0] in SINGLE else arguments[1:]}
    with pytest.raises(SystemExit) as refused:
        settings_of(fig3.EXPERIMENT, fig3.Command(scale="smoke", **fields))
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--workers", "-1", "--workers -1 found; expected at least 0"),
        ("--runs-per-device", "-1", "--runs-per-device -1 found; expected at least 0"),
        ("--save-seconds", "-1", "--save-seconds -1.0 found; expected at least 0"),
        ("--devices-per-run", "7", "devices_per_run=7 found; expected a divisor of the 8 devices"),
    ],
)
def test_an_execution_that_cannot_be_is_refused_before_anything_is_made(
    option, value, sentence, tmp_path
):
    out = tmp_path / "out"
    command = tyro.cli(fig3.Command, args=["--scale", "smoke", "--out", str(out), option, value])
    with pytest.raises(SystemExit, match=f"^{sentence}"):
        main(fig3.EXPERIMENT, command)
    assert not out.exists()


def test_a_missing_data_set_is_refused_before_anything_is_made(tmp_path, as_before):
    out = tmp_path / "out"
    command = fig3.Command(scale="paper", data_dir=str(tmp_path / "nothing"), out=out)
    with pytest.raises(SystemExit, match=r"(?s)cifar10.*download_and_prepare"):
        main(fig3.EXPERIMENT, command)
    assert not out.exists()


def test_points_share_a_program_by_depth_and_anatomy():
    points = fig3.points(fig3.SCALES["smoke"], data.load("digits"), ())
    programs = {}
    for point in points:
        programs.setdefault(point.program, []).append((point.key["scheme"], point.priority))
    assert [("skipinit", 10), ("alpha_one", 10)] in programs.values() and len(programs) == 10


def test_the_table_shows_means_gaps_and_divergence():
    settings = fig3.Settings("digits", (10, 16), ("fixup", "alpha_one"), seeds=(0, 1))

    def row(scheme, depth, accuracy, status="finished"):
        return {
            "scheme": scheme, "depth": str(depth), "test_accuracy": accuracy, "status": status
        }  # fmt: skip

    rows = [
        row("fixup", 10, 0.5), row("fixup", 10, 0.7), row("fixup", 16, 0.9),
        row("alpha_one", 10, "nan", "diverged"),
    ]  # fmt: skip
    lines = fig3.table(Results(settings, None, rows)).splitlines()
    assert lines[1].split() == ["Fixup", "60.0", "±", "14.1", "(2", "runs)", "90.0"]
    assert lines[2].split() == ["α", "=", "1", "(1", "diverged)", "-"]


def test_the_demo_makes_some_of_the_runs_of_laptop():
    demo, laptop = (
        ExperimentTask(fig3.EXPERIMENT, settings, digits).add(fig3.points(settings, digits, ()))
        for settings in (fig3.SCALES["demo"], fig3.SCALES["laptop"])
        for digits in [data.load("digits")]
    )
    steps = {run.key: (run.label, run.program, run.num_steps) for run in laptop}
    assert all(steps[run.key] == (run.label, run.program, run.num_steps) for run in demo)
    # Shallow ones first, of which there is soon a picture.
    depths = [
        int(run.label.split(", ")[1].removesuffix(" layers").replace(",", "")) for run in demo
    ]
    assert Counter(depths) == {10: 5, 100: 5, 1000: 4} and depths == sorted(depths)


def test_the_cells_of_cifar_are_those_that_two_cores_can_make():
    points = fig3.points(fig3.SCALES["cifar"], data.load("digits"), ())
    found = Counter((point.key["depth"], point.key["scheme"]) for point in points)
    assert {depth: sum(n for (of, _), n in found.items() if of == depth) for depth, _ in found} == {
        10: 21, 34: 21, 100: 7, 304: 7, 1000: 2
    }  # fmt: skip
    assert found[34, "fixup"] == 3 and found[1000, "skipinit"] == 1


def test_slow_alpha_is_another_program_with_another_group():
    settings = fig3.SCALES["paper"]
    points = fig3.points(settings, data.load("digits"), ())
    of = {point.key["scheme"]: point for point in points if point.key["depth"] == 10}
    full, slow = of["skipinit"], of["skipinit_slow"]
    assert full.program != slow.program and full.program == of["alpha_one"].program
    alpha = Leaf("block/alpha", Role.ALPHA, ())
    assert alpha in slow.start.scheme.scalars and alpha not in full.start.scheme.scalars


def batchnorm_row(out, **changes):
    """The row of a small network with BatchNorm, after four steps."""
    smoke = dataclasses.replace(fig3.SCALES["smoke"], depths=(10,), **changes)
    experiment = dataclasses.replace(fig3.EXPERIMENT, scales={"smoke": smoke})
    assert main(experiment, fig3.Command(scale="smoke", schemes=("batchnorm",), out=out)) == 0
    columns = fig3.adapt(smoke).get("columns", fig3.EXPERIMENT.columns)
    (row,) = read_rows(out / "rows.csv", columns)
    return row


@pytest.mark.slow
def test_batchnorm_is_tested_twice(tmp_path, as_before):
    row = batchnorm_row(tmp_path, second_test_batches=2)
    # After four steps the running statistics are mostly the first ones, 0 and 1.
    assert 0 < float(row["estimated_accuracy"]) != float(row["test_accuracy"])
    lines = (tmp_path / "table.txt").read_text().splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "BatchNorm", "BatchNorm, estimated statistics"
    ]  # fmt: skip


@pytest.mark.slow
def test_the_second_test_is_the_engine_s_own_where_that_estimates(tmp_path, as_before):
    twice = batchnorm_row(tmp_path / "twice", second_test_batches=2)
    once = batchnorm_row(tmp_path / "once", bn_estimate_batches=2)
    assert once["test_accuracy"] == twice["estimated_accuracy"]


def test_batchnorm_alone_has_a_second_test_on_estimated_statistics(monkeypatch):
    settings, digits = fig3.SCALES["paper"], data.load("digits")
    points = fig3.points(settings, digits, ())
    of = {point.key["scheme"]: point for point in points if point.key["depth"] == 10}
    program = SimpleNamespace(
        model="model", mesh="mesh", empty=lambda: "empty", put=lambda *given: given
    )
    asked = []

    def image_test(*given):
        asked.append(given)
        return lambda states: {"accuracy": [0.5 if states == ("empty", 0, "state") else 0.0]}

    monkeypatch.setattr(fig3, "image_test", image_test)
    given = (settings, digits)
    assert fig3.second_test(*given, of["fixup"], program, "state") == {}
    found = fig3.second_test(*given, of["batchnorm"], program, "state")
    assert found == {"estimated_accuracy": 0.5}
    ((model, dataset, mesh, how),) = asked
    assert (model, dataset, mesh, how.bn_estimate_batches) == ("model", digits, "mesh", 8)
