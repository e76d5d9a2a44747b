"""Steps on batches from the host: stalls are measured, and reading ahead changes no number."""

import concurrent.futures
import copy
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import training
from nf_resnets.training.host_steps import HostSteps, host_step, on_devices
from nf_resnets.training.images import METRICS
from nf_resnets.training.streamed import mixed
from tests.training import linear
from tests.training import streamed_process as small

MESH = training.make_mesh(devices=jax.devices()[:1])


class Batches:
    """A stream without files: its images are what the step number says."""

    opened = 0

    def __init__(self, count, first_step):
        Batches.opened += 1
        self._iterator = on_devices(self._made(first_step, count), MESH)

    def _made(self, first_step, count):
        for step in range(first_step, count):
            image = np.random.default_rng(step).integers(0, 256, (16, small.SIZE, small.SIZE, 3))
            yield {"image": image.astype(np.uint8), "label": np.full(16, 1, np.int32)}

    def __next__(self):
        return next(self._iterator)

    def close(self):
        pass


STEP = host_step(training.image_loss(linear.apply), mixed(16), small.adam, MESH)


def host_steps(count, step=STEP):
    return HostSteps(step, lambda _, first_step: Batches(count, first_step), MESH, METRICS)


def states_of(**options):
    return training.shard_runs(training.stack([small.begin(**options)]), MESH)


def test_a_loader_may_use_its_memory_again():
    def again():
        # At a multiple of 64 bytes, where JAX takes memory as it is.
        memory = np.empty(4 * 1024 + 16, np.float32)
        start = -memory.ctypes.data % 64 // 4
        values = memory[start : start + 4 * 1024].reshape(4, 1024)
        for value in range(3):
            values[:] = value
            yield {"image": values}

    found = list(on_devices(again(), MESH))
    assert [float(batch["image"].mean()) for batch in found] == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("lag", [0, 3])
def test_steps_ahead_of_the_host_change_no_number(lag):
    steps = host_steps(9)
    steps._lag = lag
    whole = host_steps(9)(states_of(), np.array([9]))
    before = Batches.opened
    first = steps(states_of(), np.array([4]))
    second = steps(first.states, np.array([5]))
    assert Batches.opened == before + 1, "the stream stays open between calls"
    for name in METRICS:
        parts = [found.curve[name] for found in (first, second)]
        np.testing.assert_array_equal(np.concatenate(parts, 1), whole.curve[name])
    assert (second.counts.tolist(), second.diverged.tolist()) == ([5], [False])
    # The step that diverges is the last one that is counted, however many are under way.
    found = steps(states_of(rate=jnp.inf), np.array([6]))
    assert (found.counts.tolist(), found.diverged.tolist()) == ([1], [True])
    assert np.isfinite(found.curve["loss"]).all()
    # Another run, or another step of the same, opens another stream.
    assert steps(states_of(), np.array([1])).curve["loss"] == whole.curve["loss"][0, 0]


def test_threads_read_batches_of_their_own():
    """Two runs of one program, as two workers of a sweep train them, in turns of a step each."""
    turns = threading.Barrier(2)

    def in_turns(states, batch):
        turns.wait(timeout=60)
        return STEP(states, batch)

    steps = host_steps(9, in_turns)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(copy.copy(steps), states_of(), np.array([6])) for _ in range(2)]
        found = [call.result().curve["loss"] for call in calls]
    alone = host_steps(9)(states_of(), np.array([6])).curve["loss"]
    for each in found:
        np.testing.assert_array_equal(each, alone)
