"""Fixup's figure 3: bad input, its points, its table."""

from pathlib import Path

import pytest
import tyro

from experiments import fixup_fig3_depth as fig3
from experiments.experiment import Results
from experiments.main import main, settings_of
from nf_resnets import data

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


def test_fewer_than_no_workers_are_refused():
    command = tyro.cli(fig3.Command, args=["--scale", "smoke", "--workers", "-1"])
    with pytest.raises(SystemExit, match="--workers -1 found; expected at least 1"):
        settings_of(fig3.EXPERIMENT, command)


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
    assert lines[1].split() == ["Fixup", "60.0", "90.0"]
    assert lines[2].split() == ["α", "=", "1", "(1", "diverged)", "-"]
