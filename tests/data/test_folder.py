"""Data sets of the user's own: from folders of images, and from arrays."""

import dataclasses
import re

import numpy as np
import pytest
from PIL import Image

from nf_resnets.data import Split, from_arrays, from_folder, from_splits, load
from nf_resnets.trained.inputs import Images
from nf_resnets.trained.pictures import read_picture


def write(path, size=(8, 6), seed=0, grey=False):
    """Writes an image of random pixels, of a width and a height."""
    shape = (size[1], size[0]) if grey else (size[1], size[0], 3)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, np.uint8)).save(path)


@pytest.fixture
def photos(tmp_path):
    """Ten images of cats and five of dogs."""
    for index in range(10):
        write(tmp_path / "cat" / f"{index}.png", seed=index)
    for index in range(5):
        write(tmp_path / "dog" / f"{index}.png", seed=100 + index)
    return tmp_path


def pixels(path):
    return np.asarray(Image.open(path))


def test_every_image_is_there_once_with_its_folders_label(photos):
    dataset = from_folder(photos)
    assert dataset.class_names == ("cat", "dog")
    assert dataset.train.images.shape == (12, 6, 8, 3) and dataset.test.images.shape == (3, 6, 8, 3)
    paths, labels = sorted(photos.glob("*/*.png")), np.repeat([0, 1], [10, 5])
    # The split, as the docstring has it, from NumPy alone: a fifth of each class.
    order = np.random.default_rng(0).permutation(15)
    test = {*order[labels[order] == 0][:2], *order[labels[order] == 1][:1]}
    for rows, split in (
        ([row for row in order if row not in test], dataset.train),
        ([row for row in order if row in test], dataset.test),
    ):
        np.testing.assert_array_equal(split.images, [pixels(paths[row]) for row in rows])
        np.testing.assert_array_equal(split.labels, labels[rows])
    every = dataset.train.images.astype(np.float64)
    np.testing.assert_allclose(dataset.mean, every.mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(dataset.std, every.std((0, 1, 2)), rtol=1e-12)


def test_folders_for_the_splits_are_used(tmp_path):
    name = "validation"
    for split, count in (("train", 3), (name, 2)):
        for label, animal in enumerate(("cat", "dog")):
            for index in range(count):
                write(tmp_path / split / animal / f"{index}.png", seed=10 * label + index)
    write(tmp_path / "train" / "cat" / "deeper" / "9.PNG", seed=9)
    dataset = from_folder(tmp_path)
    assert np.bincount(dataset.train.labels).tolist() == [4, 3]
    assert dataset.test.labels.tolist() == [0, 0, 1, 1]
    np.testing.assert_array_equal(dataset.test.images[2], pixels(tmp_path / name / "dog" / "0.png"))
    write(tmp_path / name / "mouse" / "0.png")
    with pytest.raises(ValueError, match="cat, dog to train on and cat, dog, mouse to test on"):
        from_folder(tmp_path)


def test_images_are_resized_as_predict_reads_them(photos, monkeypatch):
    write(photos / "cat" / "0.jpg", (31, 17))
    write(photos / "cat" / "00.jpeg", (17, 40), grey=True)
    dataset = from_folder(photos, size=(6, 8))
    everything = [*dataset.train.images, *dataset.test.images]
    for name in ("0.jpg", "00.jpeg"):
        read = read_picture(photos / "cat" / name, Images.of(dataset))
        # Pixels of 8 bits: what is read for a prediction has passed through a division by 255.
        assert any(np.abs(read - image).max() < 1e-3 for image in everything)
    monkeypatch.chdir(photos.parent)
    np.testing.assert_array_equal(load(f"{photos.name}@6x8").train.images, dataset.train.images)
    assert load(f"{photos}@5").train.images.shape[1:] == (5, 5, 3)


def test_of_sixteen_bits_of_grey_the_upper_eight_are_kept(tmp_path):
    for name, most, levels in (("cat", 1023, [0, 512, 1023]), ("dog", 65535, [0, 32768, 65535])):
        (tmp_path / name).mkdir()
        for index in range(5):
            data = f"P5 3 1 {most} ".encode() + np.array(levels, ">u2").tobytes()
            (tmp_path / name / f"{index}.pgm").write_bytes(data)
    images = from_folder(tmp_path).train.images
    np.testing.assert_array_equal(images[..., 0], np.broadcast_to([[0, 128, 255]], (8, 1, 3)))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("empty/a.txt", b"", "empty has no images"),
        ("dog/9.png", b"text", "9.png cannot be read as an image"),
        ("test/cat/1.png", b"", "has the folders cat, dog, test"),
        ("dog/9.pgm", b"P5 1 1 255 \0", "9.pgm has (1, 1) pixels, and"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_by_name(photos, file, content, message):
    (photos / file).parent.mkdir(parents=True, exist_ok=True)
    (photos / file).write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        from_folder(photos)


def test_arrays_become_a_data_set():
    rng = np.random.default_rng(1)
    images, labels = rng.random((20, 4, 4)), np.arange(20) % 2
    dataset = from_arrays(images, labels)
    assert dataset.train.images.shape == (16, 4, 4, 1) and dataset.max_value == 1
    assert dataset.class_names == ("0", "1") and dataset.train.labels.dtype == np.int32
    given = from_arrays(images, labels, test=(images[:3], labels[:3]), class_names=("a", "b"))
    assert len(given.train.labels) == 20 and given.test.labels.tolist() == [0, 1, 0]
    order = np.random.default_rng(0).permutation(20)
    np.testing.assert_array_equal(given.train.images[..., 0], images[order])
    np.testing.assert_array_equal(given.train.labels, labels[order])


def test_labels_are_integers_and_every_class_has_a_name():
    split = Split(np.arange(32, dtype=np.uint8).reshape(8, 2, 2, 1), np.arange(8) % 2)
    dataset = from_splits("mine", split, split, ("a", "b"))
    with pytest.raises(ValueError, match="mine, train split: labels of float64 found"):
        from_splits("mine", Split(split.images, split.labels + 0.0), split, ("a", "b"))
    with pytest.raises(ValueError, match=r"class_names=.*'c'\) found; expected 2"):
        dataclasses.replace(dataset, class_names=("a", "b", "c"))


IMAGES, LABELS = np.arange(8 * 192, dtype=np.uint8).reshape(8, 8, 8, 3), np.arange(8) % 2


def with_pixel(value):
    images = IMAGES.astype(np.float32)
    images[2, 0, 1, 2] = value
    return images


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"images": np.moveaxis(IMAGES, -1, 1)}, r"\(., 3, 8, 8\) look like \[N, C, H, W\]"),
        ({"images": IMAGES[:7]}, "7 images and 8 labels"),
        ({"images": IMAGES.astype(np.int64)}, "images of int64"),
        ({"images": with_pixel(np.nan), "max_value": 255}, "pixel .* is nan"),
        ({"images": with_pixel(-1), "max_value": 255}, "pixel .* is -1.0"),
        ({"images": IMAGES + 0.0}, "pixel .*; expected 0 to 1.0"),
        ({"images": IMAGES / 255, "max_value": 255.0}, "as of images scaled to 0 to 1"),
        ({"images": 0 * IMAGES}, "a constant channel cannot be normalized"),
        ({"test": (IMAGES / 255, LABELS)}, "test split: the largest pixel is 1.0"),
        ({"test": (IMAGES[:, 1:], LABELS)}, r"test images of \(7, 8, 3"),
        ({"test": (IMAGES, LABELS + 1)}, "label 1 is 2"),
        ({"labels": LABELS + 1}, "labels 1 to 2 of 2 classes found"),
        ({"labels": LABELS - 1}, "labels -1 to 0 of 2 classes found"),
        ({"labels": LABELS + 2**40}, "labels of int64"),
        ({"labels": LABELS / 1}, "labels of float64"),
        ({"labels": 0 * LABELS}, "all .* labels are 0"),
        ({"labels": np.arange(8) // 7}, "class 1 has one image"),
        ({"class_names": ("a", "a")}, r"class_names=\('a', 'a'\)"),
    ],
)
def test_arrays_that_cannot_be_trained_on_are_refused(arguments, message):
    given = {"images": IMAGES, "labels": LABELS, **arguments}
    with pytest.raises(ValueError, match=message):
        from_arrays(given.pop("images"), given.pop("labels"), **given)
