"""Case 4: all checkpoints bad. The run is refused, and never begins anew in silence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from nf_resnets.training.checkpoint import CheckpointError, CheckpointWarning
from tests.faults.saving import checkpoints, contents, flip, restored_step, saved, tree


def flip_both(folder):
    flip(folder / "step_9/arrays/leaves/0", 999)
    flip(folder / "step_10/arrays/leaves/0", 999)


def empty_both(folder):
    for step in ("step_9", "step_10"):
        shutil.rmtree(folder / step)
        (folder / step).mkdir()


def misname_both(folder):
    os.rename(folder / "step_9", folder / "step_nine")
    os.rename(folder / "step_10", folder / "step_ten")


def no_manifests(folder):
    (folder / "step_9/manifest.json").unlink()
    (folder / "step_10/manifest.json").unlink()


@pytest.mark.parametrize("damage", [flip_both, empty_both, misname_both, no_manifests])
def test_when_all_are_bad_the_run_is_refused_every_time(tmp_path, damage):
    folder = saved(tmp_path / "run", 9, 10)
    damage(folder)
    bytes_before = sorted(contents(folder).values())
    with (
        pytest.warns(CheckpointWarning) as warned,
        pytest.raises(CheckpointError, match="none of the checkpoints in .*run is whole"),
    ):
        restored_step(folder)
    assert len(warned) == 2
    # Later as well, when they have been put aside; and nothing is deleted.
    for _ in range(2):
        with pytest.raises(CheckpointError, match="bad-step_.*delete the folder"):
            restored_step(folder)
    assert sorted(contents(folder).values()) == bytes_before
    assert len([name for name in os.listdir(folder) if name.startswith("bad-")]) == 2


def test_one_whole_one_is_enough(tmp_path):
    """Negative control: it is because all are bad."""
    folder = saved(tmp_path / "run", 9, 10)
    flip(folder / "step_10/arrays/leaves/0", 999)
    with pytest.warns(CheckpointWarning):
        assert restored_step(folder) == 9


def test_only_a_stray_empty_step_is_refused_as_well(tmp_path):
    (tmp_path / "run/step_3").mkdir(parents=True)
    with pytest.warns(CheckpointWarning), pytest.raises(CheckpointError, match="bad-step_3"):
        restored_step(tmp_path / "run")


def test_checkpoints_that_have_vanished_are_missed(tmp_path):
    folder = saved(tmp_path / "run", 9, 10)
    shutil.rmtree(folder / "step_9")
    shutil.rmtree(folder / "step_10")
    for _ in range(2):
        with pytest.raises(CheckpointError, match="none is there any more"):
            restored_step(folder)


def test_where_nothing_was_saved_there_is_nothing(tmp_path):
    """Negative control: the run may begin only here."""
    assert restored_step(tmp_path / "run") is None
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    assert restored_step(tmp_path / "run") is None
    (tmp_path / "run" / "notes.txt").write_text("mine")
    assert restored_step(tmp_path / "run") is None


def test_deleted_checkpoints_are_not_missed(tmp_path):
    folder = saved(tmp_path / "run", 9, 10)
    checkpoints(folder).delete()
    assert restored_step(folder) is None


def test_a_deletion_that_ends_half_way_is_no_damage(tmp_path, monkeypatch):
    unlink = os.unlink
    for nth in range(1, 30):
        folder, calls = saved(tmp_path / str(nth), 9, 10), []

        def refuse(*args, calls=calls, nth=nth, **kwargs):
            calls.append(args)
            if len(calls) >= nth:
                raise OSError(5, "Input/output error")
            unlink(*args, **kwargs)

        with monkeypatch.context() as patched:
            patched.setattr(os, "unlink", refuse)
            try:
                checkpoints(folder).delete()
            except CheckpointError as error:
                assert "cannot be deleted in" in str(error)
        if len(calls) < nth:
            break
        if nth > 1:
            # What is left is whole, and where nothing is left the run may begin anew.
            assert restored_step(folder) in (None, 9, 10)
    assert len(calls) > 8


RUN = """
import sys
from tests.faults.saving import checkpoints, tree
ours = checkpoints(sys.argv[1])
found = ours.restore(tree(0))
print("from", found[0] if found else 0)
"""


@pytest.mark.slow
def test_a_process_that_resumes_ends_with_the_error(tmp_path):
    folder = saved(tmp_path / "run", 9, 10)
    flip_both(folder)
    done = subprocess.run(
        [sys.executable, "-c", RUN, folder],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "CheckpointError: none of the checkpoints in" in done.stderr.splitlines()[-1]
    assert tree(9)["step"] == 9
