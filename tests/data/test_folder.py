"""Data sets of the user's own: from folders of images, and from arrays."""

import os
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
    found = {
        (image.tobytes(), int(label))
        for split in (dataset.train, dataset.test)
        for image, label in zip(split.images, split.labels, strict=True)
    }
    files = [(photos / "cat" / f"{i}.png", 0) for i in range(10)]
    files += [(photos / "dog" / f"{i}.png", 1) for i in range(5)]
    assert found == {(pixels(path).tobytes(), label) for path, label in files}
    # A fifth of each class.
    assert np.bincount(dataset.test.labels).tolist() == [2, 1]
    every = dataset.train.images.astype(np.float64)
    np.testing.assert_allclose(dataset.mean, every.mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(dataset.std, every.std((0, 1, 2)), rtol=1e-12)


def test_the_split_is_the_stated_one(photos):
    # As the docstring says, from NumPy alone.
    labels = np.repeat([0, 1], [10, 5])
    order = np.random.default_rng(0).permutation(15)
    test = [*order[labels[order] == 0][:2], *order[labels[order] == 1][:1]]
    train = [row for row in order if row not in test]
    dataset = from_folder(photos)
    paths = sorted(photos.glob("*/*.png"))
    for row, image in zip(train, dataset.train.images, strict=True):
        np.testing.assert_array_equal(image, pixels(paths[row]))
    # The first images, which some schemes look at, are of several classes.
    assert len(np.unique(dataset.train.labels[:6])) == 2


@pytest.mark.parametrize("name", ["test", "val", "validation"])
def test_folders_for_the_splits_are_used(tmp_path, name):
    for split, count in (("train", 3), (name, 2)):
        for label, animal in enumerate(("cat", "dog")):
            for index in range(count):
                write(tmp_path / split / animal / f"{index}.png", seed=10 * label + index)
    write(tmp_path / "train" / "cat" / "deeper" / "9.PNG", seed=9)
    write(tmp_path / "other" / "mouse" / "1.png", (3, 3))
    dataset = from_folder(tmp_path)
    assert np.bincount(dataset.train.labels).tolist() == [4, 3]
    assert dataset.test.labels.tolist() == [0, 0, 1, 1]
    np.testing.assert_array_equal(dataset.test.images[2], pixels(tmp_path / name / "dog" / "0.png"))
    write(tmp_path / name / "mouse" / "0.png")
    with refused(f"{tmp_path / name / 'mouse'} is a class without images to train on"):
        from_folder(tmp_path)


def test_images_are_resized_as_predict_reads_them(photos):
    write(photos / "cat" / "0.jpg", (31, 17))
    write(photos / "cat" / "00.jpeg", (17, 40), grey=True)
    dataset = from_folder(photos, size=(6, 8))
    everything = [*dataset.train.images, *dataset.test.images]
    for name in ("0.jpg", "00.jpeg"):
        read = read_picture(photos / "cat" / name, Images.of(dataset))
        # Pixels of 8 bits: what is read for a prediction has passed through a division by 255.
        assert any(np.abs(read - image).max() < 1e-3 for image in everything)
    twin = load(f"{photos}@6x8")
    np.testing.assert_array_equal(twin.train.images, dataset.train.images)
    assert load(f"{photos}@5").train.images.shape[1:] == (5, 5, 3)


def test_grey_images_have_one_channel(tmp_path):
    for name in ("a", "b"):
        for index in range(2):
            write(tmp_path / name / f"{index}.png", seed=index, grey=True)
    assert from_folder(tmp_path).train.images.shape == (2, 6, 8, 1)


def test_images_of_other_formats_are_read(photos):
    endings = (".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
    for ending in endings:
        write(photos / "cat" / f"more{ending}", grey=ending == ".pgm")
        write(photos / "dog" / f"more{ending.upper()}", grey=ending == ".pgm")
    dataset = from_folder(photos)
    assert len(dataset.train.labels) + len(dataset.test.labels) == 15 + 2 * len(endings)


def test_other_files_are_passed_over(photos):
    (photos / "cat" / "Thumbs.db").write_bytes(b"x")
    (photos / "cat" / "._0.png").write_bytes(b"x")
    (photos / "readme.txt").write_text("x")
    (photos / ".cache").mkdir()
    write(photos / "cat" / ".ipynb_checkpoints" / "0-checkpoint.png")
    write(photos / "dog" / "more" / ".thumbnails" / "0.png")
    (photos / "dog" / "folder.png").mkdir()
    assert len(from_folder(photos).train.labels) == 12


def test_of_sixteen_bits_of_grey_the_upper_eight_are_kept(photos):
    for name in ("cat", "dog"):
        for path in (photos / name).iterdir():
            path.unlink()
        for index in range(5):
            header = f"P5 3 1 {2**10 - 1 if name == 'cat' else 2**16 - 1} ".encode()
            levels = [0, 512, 1023] if name == "cat" else [0, 32768, 65535]
            (photos / name / f"{index}.pgm").write_bytes(header + np.array(levels, ">u2").tobytes())
    images = from_folder(photos).train.images
    np.testing.assert_array_equal(images[..., 0], np.broadcast_to([[0, 128, 255]], (8, 1, 3)))


def test_a_relative_path_is_a_data_set(photos, monkeypatch):
    monkeypatch.chdir(photos.parent)
    assert len(load(photos.name).train.labels) == 12
    assert len(load(os.path.join(".", photos.name)).train.labels) == 12


def test_a_folder_whose_name_ends_like_a_size_is_read_as_it_is(photos, monkeypatch):
    monkeypatch.chdir(photos.parent)
    dataset = load(f"{photos.name}@4")
    assert dataset.train.images.shape[1:3] == (4, 4)
    photos.rename(photos.with_name(f"{photos.name}@4"))
    assert load(f"{photos.name}@4").train.images.shape[1:3] == (6, 8)
    assert load(f"{photos.name}@4@5").train.images.shape[1:3] == (5, 5)


def refused(text):
    return pytest.raises(ValueError, match=re.escape(text))


def test_what_cannot_be_trained_on_is_refused_by_name(photos):
    with refused(f"{photos / 'nowhere'} is no folder"):
        load(str(photos / "nowhere"))
    (photos / "empty").mkdir()
    with refused(f"{photos / 'empty'} has no folder of images"):
        from_folder(photos / "empty")
    with refused(f"{photos / 'empty'} has no images; expected files that end in .png, .jpg"):
        from_folder(photos)
    (photos / "empty").rmdir()
    with refused("size=0 found"):
        from_folder(photos, size=0)
    write(photos / "dog" / "5.png", (8, 7))
    with refused(f"{photos / 'dog' / '5.png'} has 7 x 8 pixels, and {photos / 'cat' / '0.png'} "
                 "6 x 8; expected images of one size, or a size to resize "
                 "them to, such as size=32 (--dataset PATH@32)."):  # fmt: skip
        from_folder(photos)
    whole = (photos / "dog" / "4.png").read_bytes()
    (photos / "dog" / "4.png").write_bytes(whole[: len(whole) // 2])
    with refused(f"{photos / 'dog' / '4.png'} cannot be read as an image"):
        from_folder(photos)
    (photos / "cat" / "3.png").write_text("no image")
    with refused(f"{photos / 'cat' / '3.png'} is no image that can be read"):
        from_folder(photos)
    (photos / "cat" / "3.png").unlink()
    (photos / "cat" / "3.png").symlink_to(photos / "nowhere.png")
    with refused(f"{photos / 'cat' / '3.png'} cannot be read: No such file or directory."):
        from_folder(photos)
    with refused(f"{photos} has one class only, 'dog'; expected"):
        for path in (photos / "cat").iterdir():
            path.unlink()
        (photos / "cat").rmdir()
        from_folder(photos)


def test_arrays_become_a_data_set():
    rng = np.random.default_rng(1)
    images, labels = rng.random((20, 4, 4)), np.arange(20) % 2
    dataset = from_arrays(images, labels)
    assert dataset.train.images.shape == (16, 4, 4, 1) and dataset.max_value == 1
    assert dataset.class_names == ("0", "1") and dataset.train.labels.dtype == np.int32
    given = from_arrays(images, labels, test=(images[:3], labels[:3]), class_names=("a", "b"))
    of_array = from_arrays(images, labels, class_names=np.array(["a", "b"]))  # as sklearn has them
    assert of_array.class_names == given.class_names
    assert len(given.train.labels) == 20 and given.test.labels.tolist() == [0, 1, 0]
    order = np.random.default_rng(0).permutation(20)
    np.testing.assert_array_equal(given.train.images[..., 0], images[order])
    np.testing.assert_array_equal(given.train.labels, labels[order])


def test_arrays_that_cannot_be_trained_on_are_refused():
    images, labels = np.zeros((4, 2, 2), np.uint8), np.array([0, 0, 1, 1])
    with refused("class 'b' has one image"):
        from_arrays(images[:3], labels[:3], class_names=("a", "b"))
    with refused("4 images but 3 labels"):
        from_arrays(images, labels[:3])
    with refused("labels must be integers"):
        from_arrays(images, labels / 1)
    with refused("label 2 is 1, expected a class in [0, 1)"):
        from_arrays(images, labels, class_names=("a",))
    with refused("pixel (0, 0, 0, 0) is 2.0, expected at most max_value=1.0"):
        from_arrays(images + 2.0, labels)


def test_splits_of_other_names_are_no_classes(tmp_path):
    for split in ("train", "holdout"):
        for index, name in enumerate(("cat", "dog")):
            write(tmp_path / split / name / "1.png", seed=index)
    with pytest.raises(ValueError, match=r"folders holdout, train, each with cat, dog in it.*val"):
        from_folder(tmp_path)
    (tmp_path / "holdout").rename(tmp_path / "valid")
    assert from_folder(tmp_path).class_names == ("cat", "dog")


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (("cat/1", "dog/1", "test/cat/1", "test/dog/1"), "test has the folders cat, dog, as a"),
        (
            ("training/cat/1", "training/dog/1", "test/cat/1"),
            "test has the folders cat, as a",
        ),
        (("train/cat/1", "train/dog/1", "test/1"), "test has no folder; expected one for each cl"),
    ],
)
def test_a_split_is_no_class_and_has_classes(tmp_path, files, sentence):
    for seed, file in enumerate(files):
        write(tmp_path / f"{file}.png", seed=seed)
    with pytest.raises(ValueError, match=sentence):
        from_folder(tmp_path)


@pytest.mark.parametrize("size", ["8", 8.0, (8, 8, 3), 0, (8, 5000)])
def test_a_size_that_is_none_is_named(photos, size):
    with pytest.raises(
        ValueError, match=rf"size={re.escape(repr(size))} found; expected (1 to|one number)"
    ):
        from_folder(photos, size=size)


def test_a_path_that_is_none_is_named():
    with pytest.raises(ValueError, match="path is a NoneType; expected a path"):
        from_folder(None)


_IMAGES, _LABELS = np.arange(8 * 192, dtype=np.uint8).reshape(8, 8, 8, 3), np.arange(8) % 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"images": np.moveaxis(_IMAGES, -1, 1)}, r"\(8, 3, 8, 8\) look like \[N, C, H, W\]"),
        ({"labels": _LABELS + 1}, "no training image has label 0, and the largest label is 2"),
        (
            {"labels": 1000 * _LABELS},
            "no training image has label 1, and the largest .* 1000",
        ),
        ({"labels": _LABELS - 1}, "label 0 is -1, expected 0 or more"),
        ({"labels": _LABELS + 2**40}, "the largest label is 1099511627777"),
        ({"images": _IMAGES / 127.5 - 1}, "pixel .* is -1.0, expected 0 or more"),
        ({"images": _IMAGES / 255, "max_value": 255.0}, "as of images scaled to 0 to 1"),
        (
            {"test": (_IMAGES / 255, _LABELS)},
            "test split: the largest pixel is 1.0, as of .* 0 to 1",
        ),
        ({"class_names": ("a", "a")}, r"class_names=\('a', 'a'\) found; expected no name twice"),
        ({"test": _IMAGES}, r"test is a ndarray; expected \(images, labels\)"),
        ({"test": (_IMAGES, _LABELS + 1)}, "no training image has label 2"),
        ({"class_names": {0: "cat", 1: "dog"}}, r"class_names=\(0, 1\) found; expected texts"),
        ({"class_names": "ab"}, "class_names='ab' found; expected texts"),
    ],
)
def test_arrays_of_another_meaning_are_refused(arguments, message):
    given = {"images": _IMAGES, "labels": _LABELS, **arguments}
    with pytest.raises(ValueError, match=message):
        from_arrays(given.pop("images"), given.pop("labels"), **given)


def test_a_pair_is_no_split():
    split = Split(_IMAGES, _LABELS.astype(np.int32))
    with pytest.raises(ValueError, match="mine: test is a tuple; expected data.Split"):
        from_splits("mine", split, (_IMAGES, _LABELS), ("cat", "dog"))
