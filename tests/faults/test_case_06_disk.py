"""Case 6: a disk that is full, read-only or gone. One clear error; what was saved stays whole."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import subprocess

import numpy as np
import pytest

from nf_resnets.sweep import open_ledger
from nf_resnets.training import checkpoint
from nf_resnets.training.checkpoint import CheckpointError
from tests.faults.saving import checkpoints, contents, restored_step, saved, tree
from tests.sweep import small

MIB = 1 << 20


def noise(size):
    """Bytes that no compression makes smaller."""
    return {"noise": np.random.default_rng(0).integers(0, 256, size).astype(np.uint8)}


def assert_one_sentence(error, folder):
    text = str(error)
    assert str(folder) in text
    assert "\n" not in text and text.endswith("."), text


@pytest.fixture
def disk(tmp_path):
    """A disk of 2 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_an_error_and_the_earlier_ones_are_whole(disk):
    folder = saved(disk / "run", 9, 10)
    before = contents(folder)
    ours = checkpoints(folder)
    for _ in range(3):
        with pytest.raises(
            CheckpointError,
            match="step 11 cannot be saved in .*: No space left on device .free some space",
        ) as raised:
            ours.save(11, noise(4 * MIB))
        assert_one_sentence(raised.value, folder)
        # No half of it takes up what space there is.
        assert contents(folder) == before
    # When there is space again the run goes on.
    ours.save(11, tree(11))
    ours.close()
    assert restored_step(folder) == 11


def test_a_disk_that_was_full_before_the_save_is_an_error(disk):
    folder = saved(disk / "run", 9, 10)
    before = contents(folder)
    with open(disk / "filling", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    ours = checkpoints(folder)
    with pytest.raises(CheckpointError, match="step 11 cannot be saved in .*: No space left"):
        ours.save(11, tree(11))
    assert contents(folder) == before
    ours.close()
    # What is there can be read without a byte to spare.
    assert restored_step(folder) == 10


def test_a_limit_on_the_size_of_files_is_an_error(tmp_path):
    """As a full disk to TensorStore, and possible without being root."""
    folder = saved(tmp_path / "run", 9, 10)
    before = contents(folder)
    ours = checkpoints(folder)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, limits[1]))
    try:
        with pytest.raises(
            CheckpointError, match="step 11 cannot be saved in .*: File too large"
        ) as raised:
            ours.save(11, noise(4 * MIB))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_one_sentence(raised.value, folder)
    assert contents(folder) == before
    # Negative control: without the limit the same tree is saved.
    ours.save(11, noise(4 * MIB))
    assert ours.steps() == [10, 11]


