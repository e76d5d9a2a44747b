"""What a network takes is checked where it is written down."""

import pytest

from tests.trained.networks import takes


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": (8, 8)}, {"shape": (8, 8, 2)}, {"mean": (float("nan"),)}, {"std": (0.0,)},
        {"max_value": 0.0}, {"crop": 1.1}, {"class_names": ("one",)},
    ],
    ids=str,
)  # fmt: skip
def test_what_makes_no_sense_is_refused(changes):
    with pytest.raises(ValueError, match=f"{next(iter(changes))}"):
        takes(**changes)
