"""Files that are whole and wrong: one sentence for each, and nothing steers a terminal."""

import json
import re

import numpy as np
import pytest

from nf_resnets import trained
from nf_resnets.cli import networks as command
from nf_resnets.command_line import finish
from nf_resnets.trained.pictures import write_picture
from tests.trained.networks import drawn, forge, refused, saved, set_at, takes, wide_resnet


def field(name, value):
    return set_at("model", "fields", name, value=value)


DEEP = json.loads("[" * 60 + "]" * 60)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_at("model", "class", value="WideResnet"), "'WideResnet'"),
        (field("colour", "red"), "colour"),
        (field("width", 2), r"leaf 'params/\S+' has shape"),
        (set_at("inputs", "kind", value="sentences"), "inputs/source_vocabulary"),
        (set_at("inputs", "class_names", value=["a", "b"]), "2 class_names"),
        (set_at("format", value=2), "its format is 2; this version reads 1"),
        (field("depth", int("9" * 400)), "depth=9"),
        (field("scheme", "x" * 5_000), r"scheme='xxx.* \.\.\. .*"),
        (field("dtype", DEEP), "attribute name must be string"),
        (set_at("inputs", "kind", value=["images"]), "unhashable"),
        (set_at("inputs", "shape", value=[1 << 20, 1 << 20, 1]), "shape="),
        (set_at("inputs", "crop", value=10**400), "crop=1000"),
    ],
)
def test_a_whole_file_of_something_else_is_refused(tmp_path, change, message):
    path, _ = saved(tmp_path / "net")
    forge(path, change)
    assert re.search(message, refused(path))


def test_nothing_that_steers_a_terminal_is_printed(tmp_path, capsys):
    evil = "\x1b]0;owned\x07\x1b[31m\u202e\ud800\n\r"
    made = wide_resnet()
    names = tuple(f"{evil}{i}" for i in range(10))
    path = trained.save(tmp_path / "net", made, drawn(made), inputs=takes())
    forge(path, lambda manifest: (
        manifest["inputs"].update(class_names=list(names)),
        manifest["notes"].update({evil: [evil]}),
        manifest["versions"].update({evil: evil}),
    ))  # fmt: skip
    write_picture(tmp_path / "a.png", np.zeros((8, 8, 1)), takes())
    assert finish(command.Show(path)) == 0
    assert finish(command.Predict(path, (tmp_path / "a.png",))) == 0
    forge(path, lambda manifest: manifest["model"].update({"class": evil}))
    assert finish(command.Show(path)) == 2
    found = capsys.readouterr()
    for letter in found.out + found.err:
        assert letter == "\n" or letter.isprintable()
    assert found.out.count("\\x1b]0;owned") >= 12