@contextlib.contextmanager
def failing(monkeypatch, name, nth, number):
    """The nth call of a function of the system fails, and no other; yields the calls so far."""
    real, calls = getattr(os, name), []

    def sometimes(*args, **kwargs):
        calls.append(args)
        if len(calls) == nth:
            raise OSError(number, os.strerror(number), str(args[0]))
        return real(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(os, name, sometimes)
        yield calls


@pytest.mark.parametrize("number", [errno.ENOSPC, pytest.param(errno.EIO, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["mkdir", "open", "fsync", "rename", "listdir"])
def test_each_call_of_the_system_may_fail(tmp_path, monkeypatch, name, number, record_property):
    template = saved(tmp_path / "template", 9, 10)
    before = contents(template)
    for nth in range(1, 30):
        folder = shutil.copytree(template, tmp_path / str(nth))
        ours = checkpoints(folder)
        error = None
        with failing(monkeypatch, name, nth, number) as calls:
            try:
                ours.save(11, tree(11))
            except CheckpointError as raised:
                error = raised
        ours.close()
        if len(calls) < nth:
            break
        newest = restored_step(folder)
        if error is None:
            # Only the removal of the oldest may fail without a word: the next save sees to it.
            assert newest == 11
        else:
            assert_one_sentence(error, folder)
            assert os.strerror(number) in str(error)
            # All is as it was, unless only the news that it is in place could not be waited for.
            assert newest == 10 or (newest == 11 and name in ("open", "fsync"))
            if newest == 10:
                assert contents(folder) == before
        saved(folder, 12)
        assert restored_step(folder) == 12
        assert len([n for n in os.listdir(folder) if n.startswith("step_")]) == 2
        assert not [n for n in os.listdir(folder) if n.startswith(checkpoint.LEFTOVERS)]
    # All calls of the save were tried, and there were some.
    assert error is None and 1 < nth < 29
    record_property("tries", nth - 1)


@pytest.fixture
def read_only(tmp_path):
    """A function that makes a folder below read-only, whoever runs the tests."""
    undo = []

    def make(folder):
        if os.geteuid() != 0:
            os.chmod(folder, 0o555)
            undo.append(lambda: os.chmod(folder, 0o755))
            return
        # Permissions do not bind root.
        command = ["mount", "--bind", str(folder), str(folder)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("no folder can be made read-only for root here")
        undo.append(lambda: subprocess.run(["umount", "-l", str(folder)], check=True))
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)

    make.undo = lambda: [undo.pop()() for _ in list(undo)]
    yield make
    make.undo()


@pytest.mark.parametrize("held", [True, False])
def test_a_read_only_folder_is_an_error_for_a_save(tmp_path, read_only, held):
    folder = saved(tmp_path / "run", 9, 10)
    before = contents(folder)
    ours = checkpoints(folder)
    if held:
        ours.restore(tree(0))
    read_only(folder)
    with pytest.raises(CheckpointError, match="step 11 cannot be saved in .*allow wri") as raised:
        ours.save(11, tree(11))
    assert_one_sentence(raised.value, folder)
    assert contents(folder) == before
    # Reading needs no more than reading.
    ours.close()
    assert restored_step(folder) == 10
    read_only.undo()
    ours.save(11, tree(11))
    ours.close()
    assert restored_step(folder) == 11


def test_a_damaged_one_in_a_read_only_folder_is_passed_over(tmp_path, read_only):
    folder = saved(tmp_path / "run", 9, 10)
    (folder / "step_10/manifest.json").write_text("")
    read_only(folder)
    with pytest.warns(checkpoint.CheckpointWarning, match="stays where it is"):
        assert restored_step(folder) == 9
    with pytest.warns(checkpoint.CheckpointWarning, match="stays where it is"):
        assert restored_step(folder) == 9


def test_all_damaged_in_a_read_only_folder_are_refused(tmp_path, read_only):
    folder = saved(tmp_path / "run", 10)
    (folder / "step_10/manifest.json").write_text("")
    (folder / checkpoint.USED).unlink()
    read_only(folder)
    with (
        pytest.warns(checkpoint.CheckpointWarning, match="stays where it is"),
        pytest.raises(CheckpointError, match=r"none of the checkpoints in .* \(step_10\)"),
    ):
        restored_step(folder)


def test_a_folder_that_is_gone_is_an_error_until_it_is_there_again(tmp_path):
    folder = tmp_path / "run"
    ours = checkpoints(folder)
    ours.save(9, tree(9))
    os.rename(folder, tmp_path / "away")
    for _ in range(2):
        with pytest.raises(CheckpointError, match="is gone.*is its disk mounted") as raised:
            ours.save(10, tree(10))
        assert_one_sentence(raised.value, folder)
        with pytest.raises(CheckpointError, match="is gone"):
            ours.restore(tree(0))
        assert not folder.exists()
    # The disk is back, with all that was on it.
    os.rename(tmp_path / "away", folder)
    ours.save(10, tree(10))
    assert ours.steps() == [9, 10]
    # Or somebody makes an empty one in its place.
    shutil.rmtree(folder)
    folder.mkdir()
    ours.save(11, tree(11))
    ours.close()
    assert restored_step(folder) == 11


@pytest.mark.parametrize("place", ["run", "run/deeper"])
def test_a_file_where_the_folder_belongs_is_an_error(tmp_path, place):
    (tmp_path / "run").write_text("mine")
    ours = checkpoints(tmp_path / place)
    with pytest.raises(CheckpointError, match="cannot be saved in") as raised:
        ours.save(1, tree(1))
    assert_one_sentence(raised.value, tmp_path / place)
    assert (tmp_path / "run").read_text() == "mine"


def test_a_file_where_the_folder_belongs_is_not_an_empty_one(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(CheckpointError, match="no checkpoint can be restored in .*run"):
        checkpoints(tmp_path / "run").restore(tree(0))


@pytest.mark.slow  # two sweeps
def test_a_sweep_whose_disk_is_full_stops_with_a_sentence_and_goes_on_later(tmp_path, monkeypatch):
    """It is no fault of the runs: none is counted as failed."""
    sweep = small.make({"seed": (0, 1)}, stem_channels=2, epochs=3.0)
    save = checkpoint.Checkpoints.save

    def full(self, step, tree):
        raise checkpoint.CheckpointError(f"step {step} cannot be saved in {self.folder}: disk full")

    monkeypatch.setattr(checkpoint.Checkpoints, "save", full)
    with pytest.raises(checkpoint.CheckpointError, match="disk full"):
        small.run(tmp_path, sweep)
    with open_ledger(tmp_path / "ledger.db") as book:
        assert book.counts()["waiting"] == 2
    monkeypatch.setattr(checkpoint.Checkpoints, "save", save)
    rows, _, _ = small.run(tmp_path, sweep)
    assert [row["state"] for row in rows] == ["finished", "finished"]
