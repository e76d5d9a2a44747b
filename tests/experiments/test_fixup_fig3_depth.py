"""Fixup's figure 3: its runs, its table, its second test."""

from collections import Counter

import pytest

from experiments import fixup_fig3_depth as fig3
from experiments.experiment import Results
from experiments.main import Command, main
from nf_resnets import schemes
from nf_resnets.roles import Leaf, Role
from nf_resnets.sweep.image_task import ImageTask
from nf_resnets.sweep.settings import make
from tests.experiments.as_a_user import lines_of


def test_the_demo_makes_some_of_the_runs_of_laptop():
    demo, laptop = (fig3.SCALES[name] for name in ("demo", "laptop"))
    assert all(point in laptop for point in demo)
    # Shallow ones first, of which there is soon a picture.
    models = [point["model"] for point in demo]
    assert list(Counter(models).items()) == [("wrn-10-1", 5), ("wrn-100-1", 5), ("wrn-1000-1", 4)]


def test_schemes_that_compile_alike_share_a_program():
    task = ImageTask()
    with schemes.registered(*fig3.SLOW):
        plans = [task.plan(make(point)) for point in fig3.SCALES["smoke"]]
        slow = task.plan(make({**fig3.SCALES["smoke"][0], "scheme": "skipinit"}))
    programs = {plan.settings["scheme"]: plan.program for plan in plans[:6]}
    assert programs["skipinit_slow"] == programs["alpha_one_slow"] != slow.program
    assert len({plan.program for plan in plans}) == 10


def test_slow_alpha_is_another_group():
    alpha = Leaf("block/alpha", Role.ALPHA, ())
    assert alpha in fig3.SLOW[0].scalars
    assert alpha not in schemes.get("skipinit").scalars


def test_the_table_shows_means_gaps_and_divergence():
    def row(title, depth, accuracy, status="finished"):
        return {"title": title, "depth": depth, "test_accuracy": accuracy, "status": status}

    rows = [
        row("Fixup", 10, 0.5), row("Fixup", 10, 0.7), row("Fixup", 16, 0.9),
        row("α = 1", 10, "nan", "diverged"),
    ]  # fmt: skip
    lines = fig3.table(Results([], rows)).splitlines()
    assert lines[1].split() == ["Fixup", "60.0", "±", "14.1", "(2", "runs)", "90.0"]
    assert lines[2].split() == ["α", "=", "1", "(1", "diverged)", "-"]


@pytest.mark.slow
def test_the_second_test_is_the_engine_s_own_where_that_estimates(tmp_path, as_before):
    def batchnorm(name, *axes):
        grid = ("model=wrn-10-1", "scheme=batchnorm", *axes)
        command = Command(scale="smoke", grid=grid, out=tmp_path / name)
        assert main(fig3.EXPERIMENT, command) == 0
        (row,) = lines_of(tmp_path / name / "rows.csv")
        return row

    twice = batchnorm("twice")
    once = batchnorm("once", f"bn_estimate_batches={fig3.SECOND_TEST}")
    assert once["test_accuracy"] == twice["estimated_accuracy"] != twice["test_accuracy"]
    lines = (tmp_path / "twice" / "table.txt").read_text().splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "BatchNorm", "BatchNorm, estimated statistics"
    ]  # fmt: skip
