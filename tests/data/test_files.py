"""Data sets from CIFAR's binary files and from ``.npz`` files."""

import numpy as np
import pytest

from nf_resnets import data

NAMES = tuple(f"class_{i}" for i in range(10))


@pytest.fixture
def cifar(tmp_path):
    """A folder of three images a file, as the authors' page describes it, and its images."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (18, 32, 32, 3), np.uint8)
    for at, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        # A label, then 1,024 bytes of red, of green and of blue, row by row.
        records = [
            bytes([row % 10]) + b"".join(images[row, :, :, c].tobytes() for c in range(3))
            for row in range(3 * at, 3 * at + 3)
        ]
        (folder / f"{name}.bin").write_bytes(b"".join(records))
    (folder / "batches.meta.txt").write_text("\n".join(NAMES) + "\n\n")
    return folder, images


def test_cifars_binary_files_are_read_in_their_order(cifar):
    folder, images = cifar
    for found in (data.load(str(folder)), data.load("cifar10", folder.parent)):
        np.testing.assert_array_equal(found.train.images, images[:15])
        np.testing.assert_array_equal(found.test.images, images[15:])
        np.testing.assert_array_equal(found.train.labels, np.arange(15) % 10)
        assert found.class_names == NAMES
    assert data.load("cifar10", folder).name == "cifar10"


def test_the_name_says_which_cifar_is_read(cifar):
    folder, _ = cifar
    for name in ("train", "test"):
        (folder / f"{name}.bin").write_bytes(bytes([3, 7, *[0] * 3072, 3, 8, *[9] * 3072]))
    (folder / "fine_label_names.txt").write_text("\n".join(f"fine_{i}" for i in range(100)))
    assert data.load("cifar100", folder).num_classes == 100
    assert data.load("cifar10", folder).num_classes == 10


def test_a_cut_or_missing_binary_file_is_named(cifar):
    folder, _ = cifar
    file = folder / "data_batch_3.bin"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="data_batch_3.bin has 9,218 bytes; expected a multiple"):
        data.from_cifar(folder)
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"data_batch_3.bin"):
        data.from_cifar(folder)


IMAGES = np.random.default_rng(1).integers(0, 256, (20, 4, 4, 1), np.uint8)
LABELS = np.arange(20) % 2


@pytest.mark.parametrize(
    "labels", [LABELS[:, None], np.eye(2)[LABELS], np.array([b"cat", b"dog"])[LABELS]]
)
def test_labels_of_arrays_in_every_form(tmp_path, labels):
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=labels)
    np.savez(tmp_path / "b.npz", x_train=IMAGES, y_train=labels, x_test=IMAGES, y_test=labels)
    expected = data.from_arrays(IMAGES, LABELS)
    found = data.load(tmp_path / "a.npz")
    np.testing.assert_array_equal(found.train.labels, expected.train.labels)
    np.testing.assert_array_equal(found.test.images, expected.test.images)
    np.testing.assert_array_equal(data.load(str(tmp_path / "b.npz")).test.labels, LABELS)
    assert found.class_names == (("cat", "dog") if labels.dtype.kind in "SU" else ("0", "1"))


def test_texts_follow_the_order_of_the_names():
    texts = np.array(["dog", "cat"])[LABELS]
    found = data.from_arrays(IMAGES, texts, class_names=("dog", "cat"), test=(IMAGES, texts))
    np.testing.assert_array_equal(found.test.labels, LABELS)
    of_pandas = data.from_arrays(IMAGES, texts.astype(object))
    assert of_pandas.class_names == ("cat", "dog")
    with pytest.raises(ValueError, match=r"labels of int64 found, of shape \(20, 1, 1\); expected"):
        data.from_arrays(IMAGES, LABELS[:, None, None])
    with pytest.raises(ValueError, match="label 'cow'"):
        data.from_arrays(IMAGES, texts, test=(IMAGES, np.full(20, "cow")))
    with pytest.raises(ValueError, match=r"labels of shape \(20, 2\) are not one-hot"):
        data.from_arrays(IMAGES, np.ones((20, 2)))


def test_what_is_no_file_of_arrays_is_refused(tmp_path):
    file = tmp_path / "mine.npz"
    objects = np.array([object()] * 20)  # a pickle, which may run anything
    for arrays, left, said in (
        ({"a": IMAGES}, None, "has no array images"),
        ({"images": IMAGES}, None, "has no array labels"),
        ({"images": IMAGES, "labels": objects}, None, "cannot be read; expected an .npz file"),
        ({"images": IMAGES, "labels": LABELS}, -100, "cannot be read; expected an .npz file"),
    ):
        np.savez(file, **arrays)
        file.write_bytes(file.read_bytes()[:left])
        with pytest.raises(ValueError, match=rf"mine.npz {said}"):
            data.from_npz(file)
