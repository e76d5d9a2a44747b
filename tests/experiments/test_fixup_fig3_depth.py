"""Fixup's figure 3: its runs, its table, its second test."""

import pytest

from experiments import fixup_fig3_depth as fig3
from experiments.main import Command, main
from nf_resnets import schemes
from nf_resnets.sweep.image_task import ImageTask
from nf_resnets.sweep.settings import make
from tests.experiments.as_a_user import lines_of


def test_schemes_that_compile_alike_share_a_program():
    task = ImageTask()
    with schemes.registered(*fig3.SLOW):
        plans = [task.plan(make(point)) for point in fig3.SCALES["smoke"]]
        slow = task.plan(make({**fig3.SCALES["smoke"][0], "scheme": "skipinit"}))
    programs = {plan.settings["scheme"]: plan.program for plan in plans[:6]}
    assert programs["skipinit_slow"] == programs["alpha_one_slow"] != slow.program
    assert len({plan.program for plan in plans}) == 10


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
