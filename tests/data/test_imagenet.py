"""A prepared data set in ImageNet's format: what is on disk is read, and bad data is named."""

import json
import re
import shutil

import pytest

from nf_resnets.data import imagenet
from tests import photographs


def test_what_was_written_is_read(photographs_dir):
    found = imagenet.open_encoded(photographs_dir)
    assert found.name == "imagenet2012" and found.num_classes == 1000
    assert found.class_names[0] == "n01440764" and len(found.class_names) == 1000
    assert {name: split.num_examples for name, split in found.splits.items()} == {
        "train": photographs.TRAIN,
        "validation": photographs.VALIDATION,
    }
    split = found.splits["train"]
    read = {split[index].where.split("(")[1].rstrip(")") for index in range(photographs.TRAIN)}
    assert read == {name for _, _, name in photographs.examples()["train"]}


def test_a_label_out_of_range_is_named(tmp_path):
    # That of ImageNet's own test split, whose labels are not public.
    content, _, name = photographs.examples()["train"][0]
    photographs.write(tmp_path, {"test": [(content, -1, name)]})
    split = imagenet.open_encoded(tmp_path).splits["test"]
    where = re.escape(f"imagenet2012, test split, example 0 ({name}): label -1 found")
    with pytest.raises(ValueError, match=where):
        split[0]


def test_other_formats_are_refused(photographs_dir, tmp_path):
    shutil.copytree(photographs_dir / "imagenet2012", tmp_path / "imagenet2012")
    (info,) = tmp_path.glob("*/*/dataset_info.json")
    info.write_text(json.dumps({**json.loads(info.read_text()), "fileFormat": "tfrecord"}))
    with pytest.raises(ValueError, match=f"{info.parent} is in tfrecord format; expected array"):
        imagenet.open_encoded(tmp_path)
