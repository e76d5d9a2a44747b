"""Checkpoints: what goes in comes back bit for bit, and one process at a time holds the folder.

What they survive is in tests/faults.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import flax.core
import flax.struct
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nf_resnets.training import checkpoint, checkpoint_files
from nf_resnets.training.checkpoint import CheckpointError, Checkpoints
from tests.faults.saving import (
    IDENTITY,
    assert_same,
    checkpoints,
    contents,
    restored_step,
    same,
    saved,
    tree,
)
from tests.training.small import he_variables, host, state_of, wide_resnet

ROOT = Path(__file__).parents[2]


class Pair(NamedTuple):
    first: object
    second: object


@flax.struct.dataclass
class Record:
    values: object
    name: str = flax.struct.field(pytree_node=False, default="kept by the caller")


def back(folder, value, like=None):
    with contextlib.closing(Checkpoints(folder / "run", IDENTITY)) as ours:
        ours.save(1, value)
        step, found = ours.restore(value if like is None else like)
    assert step == 1
    return found


def array(*values):
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    "value",
    [
        array(1, 2),
        {"b": array(1), "a": {"c": array(2)}, "10": array(3), "9": array(4)},
        flax.core.freeze({"b": array(1), "a": {"c": array(2)}}),
        [array(1), (array(2), [array(3)]), None, {}],
        Pair(array(1), Record({"w": Pair(array(2), None)})),
        {"a/b": array(1), "a": {"b": array(2)}},
        {3: array(1), 20: array(2)},
        {},
        optax.chain(optax.add_decayed_weights(0.1), optax.trace(0.9), optax.adam(0.1)).init(
            {"w": jnp.ones(3)}
        ),
    ],
)
def test_a_tree_of_any_containers_comes_back_as_it_was(tmp_path, value):
    found = back(tmp_path, value)
    assert jax.tree.structure(found) == jax.tree.structure(value)
    assert_same(found, host(value))


def test_a_training_state_comes_back_as_it_was(tmp_path):
    state = state_of(he_variables(wide_resnet("batchnorm")))
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
    found = back(tmp_path, state, like=shapes)
    assert_same(found, host(state))
    # Negative control of the comparison: the last bit of one leaf.
    kernel = found.params["stem"]["kernel"]
    kernel.view(np.uint32)[0, 0, 0, 0] ^= 1
    assert not same(found, host(state))


DTYPES = [
    *(["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]),
    *(["float16", "float32", "float64", "complex64", "complex128"]),
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
]


@pytest.mark.parametrize(
    "dtype", [np.dtype(dtype) for dtype in DTYPES], ids=lambda dtype: dtype.name
)
def test_every_bit_of_every_dtype_comes_back(tmp_path, dtype):
    """Random bits are among others NaNs with a payload, subnormals and negative zeros."""
    rng = np.random.default_rng(0)
    if dtype.kind == "b":
        values = rng.integers(0, 2, (33, 7)).astype(bool)
    else:
        values = np.frombuffer(rng.bytes(33 * 7 * dtype.itemsize), dtype).reshape(33, 7)
    value = {
        "matrix": values,
        "scalar": values[0, 0],
        "one": values[0, 0].reshape(()),
        "zeros": np.zeros((3, 4), dtype),
        "none": np.zeros((0, 4), dtype),
    }
    found = back(tmp_path, value)
    assert_same(found, value)
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {dtype}


def test_a_home_folder_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)  # where it would land if it were not
    saved = Checkpoints("~/run", {}).save(1, {"w": np.zeros(2)})
    assert saved == tmp_path / "run" / "step_1"


def test_zeros_keep_their_signs(tmp_path):
    value = {"plus": np.zeros(1000, np.float32), "minus": -np.zeros(1000, np.float32)}
    found = back(tmp_path, value)
    assert np.signbit(found["minus"]).all() and not np.signbit(found["plus"]).any()


def test_jax_arrays_on_any_devices_come_back_whole(tmp_path):
    devices = jax.devices()
    mesh = Mesh(np.array(devices), ("data",))
    values = np.arange(len(devices) * 6, dtype=np.float32).reshape(len(devices), 6)
    value = {
        "one": jax.device_put(values, devices[-1]),
        "spread": jax.device_put(values, NamedSharding(mesh, PartitionSpec("data"))),
        "copied": jax.device_put(values, NamedSharding(mesh, PartitionSpec())),
        "weak": jnp.asarray(2.0),
        "bfloat16": jnp.asarray(values, jnp.bfloat16),
    }
    found = back(tmp_path, value)
    assert_same(found, host(value))


def test_views_in_another_order_come_back(tmp_path):
    values = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    value = {"t": values.T, "step": values[::2, 1:, ::-1], "f": np.asfortranarray(values)}
    assert_same(back(tmp_path, value), value)


def test_a_tree_of_more_than_one_chunk_comes_back(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_files, "CHUNK", 4096)
    rng = np.random.default_rng(0)
    # Of a prime number of bytes, which cannot be cut into equal parts without padding.
    value = {name: rng.integers(0, 256, 10_007).astype(np.uint8) for name in "abc"}
    assert_same(back(tmp_path, value), value)
    chunks = list((tmp_path / "run/step_1/arrays/leaves").glob("[0-9]*"))
    assert len(chunks) == -(-(3 * 10_048) // 4096)


def test_restored_leaves_are_the_callers_own(tmp_path):
    value = {"a": array(1, 2), "b": array(3, 4)}
    found = back(tmp_path, value)
    for leaf in jax.tree.leaves(found):
        assert leaf.flags.owndata and leaf.flags.writeable
    found["a"] += 1
    assert found["b"].tolist() == [3, 4]


@pytest.mark.parametrize(
    ("leaf", "match"),
    [
        (0.1, "the leaf 'a/b' is a float; expected a NumPy or JAX array"),
        (3, "is a int;"),
        ("text", "is a str;"),
        (object(), "is a object;"),
        (jax.typeof(jnp.zeros(2)), "is a ShapedArray;"),
        (np.array(["text"]), "has dtype <U4; expected numbers or booleans"),
        (np.array([None]), "has dtype |O"),
        (np.array([1], ">f4"), "has dtype >f4"),
        (np.array(["2026-01-01"], "M8[D]"), "has dtype <M8"),
        (np.zeros(1, "i4,f4"), r"has dtype \|V8"),
        (jax.random.key(0), "is a PRNG key; expected its jax.random.key_data"),
    ],
)
def test_what_is_no_array_of_numbers_is_refused_by_name(tmp_path, leaf, match):
    ours = Checkpoints(tmp_path / "run", IDENTITY)
    for call in (ours.restore, lambda value: ours.save(1, value)):
        with pytest.raises(TypeError, match=match):
            call({"a": {"b": leaf}})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("step", [-1, 1.0, True, "1", None])
def test_a_step_that_is_no_count_is_refused(tmp_path, step):
    with pytest.raises(ValueError, match=f"step={step!r} found; expected an integer of at least 0"):
        Checkpoints(tmp_path, {}).save(step, tree(1))


@pytest.mark.parametrize("keep", [0, -1])
def test_keeping_none_is_refused(tmp_path, keep):
    with pytest.raises(ValueError, match=f"keep={keep} found"):
        Checkpoints(tmp_path, {}, keep=keep)
    with pytest.raises(TypeError, match=r"keep=2.5 found; expected a whole number"):
        Checkpoints(tmp_path, {}, keep=2.5)


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_are_kept(tmp_path, keep):
    ours = checkpoints(tmp_path / "run", keep=keep)
    assert ours.steps() == []
    for step in (np.int64(7), 8, 9, 10, 11):
        assert ours.save(step, tree(step)) == tmp_path / f"run/step_{step}"
    assert ours.steps() == [7, 8, 9, 10, 11][-keep:]
    assert sorted(os.listdir(tmp_path / "run")) == sorted(
        ["lock", "used", *(f"step_{step}" for step in ours.steps())]
    )


def test_a_step_that_is_saved_again_is_replaced(tmp_path):
    folder = saved(tmp_path / "run", 9, 10)
    ours = checkpoints(folder)
    ours.save(10, tree(0))
    assert ours.steps() == [9, 10]
    step, found = ours.restore(tree(0))
    assert step == 10
    assert_same(found, tree(0))
    assert sorted(os.listdir(folder)) == ["lock", "step_10", "step_9", "used"]


def test_an_older_step_than_the_newest_is_refused(tmp_path):
    folder = saved(tmp_path / "run", 9, 10)
    before = contents(folder)
    with pytest.raises(CheckpointError, match=r"step=9 found, but .* of step 10; restore it and"):
        checkpoints(folder).save(9, tree(9))
    assert contents(folder) == before


def test_what_is_not_ours_outlives_a_deletion(tmp_path):
    folder = saved(tmp_path / "run", 9, 10)
    (folder / "step_10/manifest.json").unlink()
    with pytest.warns(checkpoint.CheckpointWarning):
        assert restored_step(folder) == 9
    (folder / "notes.txt").write_text("mine")
    ours = checkpoints(folder)
    ours.delete()
    assert os.listdir(folder) == ["notes.txt"]
    # And a run may begin there, or where nothing is left.
    ours.save(1, tree(1))
    assert ours.steps() == [1]
    (folder / "notes.txt").unlink()
    ours.delete()
    assert not folder.exists()
    ours.delete()
    assert ours.steps() == []


def test_no_process_but_process_0_saves(tmp_path, monkeypatch):
    """Orbax would write nothing there, without a word."""
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with pytest.raises(CheckpointError, match="in process 1 of 1; expected process 0"):
        checkpoints(tmp_path).save(1, tree(1))


# --- One process at a time ---------------------------------------------------------------------

HOLDER = """
import os, sys, time
from tests.faults.saving import checkpoints, tree
assert not any(name.startswith("orbax") for name in sys.modules), "imported before it is needed"
ours = checkpoints(sys.argv[1])
if sys.argv[2] == "save":
    ours.save(10, tree(10))
