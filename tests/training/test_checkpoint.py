"""Checkpoints: what goes in comes back bit for bit, or the one before, or nothing."""

import os
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets.training.checkpoint import Checkpoints
from tests.trained.networks import assert_same


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


@pytest.mark.parametrize(
    "changes",
    [
        {"mask": np.zeros((5, 1), bool)},
        {"step": np.uint32(0)},
        {"params": {**tree(0)["params"], "bias": np.zeros(7, np.float32)}},
        {"more": np.zeros(2)},
        {"step": None},
    ],
    ids=["rank", "sign", "wider", "more", "less"],
)
def test_other_leaves_are_refused_and_never_cast(saved, changes):
    with pytest.raises(ValueError, match=r"10.npz has other leaves"):
        saved.restore(like({**tree(0), **changes}))


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
    assert [str(each.message).split(" is passed over:")[0] for each in warned] == [
        f"{saved.folder / str(step)}.npz" for step in (10, 9)
    ]
    assert saved.facts() is None


def test_what_begins_anew_is_kept(saved):
    """And not the later ones, which it could not go on from."""
    for step in (1, 2):
        saved.save(step, tree(step), {"at": step})
        assert restored(saved) == step
    assert saved.steps() == [1, 2]


def test_a_save_that_fails_leaves_the_ones_before(saved, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        saved.save(11, tree(11), {"at": 11})
    assert restored(saved) == 10
