"""Case 3: files flipped, truncated, emptied, gone; stray folders. The step before serves."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import warnings

import numpy as np
import orbax.checkpoint as ocp
import pytest

from nf_resnets import manifest
from nf_resnets.training import checkpoint_files
from nf_resnets.training.checkpoint import CheckpointError, CheckpointWarning
from tests.faults.saving import (
    assert_same,
    checkpoints,
    contents,
    flip,
    restored_step,
    saved,
    tree,
)

FILES = ("manifest.json", "arrays/_METADATA", "arrays/leaves/.zarray", "arrays/leaves/0")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Steps 9 and 10."""
    return saved(tmp_path_factory.mktemp("whole") / "run", 9, 10)


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def assert_falls_back(folder, match, bad="bad-step_10"):
    """Step 9 is restored, the file is named, and the damaged one is kept as it was."""
    before = contents(folder)
    with pytest.warns(CheckpointWarning, match=match) as warned:
        assert restored_step(folder) == 9
    assert len(warned) == 1
    name = bad.removeprefix("bad-").removesuffix("-2")
    expected = {
        bad + path.removeprefix(name) if path.startswith(f"{name}/") or path == name else path: data
        for path, data in before.items()
    }
    assert contents(folder) == expected
    # Once out of the way, it is not warned of again.
    with warnings.catch_warnings():
        warnings.simplefilter("error", CheckpointWarning)
        assert restored_step(folder) == 9
    # And the run goes on past it.
    saved(folder, 10)
    assert restored_step(folder) == 10
    assert bad in os.listdir(folder)


def test_the_files_are_those_of_a_checkpoint(whole):
    assert sorted(contents(whole / "step_10")) == sorted(FILES)


def flips(whole, count, seed):
    rng = random.Random(seed)
    for name in FILES:
        size = 8 * (whole / "step_10" / name).stat().st_size
        for bit in rng.sample(range(size), min(count, size)):
            yield name, bit


def survived_flips(whole, folder, count, seed):
    survived = tries = 0
    for name, bit in flips(whole, count, seed):
        tries += 1
        flip(folder / "step_10" / name, bit)
        with pytest.warns(CheckpointWarning, match=f"step_10/{name}"):
            survived += restored_step(folder) == 9
        # Put right, and back in place, it is whole again.
        flip(folder / "bad-step_10" / name, bit)
        os.rename(folder / "bad-step_10", folder / "step_10")
    assert contents(folder) == contents(whole)
    return survived, tries


def test_a_flipped_bit_in_any_file_is_seen(whole, folder, record_property):
    survived, tries = survived_flips(whole, folder, 12, seed=0)
    record_property("tries", tries)
    assert survived == tries == 12 * len(FILES)


@pytest.mark.slow
def test_many_flipped_bits_are_seen(whole, folder, record_property):
    survived, tries = survived_flips(whole, folder, 500, seed=1)
    record_property("tries", tries)
    assert survived == tries > 1500


def test_without_the_manifest_orbax_loads_flipped_bits_without_a_word(whole, folder):
    """Negative control: the same flips, read by Orbax alone."""
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False)
    saved_bytes = handler.restore(whole / "step_10/arrays")["leaves"]
    wrong = 0
    for name, bit in flips(whole, 12, seed=0):
        if name == "arrays/leaves/0":
            flip(folder / "step_10" / name, bit)
            with contextlib.suppress(Exception):
                found = handler.restore(folder / "step_10/arrays")["leaves"]
                wrong += not np.array_equal(found, saved_bytes)
            flip(folder / "step_10" / name, bit)
    assert wrong > 0