else:
    ours.restore(tree(10))
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def holder(folder, act):
    """A process that holds the folder, and the child that it has forked; both are ended."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", HOLDER, folder, act],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
    )
    child = None
    try:
        child = int(process.stdout.readline())
        yield process, child
    finally:
        if child is not None:
            os.kill(child, signal.SIGKILL)
        process.kill()
        process.communicate()


@pytest.mark.parametrize("act", ["save", pytest.param("restore", marks=pytest.mark.slow)])
def test_a_folder_that_another_process_holds_is_refused_until_it_dies(tmp_path, act):
    folder = saved(tmp_path / "run", 9)
    with holder(folder, act) as (process, child):
        before = contents(folder)
        ours = checkpoints(folder)
        for call in (lambda: ours.save(11, tree(11)), lambda: ours.restore(tree(0)), ours.delete):
            with pytest.raises(CheckpointError, match=f"in use by process {process.pid} on"):
                call()
        assert contents(folder) == before
        # Another folder beside it is free.
        saved(tmp_path / "other", 1)
        process.kill()
        process.wait()
        # The lock died with its process, though a child of it lives on.
        os.kill(child, 0)
        assert ours.restore(tree(0))[0] == (10 if act == "save" else 9)
        ours.save(11, tree(11))
        ours.close()


PROBE = """
import fcntl, sys
try:
    fcntl.lockf(open(sys.argv[1], "a"), fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("held")
else:
    print("free")
"""


def probe(folder):
    done = subprocess.run(
        [sys.executable, "-S", "-c", PROBE, folder / "lock"], capture_output=True, text=True
    )
    return done.stdout.strip()


def test_the_folder_is_held_as_long_as_the_object_lives_and_is_not_closed(tmp_path):
    folder = tmp_path / "run"
    ours = checkpoints(folder)
    ours.save(1, tree(1))
    assert probe(folder) == "held"
    ours.close()
    assert probe(folder) == "free"
    ours.save(2, tree(2))
    assert probe(folder) == "held"
    # A second one of the same process shares the lock, which lasts as long as either.
    also = checkpoints(folder)
    assert also.restore(tree(0))[0] == 2
    del ours
    gc.collect()
    assert probe(folder) == "held"
    del also
    gc.collect()
    assert probe(folder) == "free"


def test_an_error_that_is_kept_holds_nothing(tmp_path):
    """Its traceback keeps everything alive that the failing call had in hand."""
    folder = saved(tmp_path / "run", 9, 10)
    ours = Checkpoints(folder, {"other": 1})
    with pytest.raises(CheckpointError, match="belongs to another run") as raised:
        ours.save(11, tree(11))
    assert probe(folder) == "held"
    ours.close()
    assert probe(folder) == "free"
    assert raised.value.__traceback__ is not None


def test_threads_save_into_folders_of_their_own_and_into_one(tmp_path):
    failures = []

    def work(number):
        try:
            own = checkpoints(tmp_path / str(number))
            for step in range(3):
                own.save(step, tree(10 * number + step))
            # All replace the same step of one folder.
            checkpoints(tmp_path / "shared").save(5, tree(5))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for number in range(4):
        step, found = checkpoints(tmp_path / str(number)).restore(tree(0))
        assert step == 2
        assert_same(found, tree(10 * number + 2))
    assert restored_step(tmp_path / "shared") == 5


def test_shapes_alone_are_not_saved(tmp_path):
    shapes = {"a": jax.ShapeDtypeStruct((2,), np.float32)}
    assert Checkpoints(tmp_path / "run", {}).restore(shapes) is None
    with pytest.raises(TypeError, match="the leaf 'a' is a ShapeDtypeStruct"):
        Checkpoints(tmp_path / "run", {}).save(1, shapes)
