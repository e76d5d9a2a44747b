"""Grids: what is written on a command line, and every combination of it."""

from __future__ import annotations

import pytest

from nf_resnets.sweep import settings


def test_axes_are_read_as_they_are_written():
    axes = ["peak_lr=2^-8:2^2", "batch_size=8,32,128,512", "seed=0:5", "scheme=fixup,skipinit"]
    assert settings.parse(axes) == {
        "peak_lr": tuple(2.0**exponent for exponent in range(-8, 3)),
        "batch_size": (8, 32, 128, 512),
        "seed": (0, 1, 2, 3, 4),
        "scheme": ("fixup", "skipinit"),
    }
    more = ["weight-decay = 0, 5e-4, 1e-3", "alpha=none,0,10^-1", "flip=true,False", "steps=2**3"]
    assert settings.parse(more) == {
        "weight_decay": (0.0, 5e-4, 1e-3),
        "alpha": (None, 0.0, 0.1),
        "flip": (True, False),
        "steps": (8,),
    }
    assert settings.parse(["batch_size=2^3:2^5"]) == {"batch_size": (8, 16, 32)}
    # One point, however it was written, is there once.
    assert settings.parse(["peak_lr=0.5,2^-1,5e-1,2^-2"]) == {"peak_lr": (0.5, 0.25)}


@pytest.mark.parametrize(
    ("axis", "sentence"),
    [
        ("peak_lr=", "peak_lr='' has no values"),
        ("peak_lr=0.1,,0.2", "peak_lr='0.1,,0.2' has an empty value"),
        ("peak_lr", "the axis 'peak_lr' has no equals sign"),
        ("peak_lr=fast", "peak_lr='fast' found; expected a number."),
        ("peak_lr=-0.5,0.1", "peak_lr=-0.5 found; expected a number above 0 and below 1e+38."),
        ("peak_lr=2^2:2^-3", "peak_lr=2^2:2^-3 has no values; expected a range that rises."),
        ("peak_lr=0.1:0.5", "peak_lr=0.1:0.5 found; expected a range of powers of one base"),
        ("peak_lr=2^-3:10^0", "expected a range of powers of one base"),
        ("peak_lr=2^99999", "the power 2^99999 found; expected one that fits a number."),
        ("peak_lr=0.1:", "peak_lr='' found; expected a number."),
        ("batch_size=2.5", "batch_size=2.5 found; expected a whole number."),
        ("seed=0:99999999", "seed=0:99999999 has 1e+08 values; expected at most 1000000."),
        ("scheme=", "scheme='' has no values"),
        ("lr=0.1", "'lr' is no setting of a run"),
        ("flip=1", "flip='1' found; expected true or false."),
    ],
)
def test_a_bad_axis_is_refused_in_one_sentence_that_names_field_and_value(axis, sentence):
    with pytest.raises(ValueError) as caught:
        settings.parse([axis])
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_axis_stands_once():
    with pytest.raises(ValueError, match=r"the axis seed is there twice"):
        settings.parse(["seed=0:2", "seed=3"])


def test_points_are_every_combination_once():
    axes = {"scheme": ("fixup", "skipinit"), "peak_lr": (0.1, 0.2), "seed": (0, 1, 2)}
    points = settings.points(axes, {"batch_size": 32})
    assert len(points) == len(set(points)) == 12
    assert [point.seed for point in points[:4]] == [0, 1, 2, 0]
    assert {point.batch_size for point in points} == {32}
    assert len(settings.points({"peak_lr": (0.1, 1e-1)})) == 1
    assert len(settings.points({})) == 1


def test_a_grid_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"the axis seed has no values"):
        settings.points({"seed": ()})
    with pytest.raises(ValueError, match=r"seed is an axis of the grid and given besides"):
        settings.points({"seed": (0,)}, {"seed": 1})
    with pytest.raises(ValueError, match=r"a grid of 1,000,002 points found; expected at most"):
        settings.points({"seed": range(500_001), "peak_lr": (0.1, 0.2)})
