"""Streams: the order and the crops are pure functions of the seed and the step."""

import itertools

import grain
import numpy as np
import pytest

from nf_resnets.data import imagenet, stream
from nf_resnets.data.stream import DRAWS, RandomCrop, central_box, random_box
from tests import photographs
from tests.trained.networks import assert_same

CROP = RandomCrop(size=24)
PER_EPOCH = photographs.TRAIN // 16  # 9, and 6 examples are dropped
PINNED = [80, 73, 142, 106]


@pytest.fixture(scope="module")
def dataset(photographs_dir):
    return imagenet.open_encoded(photographs_dir)


def batches(dataset, **options):
    options = {"seed": 5, "batch_size": 16, "num_steps": 2 * PER_EPOCH + 2, **options}
    return list(stream.training_stream(dataset.splits["train"], crop=CROP, **options))


@pytest.fixture(scope="module")
def default(dataset):
    return batches(dataset)


def test_every_batch_is_what_order_and_crops_say(dataset, default):
    """By Grain's own shuffle and draws, and pinned, since runs are resumed under later versions."""
    written = {name: (content, label) for content, label, name in photographs.examples()["train"]}
    split = dataset.splits["train"]
    order = grain.MapDataset.source(range(photographs.TRAIN)).shuffle(5)[: 16 * PER_EPOCH].repeat()
    draws = order.random_map(lambda index, generator: generator.random(DRAWS).tolist(), seed=5)
    assert [order[at] for at in range(4)] == PINNED
    for step, batch in enumerate(default):
        assert batch["image"].shape == (16, 24, 24, 3) and batch["image"].dtype == np.uint8
        places = range(16 * step, 16 * (step + 1))
        np.testing.assert_array_equal(batch["index"], [order[at] for at in places])
        for row in (0, 7, 15):
            content, label = written[split[batch["index"][row]].where.split("(")[1].rstrip(")")]
            assert batch["label"][row] == label
            file, uniform = imagenet.Example(content), draws[places[row]]
            box = random_box(file.height, file.width, CROP, uniform)
            expected = file.pixels(box, 24, flip=uniform[-1] < 0.5)
            np.testing.assert_array_equal(batch["image"][row], expected)


@pytest.mark.parametrize("first", [1, PER_EPOCH])
def test_a_resumed_stream_goes_on_exactly(dataset, default, first):
    assert_same(batches(dataset, first_step=first), default[first:])


def test_one_thread_changes_nothing(dataset, default):
    assert_same(batches(dataset, threads=1), default)


def test_hosts_read_disjoint_parts_of_one_batch(dataset, default):
    rows = np.arange(16).reshape(4, -1)
    parts = [batches(dataset, rows=own, num_steps=PER_EPOCH + 1) for own in rows]
    for step, whole in enumerate(default[: PER_EPOCH + 1]):
        for name in whole:
            joined = np.concatenate([part[step][name] for part in parts])
            np.testing.assert_array_equal(joined, whole[name])


@pytest.mark.parametrize(("batch_size", "count"), [(10, 3), (64, 1)])
def test_evaluation_counts_every_example_once(dataset, batch_size, count):
    split = dataset.splits["validation"]
    options = {"batch_size": batch_size, "size": 24, "short_side": 32}
    found = list(stream.evaluation_stream(split, **options))
    assert len(found) == count
    index, label, counts, image = (
        np.concatenate([batch[name] for batch in found])
        for name in ("index", "label", "counts", "image")
    )
    assert image.shape == (count * batch_size, 24, 24, 3)
    np.testing.assert_array_equal(index, np.arange(count * batch_size))
    np.testing.assert_array_equal(counts, index < photographs.VALIDATION)
    assert not image[photographs.VALIDATION :].any()
    for i in (0, photographs.VALIDATION - 1):
        read = split[i]
        box = central_box(read.height, read.width, 24, 32)
        np.testing.assert_array_equal(image[i], read.pixels(box, 24))
        assert label[i] == read.label
    halves = [np.arange(0, batch_size, 2), np.arange(1, batch_size, 2)]
    parts = [list(stream.evaluation_stream(split, rows=rows, **options)) for rows in halves]
    for step, whole in enumerate(found):
        for part, rows in zip(parts, halves, strict=True):
            np.testing.assert_array_equal(part[step]["image"], whole["image"][rows])


def test_a_bad_image_ends_the_stream_with_its_name(tmp_path):
    good = photographs.examples()["train"][6:30]
    photographs.write(tmp_path, {"train": [*good, (good[1][0][:-1000], 1, "bad.JPEG")]})
    dataset = imagenet.open_encoded(tmp_path)
    found = stream.training_stream(
        dataset.splits["train"], seed=0, batch_size=5, num_steps=10, crop=CROP
    )
    with pytest.raises(ValueError, match=r"^imagenet2012, train .* \(bad.JPEG\): a damaged image"):
        list(itertools.islice(found, 5))
