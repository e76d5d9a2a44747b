"""The waves of a sweep that are still to be made."""

from nf_resnets.sweep import engine
from nf_resnets.sweep.rows import Rows
from nf_resnets.sweep.waves import Wave
from nf_resnets.training.run import Plan


def test_a_wave_that_has_begun_goes_on_whole_where_its_folder_is_not_seen(tmp_path):
    plans = tuple(Plan({"peak_lr": rate}, "", 1, 1) for rate in range(3))
    wave, rows = Wave(plans), Rows(tmp_path)
    rows.follow([plans[0].key])
    assert engine._missing([wave], rows, [[plan.key for plan in plans]]) == [wave]
    assert engine._missing([wave], rows, []) == [Wave(plans[1:])]