def half(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def longer(path):
    path.write_bytes(path.read_bytes() + b"\n")


def zeros(path):
    path.write_bytes(bytes(path.stat().st_size))


def folder_in_place(path):
    path.unlink()
    path.mkdir()


def dangling(path):
    path.unlink()
    path.symlink_to("nowhere")


DAMAGES = {
    "truncated": half,
    "longer": longer,
    "empty": lambda path: path.write_bytes(b""),
    "zeros": zeros,
    "missing": lambda path: path.unlink(),
    "a folder": folder_in_place,
    "a dangling link": dangling,
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_seen(folder, name, damage):
    DAMAGES[damage](folder / "step_10" / name)
    assert_falls_back(folder, f"step_10/{name}")


def test_a_manifest_of_other_json_is_seen(folder):
    for number, text in enumerate((b"[]", b"null", b'{"manifest": 1}', b"[" * 100_000, b"\xff")):
        saved(folder, 10)
        (folder / "step_10" / "manifest.json").write_bytes(text)
        with pytest.warns(CheckpointWarning, match="SHA-256 that it states"):
            assert restored_step(folder) == 9
        assert len([name for name in os.listdir(folder) if name.startswith("bad-")]) == number + 1


def test_files_of_another_step_are_seen(folder):
    shutil.copytree(folder / "step_9" / "arrays", folder / "step_10" / "arrays", dirs_exist_ok=True)
    assert_falls_back(folder, "step_10/arrays/leaves/0 .* its manifest")


def test_a_step_under_the_name_of_another_is_seen(folder):
    shutil.copytree(folder / "step_9", folder / "step_11")
    os.rename(folder / "step_10", folder / "old")
    with pytest.warns(CheckpointWarning, match="step_11/manifest.json is that of step 9"):
        assert restored_step(folder) == 9


def test_what_orbax_makes_of_whole_files_is_checked_as_well(folder, monkeypatch):
    """A disk that answers otherwise the second time: after the hash, while Orbax reads."""
    read = checkpoint_files.verify

    def then_flip(path, step):
        manifest = read(path, step)
        if step == 10:
            data = bytearray((path / "arrays/leaves/0").read_bytes())
            data[len(data) // 2] ^= 1
            (path / "arrays/leaves/0").write_bytes(data)
        return manifest

    monkeypatch.setattr(checkpoint_files, "verify", then_flip)
    with pytest.warns(CheckpointWarning, match="does not give the bytes that were saved"):
        assert restored_step(folder) == 9


def empty_folder(path):
    path.mkdir()


def file_in_place(path):
    path.write_text("not a folder")


def link(path):
    path.symlink_to("step_10", target_is_directory=True)


@pytest.mark.parametrize("make", [empty_folder, file_in_place, link])
@pytest.mark.parametrize("name", ["step_11", "step_x", "step_", "step_011", "step_-1", "step_1e9"])
def test_a_stray_step_is_put_aside(folder, name, make):
    make(folder / name)
    with pytest.warns(CheckpointWarning, match=name):
        assert restored_step(folder) == 10
    assert os.path.lexists(folder / f"bad-{name}") and not os.path.lexists(folder / name)


def test_a_checkpoint_that_was_moved_and_linked_is_whole(folder, tmp_path):
    shutil.move(folder / "step_10", tmp_path / "elsewhere")
    (folder / "step_10").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    assert restored_step(folder) == 10
    # When it is dropped, what the link pointed to stays.
    saved(folder, 11, 12)
    assert not os.path.lexists(folder / "step_10")
    assert len(contents(tmp_path / "elsewhere")) == len(FILES)


@pytest.mark.parametrize("make", [empty_folder, file_in_place])
def test_a_name_of_quarantine_that_is_taken_is_kept(folder, make):
    make(folder / "bad-step_10")
    (folder / "step_10" / "manifest.json").unlink()
    assert_falls_back(folder, "manifest.json", bad="bad-step_10-2")


@pytest.mark.parametrize(
    "name",
    ["step_10/notes.txt", "step_10/arrays/.nfs0001", "step_10/arrays/manifest.ocdbt", "notes"],
)
def test_a_stray_file_takes_nothing_away(folder, name):
    (folder / name).write_text("mine")
    with warnings.catch_warnings():
        warnings.simplefilter("error", CheckpointWarning)
        assert restored_step(folder) == 10
    assert (folder / name).read_text() == "mine"


def test_whole_files_that_orbax_cannot_read_stay_where_they_are(folder, monkeypatch):
    """Another release of Orbax is no damage, and an older step would not be read either."""
    before = contents(folder)

    def refuse(*args, **kwargs):
        raise ValueError("unknown\nformat")

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_files._orbax()[1], "restore", refuse)
        with pytest.raises(CheckpointError, match="step_10 are whole, but Orbax .*unknown format"):
            restored_step(folder)
    assert contents(folder) == before
    assert restored_step(folder) == 10


def test_ten_comes_after_nine(whole):
    ours = checkpoints(whole)
    assert ours.steps() == [9, 10]
    step, found = ours.restore(tree(0))
    ours.close()
    assert step == 10
    assert_same(found, tree(10))
    # Negative control: as text it would be the other way round.
    assert sorted(["step_9", "step_10"])[-1] == "step_9"


def test_the_oldest_that_is_dropped_is_so_by_number(tmp_path):
    ours = checkpoints(tmp_path / "run", keep=3)
    for step in (8, 9, 10, 99, 100):
        ours.save(step, tree(step))
    assert ours.steps() == [10, 99, 100]


def test_every_damaged_one_is_put_aside_until_a_whole_one(tmp_path):
    ours = checkpoints(tmp_path / "run", keep=4)
    for step in (1, 2, 3, 4):
        ours.save(step, tree(step))
    zeros(tmp_path / "run/step_4/manifest.json")
    half(tmp_path / "run/step_3/arrays/leaves/0")
    with pytest.warns(CheckpointWarning) as warned:
        assert ours.restore(tree(0))[0] == 2
    assert ["step_4/manifest.json" in str(warned[0].message), len(warned)] == [True, 2]
    assert "step_3/arrays/leaves/0 has" in str(warned[1].message)
    assert ours.steps() == [1, 2]


def test_a_missing_permission_is_no_damage(folder, monkeypatch):
    """What says nothing about the checkpoint leaves it where it is."""
    before = contents(folder)

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(manifest, "size_and_digest", refuse)
        with pytest.raises(CheckpointError, match="Permission denied"):
            restored_step(folder)
    assert contents(folder) == before
    assert restored_step(folder) == 10


def test_the_tree_that_is_flipped_is_not_all_zeros(whole):
    """Zeros would be compressed to nothing, and a flip would find little to damage."""
    assert np.count_nonzero(tree(10)["params"]["kernel"]) > 200
    assert (whole / "step_10/arrays/leaves/0").stat().st_size > 1000
