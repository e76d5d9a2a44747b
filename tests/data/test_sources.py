"""Sources: what is loaded is what was stored, and bad data is refused with one sentence."""

import ast
import hashlib
import re
import shlex
import shutil
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from nf_resnets.data import load
from tests.photographs import prepare

SHAPES = {"svhn_cropped": (32, 32, 3), "fashion_mnist": (28, 28, 1)}


def _sha256(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


# ---- digits


def test_the_split_of_digits_is_pinned():
    # NumPy may change the stream of default_rng; published numbers are those of this split.
    digits = load("digits")
    assert digits.train.images.shape == (1437, 8, 8, 1) and digits.max_value == 16
    assert digits.class_names == tuple("0123456789")
    assert _sha256(digits.train.labels.astype(np.uint8)) == PINNED_TRAIN
    assert _sha256(digits.test.images) == PINNED_TEST


def test_the_first_images_of_a_set_are_trained_on_and_all_of_its_test_split_is_tested_on():
    few, digits = load("digits[:100]"), load("digits")
    np.testing.assert_array_equal(few.train.images, digits.train.images[:100])
    np.testing.assert_array_equal(few.test.labels, digits.test.labels)
    assert few.mean != digits.mean and few.name == "digits[:100]"
    with pytest.raises(ValueError, match=r"'digits\[:1438\]' found; it has 1,437 training images"):
        load("digits[:1438]")


PINNED_TRAIN = "2b11282ac0c9af15c6e440ea3209a19e467e9c3f5787227001b1e8de89b6cafa"
PINNED_TEST = "fe6e2083756fdae81f16c5e5d75e3b22573ec192a46d4d9f7314883b9dd63848"


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="^unknown data set 'cifr10'; known are digits, "):
        load("cifr10")


# ---- TensorFlow Datasets


def _write_tfds(data_dir, name, sizes):
    """Writes random images with TFDS's own builder; returns {split: [(image, label), ...]}."""
    import tensorflow_datasets as tfds

    rng = np.random.default_rng(0)
    written = {}
    for split, size in sizes.items():
        images = rng.integers(0, 256, (size, *SHAPES[name]), np.uint8)
        labels = rng.integers(0, 10, size)
        written[split] = list(zip(images, labels.tolist(), strict=True))

    def example(index, image, label):
        extra = {"id": str(index)} if name == "svhn_cropped" else {}
        return index, {"image": Image.fromarray(image.squeeze()), "label": label, **extra}

    splits = {
        split: [example(index, *each) for index, each in enumerate(pairs)]
        for split, pairs in written.items()
    }
    prepare(tfds.builder(name, data_dir=data_dir), splits)
    return written


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder with small copies of TFDS data sets, and what was written there."""
    data_dir = tmp_path_factory.mktemp("tfds")
    sizes = {"fashion_mnist": 1_050}  # more than a chunk of the reader
    written = {
        name: _write_tfds(data_dir, name, {"train": sizes.get(name, 300), "test": 20})
        for name in SHAPES
    }
    return data_dir, written


@pytest.mark.parametrize("name", SHAPES)
def test_what_was_written_is_loaded_in_the_order_of_the_files(tiny, name):
    import tensorflow_datasets as tfds

    data_dir, written = tiny
    dataset = load(name, data_dir)
    assert (dataset.name, dataset.num_classes, dataset.max_value) == (name, 10, 255)
    assert dataset.class_names[3] == {"svhn_cropped": "3", "fashion_mnist": "Dress"}[name]
    for split_name in ("train", "test"):
        split = getattr(dataset, split_name)
        assert (split.images.dtype, split.labels.dtype) == (np.uint8, np.int32)
        loaded = [(i.tobytes(), int(n)) for i, n in zip(split.images, split.labels, strict=True)]
        stored = [(i.tobytes(), n) for i, n in written[name][split_name]]
        assert Counter(loaded) == Counter(stored)
        source = tfds.data_source(name, split=split_name, data_dir=data_dir)
        assert loaded == [(example["image"].tobytes(), example["label"]) for example in source]


def test_a_missing_data_set_names_the_folder_and_the_command(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        load("svhn_extra", tmp_path / "none")
    message = str(error.value)
    assert message.startswith(f"svhn_cropped is not in {tmp_path}/none/svhn_cropped/")
    # The command must pass the shell and be Python.
    (command,) = re.findall("`(.*)`", message)
    python, flag, code = shlex.split(command)
    assert (python, flag) == ("python", "-c")
    _, prepare = ast.parse(code).body
    assert ast.unparse(prepare) == (
        f"tfds.builder('svhn_cropped', data_dir={str(tmp_path / 'none')!r})"
        ".download_and_prepare(file_format='array_record')"
    )
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("damage", ["truncated", "flipped bit", "missing", "description"])
def test_a_damaged_file_is_refused_with_its_folder(tiny, tmp_path, damage):
    shutil.copytree(tiny[0] / "svhn_cropped", tmp_path / "svhn_cropped")
    folder = tmp_path / "svhn_cropped" / "3.1.0"
    (path,) = folder.glob("*-train.array_record-*")
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "flipped bit":
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif damage == "missing":
        path.unlink()
    else:
        (folder / "dataset_info.json").write_text("{")
        folder = folder.parent  # which version it is, is not known; never the folder of them all
    with pytest.raises(OSError, match=re.escape(f"svhn_cropped in {folder} cannot be read (")):
        load("svhn_cropped", tmp_path)


def test_svhn_extra_trains_on_both_splits(tmp_path):
    written = _write_tfds(tmp_path, "svhn_cropped", {"train": 30, "test": 20, "extra": 40})
    plain, extra = load("svhn_cropped", tmp_path), load("svhn_extra", tmp_path)
    assert extra.name == "svhn_extra" and len(plain.train.labels) == 30
    np.testing.assert_array_equal(extra.train.images[:30], plain.train.images)
    np.testing.assert_array_equal(extra.test.images, plain.test.images)
    loaded = zip(extra.train.images[30:], extra.train.labels[30:], strict=True)
    stored = Counter((image.tobytes(), label) for image, label in written["extra"])
    assert Counter((image.tobytes(), int(label)) for image, label in loaded) == stored
    assert extra.mean != plain.mean  # the statistics are those of what is trained on
