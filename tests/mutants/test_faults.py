"""The list of mutants fits the code: each changes one place, to something that still compiles."""

from pathlib import Path

import pytest

from tests.mutants.faults import MUTANTS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.path}: {mutant.old[:30]}")
def test_a_mutant_changes_one_place_and_compiles(mutant):
    source = (ROOT / mutant.path).read_text()
    assert source.count(mutant.old) == 1
    changed = source.replace(mutant.old, mutant.new)
    assert changed != source
    compile(changed, mutant.path, "exec")
    assert all((ROOT / test).is_file() for test in mutant.tests)
