"""A prepared data set in ImageNet's format: what is on disk is read, and bad data is named."""

import json
import shutil

import numpy as np
import pytest

from nf_resnets.data import imagenet
from nf_resnets.data.decode import ImageFile
from tests import photographs


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return photographs.data_dir(tmp_path_factory)


def test_what_was_written_is_read(data_dir):
    found = imagenet.open_encoded(data_dir)
    assert found.name == "imagenet2012" and found.num_classes == 1000
    assert found.class_names[0] == "n01440764" and len(found.class_names) == 1000
    assert {name: split.num_examples for name, split in found.splits.items()} == {
        "train": photographs.TRAIN,
        "validation": photographs.VALIDATION,
    }
    written = {name: (content, label) for content, label, name in photographs.examples()["train"]}
    split, names = found.split("train"), set()
    for index in range(split.num_examples):
        read = split[index]
        name = read.where.split("(")[1].rstrip(")")
        assert read.where == f"imagenet2012, train split, example {index} ({name})"
        content, label = written[name]
        assert read.label == label
        names.add(name)
        size = (read.image.width, read.image.height)
        box = (0, 0, *size)
        np.testing.assert_array_equal(
            read.image.pixels(box, 16), ImageFile(content).pixels(box, 16)
        )
    assert len(names) == photographs.TRAIN
    with pytest.raises(ValueError, match="split='test' found; imagenet2012 has train, validation"):
        found.split("test")


def copied(data_dir, folder):
    shutil.copytree(data_dir / "imagenet2012", folder / "imagenet2012")
    (found,) = (folder / "imagenet2012").iterdir()
    return found


def test_a_label_out_of_range_is_named(tmp_path):
    # That of ImageNet's own test split, whose labels are not public.
    content, _, name = photographs.examples()["train"][0]
    photographs.write(tmp_path, {"test": [(content, -1, name)]})
    split = imagenet.open_encoded(tmp_path).split("test")
    with pytest.raises(ValueError) as error:
        split[0]
    assert str(error.value) == (
        f"imagenet2012, test split, example 0 ({name}): label -1 found; expected a class in"
        " [0, 1000)."
    )


def test_what_is_no_image_is_named(tmp_path):
    content, label, _ = photographs.examples()["train"][0]
    text = b"This is the list of all that you have to read.\n"
    photographs.write(tmp_path, {"train": [(text, label, "readme.txt")]})
    split = imagenet.open_encoded(tmp_path).split("train")
    with pytest.raises(ValueError) as error:
        split[0]
    assert str(error.value) == (
        "imagenet2012, train split, example 0 (readme.txt): 47 bytes that begin with"
        " b'This is the ' found; expected a JPEG or PNG image."
    )


def test_a_set_that_nobody_knows_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"my_photos is not in {tmp_path}; with"):
        imagenet.open_encoded(tmp_path, "my_photos")


def test_other_formats_are_refused(data_dir, tmp_path):
    folder = copied(data_dir, tmp_path)
    info = folder / "dataset_info.json"
    content = json.loads(info.read_text())
    info.write_text(json.dumps({**content, "fileFormat": "tfrecord"}))
    with pytest.raises(ValueError) as error:
        imagenet.open_encoded(tmp_path)
    assert str(error.value).startswith(
        f"imagenet2012 in {folder} is in tfrecord format; expected array_record, whose images can"
    )


def under_another_name(data_dir, folder, change):
    """A set whose description TFDS has nowhere but in its folder, with other features."""
    made = folder / "my_photos" / "1.0.0"
    shutil.copytree(next((data_dir / "imagenet2012").iterdir()), made)
    for path in made.glob("imagenet2012-*"):
        path.rename(made / path.name.replace("imagenet2012", "my_photos"))
    info = made / "dataset_info.json"
    renamed = info.read_text().replace("imagenet2012", "my_photos").replace('"5.1.0"', '"1.0.0"')
    info.write_text(renamed)
    features = made / "features.json"
    described = json.loads(features.read_text())
    change(described["featuresDict"]["features"])
    features.write_text(json.dumps(described))
    return made


def test_the_number_of_classes_is_that_of_the_description(data_dir, tmp_path):
    def five_classes(fields):
        fields["label"]["classLabel"]["numClasses"] = "5"

    made = under_another_name(data_dir, tmp_path, five_classes)
    (made / "label.labels.txt").write_text("a\nb\nc\nd\ne\n")
    found = imagenet.open_encoded(tmp_path, "my_photos")
    assert (found.num_classes, found.class_names) == (5, tuple("abcde"))
    split, refused = found.split("validation"), 0
    for index in range(split.num_examples):
        try:
            assert split[index].label < 5
        except ValueError as error:
            refused += 1
            assert f"my_photos, validation split, example {index} (n0" in str(error)
            assert str(error).endswith("found; expected a class in [0, 5).")
    labels = [label for _, label, _ in photographs.examples()["validation"]]
    assert refused == sum(label >= 5 for label in labels) > 0


def test_a_set_without_images_is_refused(data_dir, tmp_path):
    made = under_another_name(
        data_dir, tmp_path, lambda fields: fields.update(picture=fields.pop("image"))
    )
    with pytest.raises(ValueError) as error:
        imagenet.open_encoded(tmp_path, "my_photos")
    message = str(error.value)
    assert message.startswith(f"my_photos in {made} has ") and "picture" in message
    assert message.endswith("; expected an image and a label.")


def test_a_truncated_file_is_refused_with_its_folder(data_dir, tmp_path):
    folder = copied(data_dir, tmp_path)
    (file,) = folder.glob("*-train.array_record-*")
    file.write_bytes(file.read_bytes()[:10_000])
    with pytest.raises(OSError) as error:
        imagenet.open_encoded(tmp_path).split("train")[100]
    assert f"in {folder} cannot be read (" in str(error.value)
    assert "delete that folder and prepare the data set again." in str(error.value)
