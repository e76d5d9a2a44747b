"""Case 2: SIGKILL at each seam of a save. What was saved before it, or by it, is restored whole."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from nf_resnets.training.checkpoint import CheckpointWarning
from tests.faults.saving import (
    checkpoints,
    contents,
    cut_saves,
    restored_step,
    saved,
    tree,
)

# The seam, and the step that is the newest after a kill there: 10 was saved before, 11 is cut.
SEAMS = {
    "before Orbax": 10,
    "at Orbax's first file": 10,
    "between Orbax's files": 10,
    "after Orbax": 10,
    "before the manifest": 10,
    "half a manifest": 10,
    "before the rename": 10,
    "after the rename": 11,
    "before the old one is removed": 11,
    "while the old one is being removed": 11,
}


REPLACEMENT = "between the two renames of a replacement"
IN_PLACE = "half a manifest in place"
KEPT = [seam for seam in SEAMS if SEAMS[seam] == 10]
# More than a save has.
OPERATIONS = range(1, 37)


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("template") / "run", 9, 10)


def cut_in(folder, template, seams, step=11):
    """By seam, folders in which a save was killed, and the statuses; a process forks them all."""
    jobs = [
        {"folder": folder / str(number) / "run", "step": step, "seam": seam}
        for number, seam in enumerate(seams)
    ]
    for job in jobs:
        if template is not None:
            shutil.copytree(template, job["folder"])
    statuses = cut_saves(jobs)
    return {
        seam: (job["folder"], status)
        for seam, job, status in zip(seams, jobs, statuses, strict=True)
    }


@pytest.fixture(scope="module")
def cut(tmp_path_factory, template):
    return cut_in(tmp_path_factory.mktemp("cut"), template, [*SEAMS, IN_PLACE, "never"])


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """Of a first save."""
    return cut_in(tmp_path_factory.mktemp("first"), None, KEPT, 1)


def assert_survives(folder, newest):
    """The newest whole step is there without a word, and so is the next save, without a trace."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", CheckpointWarning)
        assert restored_step(folder) == newest
    ours = checkpoints(folder)
    ours.save(12, tree(12))
    ours.close()
    twin = saved(folder.with_name(f"{folder.name}-twin"), newest, 12)
    assert contents(folder) == contents(twin)
    assert sorted(os.listdir(folder)) == sorted(os.listdir(twin))


@pytest.mark.parametrize("seam", SEAMS)
def test_a_save_that_is_killed_leaves_the_last_whole_one(cut, seam):
    folder, status = cut[seam]
    assert status == -signal.SIGKILL
    assert_survives(folder, SEAMS[seam])


@pytest.mark.slow
def test_a_save_may_be_killed_at_every_file_operation(tmp_path, template, record_property):
    cut = cut_in(tmp_path, template, OPERATIONS)
    killed = [number for number in OPERATIONS if cut[number][1] == -signal.SIGKILL]
    # Orbax opens one file from Python; of ours there are many more, and all were tried.
    assert killed == list(range(1, len(killed) + 1))
    assert 15 < len(killed) < len(OPERATIONS)
    assert {cut[number][1] for number in OPERATIONS[len(killed) :]} == {0}
    record_property("tries", len(killed))
    newest = [restored_step(cut[number][0]) for number in killed]
    # The last whole one until a certain moment, the new one after it.
    assert newest == sorted(newest) and set(newest) == {10, 11}
    last = newest.index(11)
    for number in (1, last, last + 1, len(killed)):
        assert_survives(cut[number][0], newest[number - 1])


@pytest.mark.slow
@pytest.mark.parametrize("seam", KEPT)
def test_a_first_save_that_is_killed_leaves_a_folder_where_nothing_was_saved(first, seam):
    folder, status = first[seam]
    assert status == -signal.SIGKILL
    assert restored_step(folder) is None
    saved(folder, 1)
    assert sorted(os.listdir(folder)) == ["lock", "step_1", "used"]


@pytest.mark.slow
def test_a_replacement_that_is_killed_between_its_renames_loses_nothing(tmp_path, template):
    folder, status = cut_in(tmp_path, template, [REPLACEMENT], 10)[REPLACEMENT]
    assert status == -signal.SIGKILL
    assert checkpoints(folder).steps() == [9]
    assert_survives(folder, 10)


@pytest.mark.slow
def test_killed_again_and_again_the_last_whole_one_stays(tmp_path, template):
    folder = shutil.copytree(template, tmp_path / "run")
    statuses = cut_saves({"folder": folder, "step": 11, "seam": seam} for seam in KEPT * 2)
    assert set(statuses) == {-signal.SIGKILL}
    assert_survives(folder, 10)


def test_without_a_temporary_name_half_a_checkpoint_is_found(cut):
    """Negative control: the same kill, of a save that writes where it will be read."""
    folder, status = cut[IN_PLACE]
    assert status == -signal.SIGKILL
    with pytest.warns(CheckpointWarning, match="SHA-256"):
        assert restored_step(folder) == 10


def test_without_a_kill_the_save_ends(cut, tmp_path):
    """Negative control of the process that kills: it is the seam that ends the save."""
    folder, status = cut["never"]
    assert status == 0
    assert restored_step(folder) == 11
    assert contents(folder) == contents(saved(tmp_path / "twin", 9, 10, 11))


ENDLESS = """
import sys
from tests.faults.saving import checkpoints, tree
ours = checkpoints(sys.argv[1])
found = ours.restore(tree(0))
step = found[0] if found else 0
while True:
    step += 1
    ours.save(step, tree(step))
    print(step, flush=True)
"""


@pytest.mark.slow
def test_a_loop_of_saves_may_be_killed_at_random_moments(tmp_path, record_property):
    rng, newest, tries = random.Random(0), 0, 40
    record_property("tries", tries)
    for _ in range(tries):
        loop = subprocess.Popen(
            [sys.executable, "-c", ENDLESS, tmp_path / "run"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert int(loop.stdout.readline()) == newest + 1
        time.sleep(rng.uniform(0, 0.2))
        loop.kill()
        told = [newest + 1, *map(int, loop.stdout.read().split())]
        loop.wait()
        with warnings.catch_warnings():
            warnings.simplefilter("error", CheckpointWarning)
            newest = restored_step(tmp_path / "run")
        # What the loop had told was saved; the one it was at may be there as well.
        assert newest in (told[-1], told[-1] + 1)
