"""From a grid to waves: equal ones, by rising rate; those that have begun stay as they are."""

from nf_resnets.sweep import engine
from nf_resnets.sweep.engine import cut, name_of
from nf_resnets.sweep.rows import Rows
from nf_resnets.training.run import Plan


def plans(rates, program="p"):
    return [Plan({"peak_lr": rate, "of": program}, "", 1, 1, program=program) for rate in rates]


def rates(waves):
    return [[plan.settings["peak_lr"] for plan in wave] for wave in waves]


def test_runs_are_cut_into_equal_waves_by_rising_rate():
    assert rates(cut(plans([4, 1, 3, 2, 5, 7, 6]), 3)) == [[1, 2, 3], [4, 5], [6, 7]]
    assert rates(cut(plans([2, 1]), 3)) == [[1, 2]] and cut([], 3) == []
    two = cut([*plans([2, 1]), *plans([4, 3], "q")], 8)
    assert rates(two) == [[1, 2], [3, 4]] and [wave[0].program for wave in two] == ["p", "q"]
    assert len({name_of(wave) for wave in two}) == 2


def test_waves_that_have_begun_come_first_and_stay_as_they_are():
    old = cut(plans([2, 4, 6]), 2)
    grown = plans([6, 5, 4, 3, 2, 1])
    begun = [[plan.key for plan in wave] for wave in old]
    assert rates(cut(grown, 2, begun)) == [[2, 4], [6], [1, 3], [5]]
    assert [name_of(wave) for wave in cut(grown, 2, begun)][:2] == [name_of(wave) for wave in old]
    # Of which a run is no longer asked for, or is another now.
    assert rates(cut(plans([2, 6]), 2, begun)) == [[6], [2]]
    assert rates(cut(plans([2, 4], "q"), 2, begun)) == [[2, 4]]


def test_a_wave_that_has_begun_goes_on_whole_where_its_folder_is_not_seen(tmp_path):
    plans = tuple(Plan({"peak_lr": rate}, "", 1, 1) for rate in range(3))
    rows = Rows(tmp_path)
    rows.follow([plans[0].key])
    assert engine._missing([plans], rows, [[plan.key for plan in plans]]) == [plans]
    assert engine._missing([plans], rows, []) == [plans[1:]]
