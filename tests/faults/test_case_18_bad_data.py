"""Case 18: bad data is refused before step 1, with name and index, and nothing is entered.

What is checked, and that files are named, is tested in tests/data/test_sources.py; here it is that
a sweep does not begin, and that labels which are changed later are no divergence.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from nf_resnets import data
from nf_resnets.sweep import image_task
from tests.faults.sweeping import TINY
from tests.sweep import small

CASE = "18 bad data: label, NaN pixel, one class, dtype; refused before anything starts"


def images(count, dtype=np.uint8):
    return np.random.default_rng(0).integers(0, 17, (count, 8, 8, 1)).astype(dtype)


def labels(count):
    return (np.arange(count) % 10).astype(np.int32)


def made(change, split="train", dtype=np.uint8):
    arrays = {name: [images(count, dtype), labels(count)] for name, count in
              (("train", 200), ("test", 50))}  # fmt: skip
    change(arrays[split])
    splits = {name: data.Split(*both) for name, both in arrays.items()}
    names = tuple(str(digit) for digit in range(10))
    return data.from_splits("mine", splits["train"], splits["test"], names, max_value=16.0)


def put(index, place, value):
    def change(arrays):
        arrays[index][place] = value

    return change


def one_class(arrays):
    arrays[1][:] = 3


def wrong_dtype(arrays):
    arrays[0] = arrays[0].astype(np.int64)


CASES = {
    "a label out of range": (put(1, 77, 10), {}, "train split: label 77 is 10"),
    "a label out of range in the test split": (
        put(1, 7, -1), {"split": "test"}, "test split: label 7 is -1"
    ),
    "a NaN pixel": (
        put(0, (5, 2, 3, 0), np.nan),
        {"dtype": np.float32},
        r"train split: pixel \(5, 2, 3, 0\) is nan",
    ),
    "a NaN pixel in the test split": (
        put(0, (5, 2, 3, 0), np.nan),
        {"dtype": np.float32, "split": "test"},
        r"test split: pixel \(5, 2, 3, 0\) is nan",
    ),
    "one class": (one_class, {}, "train split: all 200 labels are 3"),
    "a wrong dtype": (
        wrong_dtype, {}, "train split: images must be uint8, float16, float32 or float64, got int64"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_sweep_does_not_begin(name):
    change, options, message = CASES[name]
    read = []

    def load(wanted):
        read.append(wanted)
        return made(change, **options)

    with pytest.raises(ValueError, match=f"mine, {message}"):
        image_task.make_sweep({"seed": (0, 1)}, TINY, load=load)
    assert read == ["digits"]


def test_good_data_are_taken():
    """Negative control."""
    dataset = made(lambda arrays: None)
    sweep = image_task.make_sweep({"seed": (0, 1)}, TINY, load=lambda name: dataset)
    assert [run.steps_per_epoch for run in sweep.runs] == [3, 3]


@pytest.mark.parametrize("batch_size", [201, 4096])
def test_a_batch_larger_than_the_data_is_refused(batch_size):
    with pytest.raises(ValueError, match=f"batch_size={batch_size} is larger"):
        image_task.make_sweep(
            {"batch_size": (batch_size,)}, TINY, load=lambda name: made(lambda arrays: None)
        )


@pytest.mark.slow  # that the loop raises is in tests/training/test_loop.py
@pytest.mark.parametrize(("split", "label"), [("train", -1), ("test", 10)])
def test_labels_that_are_changed_after_the_check_are_a_failure_and_no_divergence(
    tmp_path, split, label
):
    """A run that failed can be tried again with the data set mended; one that diverged cannot."""
    dataset = data.load("digits")
    splits = {
        name: data.Split(getattr(dataset, name).images, getattr(dataset, name).labels.copy())
        for name in ("train", "test")
    }
    dataset = dataclasses.replace(dataset, **splits)
    base = {"model": "cifar-resnet-8", "stem_channels": 4, "epochs": 1.0}
    sweep = image_task.make_sweep({"seed": (0,)}, base, load=lambda name: dataset)
    splits[split].labels[7] = label
    rows, _, _ = small.run(tmp_path, sweep, max_attempts=1)
    assert [row["state"] for row in rows] == ["failed"]
    where = "the batch of step" if split == "train" else "the test split"
    assert f"a label in {where}" in rows[0]["message"]
