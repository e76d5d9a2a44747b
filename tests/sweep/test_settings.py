"""Settings: one text and one key for a run, however its numbers were written; axes of grids."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from nf_resnets.sweep.settings import RunSettings, axis_text, parse, points, typed
from tests.sweep.small import key


def test_numbers_written_differently_are_one_run():
    values = [0.1, 1e-1, np.float64(0.1), float("0.10000")]
    assert len({key({"peak_lr": value}) for value in values}) == 1
    assert len({key({"batch_size": value}) for value in (64, 64.0, np.int32(64))}) == 1
    assert len({key({"alpha": value}) for value in (0, 0.0, -0.0)}) == 1
    assert len({key({"flip": value}) for value in (True, np.True_)}) == 1
    assert key({"peak_lr": 0.1}) == key({})  # the default, given and left out


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(RunSettings)])
def test_every_field_makes_another_run(field):
    other = {
        "dataset": "cifar10", "model": "wrn-16-2", "scheme": "skipinit", "schedule": "constant",
        "epochs": 3.5, "steps": 7, "alpha": 0.5, "dropout": 0.25, "flip": True, "remat": True,
        "momentum": 0.5, "dtype": "bfloat16", "gradient_noise": True, "optimizer": "lion",
        "base_model": "wrn-10-1", "nesterov": True, "average": 0.5, "label_smoothing": 0.5,
        "drops": "0.5", "drop_factor": 0.5, "draw": "own",
    }.get(field, 3)  # fmt: skip
    assert key({field: other}) != key({})


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("peak_lr", -0.1, "peak_lr=-0.1"),
        ("peak_lr", math.nan, "peak_lr=nan"),
        ("momentum", 1.0, "momentum=1.0"),
        ("batch_size", 2.5, "batch_size=2.5 found; expected a whole number"),
        ("seed", 2**32, "seed=4294967296"),
        ("flip", "yes", "flip='yes'"),
        ("schedule", "linear", "schedule='linear' found; expected halving or constant"),
        ("peak_rl", 0.1, "'peak_rl' is no setting of a run; expected one of"),
    ],
)
def test_a_bad_value_is_refused_in_one_sentence_that_names_it(name, value, sentence):
    with pytest.raises(ValueError) as caught:
        typed(name, value)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


# Grids


def test_axes_are_read_as_they_are_written():
    axes = ["peak_lr=2^-8:2^2", "batch_size=8,32,128,512", "seed=0:4", "scheme=fixup,skipinit"]
    assert parse(axes) == {
        "peak_lr": tuple(2.0**exponent for exponent in range(-8, 3)),
        "batch_size": (8, 32, 128, 512),
        "seed": (0, 1, 2, 3, 4),
        "scheme": ("fixup", "skipinit"),
    }
    more = ["weight-decay = 0, 5e-4, 1e-3", "alpha=none,0,10^-1", "flip=true,False", "steps=2**3"]
    assert parse(more) == {
        "weight_decay": (0.0, 5e-4, 1e-3),
        "alpha": (None, 0.0, 0.1),
        "flip": (True, False),
        "steps": (8,),
    }
    assert parse(["batch_size=2^3:2^5"]) == {"batch_size": (8, 16, 32)}
    # As a report's command has them.
    for read in (parse(axes), parse(more)):
        assert parse([axis_text(*axis) for axis in read.items()]) == read
    # One point, however it was written, is there once.
    assert parse(["peak_lr=0.5,2^-1,5e-1,2^-2"]) == {"peak_lr": (0.5, 0.25)}


@pytest.mark.parametrize(
    ("axis", "sentence"),
    [
        ("peak_lr=0.1,,0.2", "peak_lr=''"),
        ("peak_lr=0.1:0.5", "peak_lr='0.1:0.5' found; expected a range of powers of one base"),
        ("seed=0:4,9:5", "'seed=0:4,9:5' has a range without values"),
    ],
)
def test_a_bad_axis_is_refused_in_one_sentence_that_names_field_and_value(axis, sentence):
    with pytest.raises(ValueError) as caught:
        parse([axis])
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_points_are_every_combination_once():
    axes = {"scheme": ("fixup", "skipinit"), "peak_lr": (0.1, 0.2), "seed": (0, 1, 2)}
    grid = points(axes, {"batch_size": 32})
    assert len(grid) == len(set(grid)) == 12
    assert [point.seed for point in grid[:4]] == [0, 1, 2, 0]
    assert {point.batch_size for point in grid} == {32}
    assert len(points({"peak_lr": (0.1, 1e-1)})) == 1
    for axes, base in (({"seed": ()}, {}), ({"seed": (0,)}, {"seed": 1})):
        with pytest.raises(ValueError, match="seed"):
            points(axes, base)
