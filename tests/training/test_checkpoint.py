"""Checkpoints: what goes in comes back bit for bit, or the one before, or nothing."""

import os
import random
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from nf_resnets.places import held
from nf_resnets.training.checkpoint import Checkpoints
from tests.training import small

ROOT = Path(__file__).parents[2]


def tree(step):
    """Leaves of several dtypes that no two steps share, with bits that a cast would lose."""
    rng = np.random.default_rng(step)
    kernel = rng.standard_normal((3, 3, 4, 8)).astype(np.float32)
    kernel[0, 0, 0, :3] = np.nan, -0.0, np.inf
    return {
        "params": {"kernel": kernel, "bias": rng.standard_normal(7).astype(jnp.bfloat16)},
        "step": np.int32(step),
        "mask": rng.integers(0, 2, 5).astype(bool),
        "empty": np.zeros((0, 3), np.float32),
    }


def like(tree):
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def assert_same(found, expected):
    """Two trees are equal in structure, dtypes, shapes and every bit."""

    def bits(leaf):
        return leaf.dtype, leaf.shape, np.asarray(leaf).tobytes()

    assert jax.tree.map(bits, found) == jax.tree.map(bits, expected)


@pytest.fixture
def saved(tmp_path):
    """Steps 9 and 10."""
    checkpoints = Checkpoints(tmp_path / "run")
    for step in (8, 9, 10):
        checkpoints.save(step, tree(step), {"at": step})
    return checkpoints


def restored(checkpoints):
    """The step that is restored, once its tree and facts have been found to be its own."""
    step, found, facts = checkpoints.restore(like(tree(0)))
    assert_same(found, tree(step))
    assert facts == {"at": step}
    return step


def test_the_last_two_are_kept_and_ten_comes_after_nine(saved):
    assert saved.steps() == [9, 10] and restored(saved) == 10 and saved.facts() == {"at": 10}
    assert sorted(path.name for path in saved.folder.iterdir()) == ["10.npz", "9.npz"]
    saved.delete()
    assert not saved.folder.exists() and saved.restore(like(tree(0))) is None
    saved.delete()  # what is gone already is no error


def test_a_training_state_comes_back_as_it_was(tmp_path):
    state = small.host(small.state_of(small.he_variables(small.wide_resnet("batchnorm"))))
    checkpoints = Checkpoints(tmp_path / "run")
    checkpoints.save(3, state, {})
    assert_same(checkpoints.restore(like(state))[1], state)


DTYPES = ("bool", "int8", "uint32", "float16", "float64", "complex64", ml_dtypes.bfloat16,
          ml_dtypes.float8_e4m3fn)  # fmt: skip


@pytest.mark.parametrize("dtype", [np.dtype(each) for each in DTYPES], ids=str)
def test_every_bit_of_every_dtype_comes_back(tmp_path, dtype):
    """Random bits are among others NaNs with a payload, subnormals and negative zeros."""
    values = np.random.default_rng(0).integers(0, 2 if dtype.kind == "b" else 256, 528, np.uint8)
    values = values.view(dtype)
    value = {"vector": values, "scalar": values[0], "none": values[:0]}
    checkpoints = Checkpoints(tmp_path / "run")
    checkpoints.save(1, value, {})
    assert_same(checkpoints.restore(like(value))[1], value)


OTHERS = {
    "another shape": {"mask": np.zeros(6, bool)},
    "another rank": {"mask": np.zeros((5, 1), bool)},
    "a dtype of the same size": {"step": np.uint32(0)},
    "a dtype of few bits of the same size": {
        "params": {**tree(0)["params"], "bias": np.zeros(7, np.float16)}
    },
    "a wider dtype": {"params": {**tree(0)["params"], "bias": np.zeros(7, np.float32)}},
    "one leaf more": {"more": np.zeros(2)},
}


@pytest.mark.parametrize("name", [*OTHERS, "one leaf less"])
def test_other_leaves_are_passed_over_and_never_cast(saved, name):
    other = {**tree(0), **OTHERS.get(name, {})}
    if name == "one leaf less":
        del other["step"]
    with pytest.warns(UserWarning, match=r"10.npz is passed over|9.npz is passed over"):
        assert saved.restore(like(other)) is None


def flips(data):
    """The bytes with one bit flipped, at 40 places, those of the zip's headers among them."""
    rng = random.Random(0)
    for place in (0, *rng.sample(range(len(data)), 38), len(data) - 1):
        flipped = bytearray(data)
        flipped[place] ^= 1 << rng.randrange(8)
        yield bytes(flipped)


def cuts(data):
    yield from (data[: len(data) * part // 8] for part in range(8))
    yield bytes(len(data))


@pytest.mark.parametrize("damages", [flips, cuts])
@pytest.mark.filterwarnings("ignore:.*is passed over")
def test_a_damaged_one_is_passed_over_for_the_one_before(saved, damages):
    path, found = saved.folder / "10.npz", set()
    for data in damages(path.read_bytes()):
        path.write_bytes(data)
        found.add(restored(saved))  # whatever it is, its tree is whole
    assert 9 in found and (damages is flips or found == {9})


def test_two_damaged_ones_are_said_and_training_begins_anew(saved):
    for step in (9, 10):
        (saved.folder / f"{step}.npz").write_bytes(b"")
    with pytest.warns(UserWarning) as warned:
        assert saved.restore(like(tree(0))) is None
    texts = [str(each.message) for each in warned]
    for text, step in zip(texts, (10, 9), strict=True):
        assert text.startswith(f"{saved.folder / str(step)}.npz is passed over:")
    assert saved.facts() is None


KILLED = """
import os, signal, sys
from pathlib import Path
from nf_resnets.training.checkpoint import Checkpoints
from tests.training.test_checkpoint import tree
event, number = sys.argv[2:]
left = int(number)
def act(name, args):
    global left
    if name == event and sys.argv[1] in str(args[0]):
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(act)
Checkpoints(Path(sys.argv[1])).save(11, tree(11), {"at": 11})
"""


@pytest.mark.slow  # a process each
# The first removal is that of an unfinished file, which need not be there.
@pytest.mark.parametrize(
    ("event", "number", "newest"),
    [("open", 1, 10), ("os.rename", 1, 10), ("os.remove", 1, 10), ("os.remove", 2, 11)],
)
def test_a_save_that_is_killed_leaves_the_one_before(saved, event, number, newest):
    command = [sys.executable, "-c", KILLED, str(saved.folder), event, str(number)]
    assert subprocess.run(command, cwd=ROOT, timeout=60).returncode == -9
    assert restored(saved) == newest
    saved.save(12, tree(12), {"at": 12})
    assert restored(saved) == 12
    assert len(list(saved.folder.iterdir())) == 2


def test_a_save_that_fails_leaves_the_ones_before(saved, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        saved.save(11, tree(11), {"at": 11})
    assert restored(saved) == 10


def test_a_symbolic_link_is_not_followed(saved, tmp_path):
    (tmp_path / "mine").write_text("mine")
    for name in ("part", "lock"):
        (saved.folder / name).symlink_to(tmp_path / "mine")
    saved.save(11, tree(11), {"at": 11})  # replaces it
    with pytest.raises(OSError, match="lock is a link"), held(saved.folder / "lock"):
        pass
    assert (tmp_path / "mine").read_text() == "mine" and restored(saved) == 11


def test_a_file_is_held_by_one_process_at_a_time(tmp_path):
    with held(tmp_path / "lock"), pytest.raises(BlockingIOError), held(tmp_path / "lock"):
        pass
    with held(tmp_path / "lock"):  # it was let go of
        pass
