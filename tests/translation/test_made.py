"""The sentences that the code makes: the same each time, all different, of as many words."""

import pytest

from nf_resnets.translation.made import made_pairs


def test_they_follow_from_the_seed_and_differ():
    pairs = made_pairs(2_000, seed=1)
    assert pairs == made_pairs(2_000, seed=1) and pairs[:500] == made_pairs(500, seed=1)
    assert pairs != made_pairs(2_000, seed=2)
    assert len({german for german, _ in pairs}) == 2_000
    # A translator can tell the number of the English from the German and the other way round.
    assert len({english for _, english in pairs}) == 2_000


@pytest.mark.parametrize("count", [0, 20_001])
def test_other_counts_are_refused(count):
    with pytest.raises(ValueError, match="expected 1 to 20,000"):
        made_pairs(count)
