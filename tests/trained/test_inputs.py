"""What a network takes is checked where it is written down."""

import pytest

from tests.trained.networks import takes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": (8, 8)}, r"shape=\(8, 8\) found; expected \(H, W, C\)"),
        ({"shape": (8, 8, 2)}, "with 1 channel, or 3"),
        ({"shape": (0, 8, 1)}, r"shape=\(0, 8, 1\)"),
        ({"mean": (1.0, 2.0)}, "a finite number for each of the 1 channels"),
        ({"mean": (float("nan"),)}, r"mean=\(nan,\) found"),
        ({"std": (0.0,)}, "expected a number above 0 for each"),
        ({"max_value": 0.0}, "max_value=0.0 found"),
        ({"crop": 0.0}, "crop=0.0 found"),
        ({"crop": 1.1}, "crop=1.1 found"),
        ({"class_names": ("one",)}, "expected two or more"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        takes(**changes)
