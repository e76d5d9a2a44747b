"""Checkpoints that vouch for themselves and are wrong: passed over with a warning, or refused."""

import hashlib
import json
import os
import shutil
import threading

import numpy as np
import pytest

from nf_resnets.training.checkpoint import CheckpointError, Checkpoints, CheckpointWarning

TREE = {"b": np.arange(5, dtype=np.int32), "w": np.arange(100.0)}


@pytest.fixture
def newest(tmp_path):
    """The folder of the newer of two checkpoints."""
    checkpoints = Checkpoints(tmp_path / "run", {"a": 1})
    for step in (1, 2):
        checkpoints.save(step, {"b": TREE["b"] + step, "w": TREE["w"]})
    checkpoints.close()
    return tmp_path / "run" / "step_2"


def sign(folder, change=lambda manifest: None):
    """Writes a manifest anew that fits the files that there are, but for what is changed."""
    manifest = json.loads((folder / "manifest.json").read_text())["manifest"]
    for name in manifest["files"]:
        if (folder / name).is_file():
            data = (folder / name).read_bytes()
            manifest["files"][name] = [len(data), hashlib.sha256(data).hexdigest()]
    manifest = change(manifest) or manifest
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    (folder / "manifest.json").write_text(f'{{"sha256":"{digest}","manifest":{text}}}\n')


def passed_over(newest, message):
    """The older checkpoint serves in its place; what is damaged is kept."""
    with pytest.warns(CheckpointWarning, match=message):
        step, tree = Checkpoints(newest.parent, {"a": 1}).restore(TREE)
    assert step == 1 and np.array_equal(tree["b"], TREE["b"] + 1)
    assert (newest.parent / "bad-step_2").exists()


def change_array(**changes):
    def change(folder):
        path = folder / "arrays" / "leaves" / ".zarray"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
        sign(folder)

    return change


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [2**50]},
        {"shape": [2**50], "chunks": [2**50]},
        {"chunks": [2**50]},
        {"dtype": "<f8"},
        {"shape": 896},
        {"shape": []},
        {"chunks": []},
        {"chunks": None},
    ],
)
def test_an_array_of_another_size_is_not_read(newest, changes):
    change_array(**changes)(newest)
    passed_over(newest, r"\.zarray is not that of the 896 bytes of its leaves")


def test_an_array_that_is_nested_too_deeply_is_not_read(newest):
    (newest / "arrays" / "leaves" / ".zarray").write_text("[" * 200_000)
    sign(newest)
    passed_over(newest, r"\.zarray is not that of")


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("step", "2"), ("step", True), ("step", -2), ("identity", []), ("versions", None),
        ("versions", {}), ("content", 3), ("files", []), ("files", {"arrays/leaves/0": 3}),
        ("files", {"arrays/leaves/0": ["1", "a"]}), ("leaves", 3), ("leaves", [3]),
        ("leaves", [["b", 5, "int32", 0]]), ("leaves", [["b", ["5"], "int32", 0]]),
        ("leaves", [["b", [5], "int32", -64]]), ("leaves", [["b", [True], "int32", 0]]),
    ],
)  # fmt: skip
def test_wrong_types_in_a_manifest_are_damage(newest, part, value):
    sign(newest, lambda manifest: manifest.update({part: value}))
    passed_over(newest, f"has something else in place of '{part}'")


def test_leaves_in_other_places_are_damage(newest):
    def change(manifest):
        manifest["leaves"][1][3] = 2**50

    sign(newest, change)
    passed_over(newest, "has its leaves in other places")


@pytest.mark.parametrize("name", ["/dev/zero", "../step_1/manifest.json", "arrays/../../used"])
def test_files_elsewhere_are_not_read(newest, name):
    sign(newest, lambda manifest: manifest["files"].update({name: [20, "a"]}))
    passed_over(newest, "which is none of its files")


@pytest.mark.parametrize("text", ["[]", "3", "null", "[" * 200_000 + "]" * 200_000])
def test_a_manifest_that_is_none_is_damage(newest, text):
    digest = hashlib.sha256(text.encode()).hexdigest()
    (newest / "manifest.json").write_text(f'{{"sha256":"{digest}","manifest":{text}}}\n')
    passed_over(newest, "holds no names with values|is nested too deeply")


@pytest.mark.parametrize("name", ["manifest.json", "arrays/leaves/0", "arrays/leaves/.zarray"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_are_damage(newest, name, kind):
    (newest / name).unlink()
    os.mkfifo(newest / name) if kind == "pipe" else os.symlink("/dev/zero", newest / name)
    done = []

    def restore():
        passed_over(newest, f"is a {kind}; expected a file")
        done.append(name)

    # A pipe that is opened would hold the test for ever.
    thread = threading.Thread(target=restore, daemon=True)
    thread.start()
    thread.join(60)
    assert done == [name]


def test_a_format_that_is_missing_or_another_is_an_error(newest):
    for change in (lambda manifest: manifest.pop("format") and None,
                   lambda manifest: manifest.update(format=[9])):  # fmt: skip
        shutil.copytree(newest, newest.with_name("kept"))
        sign(newest, change)
        with pytest.raises(CheckpointError, match="has format .*; expected 1"):
            Checkpoints(newest.parent, {"a": 1}).restore(TREE)
        shutil.rmtree(newest)
        newest.with_name("kept").rename(newest)
