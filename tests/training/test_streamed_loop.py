"""The loop on streamed batches: resumed it ends where it would have, and stalls are measured."""

import concurrent.futures
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import training
from nf_resnets.data import imagenet, stream
from nf_resnets.training import loop
from nf_resnets.training.checkpoint import Checkpoints
from nf_resnets.training.host_steps import HostSteps
from nf_resnets.training.preemption import Preemption
from nf_resnets.training.steps import METRICS
from tests import photographs
from tests.training import streamed_process as small

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return photographs.data_dir(tmp_path_factory)


@pytest.fixture(scope="module")
def whole(data_dir):
    """The run that nothing interrupted."""
    return small.run(data_dir)


def start(data_dir, folder, kill_at, *more):
    flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ["XLA_FLAGS"])
    arguments = [sys.executable, "-m", "tests.training.streamed_process", data_dir, folder, kill_at]
    return subprocess.Popen(
        [*map(str, arguments), *map(str, more)],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": flags},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    shown, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return json.loads(shown.splitlines()[-1])


def test_it_trains_and_is_tested(whole, data_dir):
    assert whole.status == "finished" and whole.first_step == 0
    assert int(whole.state.step) == len(whole.curve) == small.STEPS
    assert all(math.isfinite(value) for metrics in whole.curve for value in metrics.values())
    begun = small.begin().params["head"]["kernel"]
    assert np.abs(whole.state.params["head"]["kernel"] - begun).max() > 0.01
    ours = small.program(data_dir, 1, stream.Reading(threads=3))
    found = ours.test(ours.put(ours.empty(), 0, whole.state))
    # 22 photographs, each counted once.
    assert found["accuracy"][0] * 22 == pytest.approx(round(found["accuracy"][0] * 22))
    assert 0 < found["loss"][0] < 20


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_parameters(data_dir, whole, tmp_path):
    folder = tmp_path / "checkpoints"
    killed = start(data_dir, folder, 11)
    killed.communicate(timeout=240)
    assert killed.returncode == -signal.SIGKILL
    # In the second epoch; a call ends where a checkpoint is due.
    assert Checkpoints(folder, {"run": "photographs"}).steps() == [4, 8]
    reading = stream.Reading(threads=7, ahead=1)
    resumed = small.run(data_dir, folder, reading=reading)
    assert (resumed.status, resumed.first_step) == ("finished", 8)
    # The same program on the same numbers: to the last bit.
    assert [m["loss"] for m in resumed.curve] == [m["loss"] for m in whole.curve[8:]]
    assert small.digest(resumed.state) == small.digest(whole.state)
    # Done, it is not made again.
    again = small.run(data_dir, folder)
    assert (again.status, again.curve) == ("finished", ())
    assert small.digest(again.state) == small.digest(whole.state)


def test_a_run_that_is_told_to_stop_saves_and_resumes(data_dir, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CALL_SECONDS", 0.0)

    def on_step(made, metrics):
        if made == 6:
            signal.raise_signal(signal.SIGTERM)

    with Preemption() as stop:
        stopped = small.run(data_dir, tmp_path, stop=stop, on_step=on_step, save_every=0)
    assert stopped.status == "stopped" and len(stopped.curve) == 6 and stop.exit_code == 143
    resumed = small.run(data_dir, tmp_path, reading=stream.Reading(threads=7, ahead=1))
    assert (resumed.status, resumed.first_step) == ("finished", 6)
    # The same program on the same numbers: to the last bit.
    assert [m["loss"] for m in resumed.curve] == [m["loss"] for m in whole.curve[6:]]
    assert small.digest(resumed.state) == small.digest(whole.state)


def test_devices_change_nothing_but_rounding(data_dir, whole):
    found = small.run(data_dir, devices=4)
    # Means over the batch are summed in another order, Adam divides by their roots.
    np.testing.assert_allclose(
        [m["loss"] for m in found.curve], [m["loss"] for m in whole.curve], rtol=2e-4
    )


@pytest.mark.slow
def test_two_hosts_read_their_own_halves(data_dir, whole, tmp_path):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    pair = [start(data_dir, tmp_path / "both", 0, port, process) for process in (0, 1)]
    found = [finish(process) for process in pair]
    assert found[0]["digest"] == found[1]["digest"]
    np.testing.assert_allclose(
        found[0]["loss"], [metrics["loss"] for metrics in whole.curve], rtol=2e-4
    )
    # Both of them begin where the checkpoint of process 0 is: at the end.
    pair = [start(data_dir, tmp_path / "both", 0, port, process) for process in (0, 1)]
    again = [finish(process) for process in pair]
    assert [one["first_step"] for one in again] == [small.STEPS] * 2
    assert {one["digest"] for one in again} == {found[0]["digest"]}


class Batches:
    """A stream without files: its images are what the step number says."""

    opened = 0

    def __init__(self, mesh, count, seconds, first_step):
        Batches.opened += 1
        self._iterator = training.DeviceIterator(self._made(first_step, count, seconds), mesh, 16)
        self.closed = False

    def _made(self, first_step, count, seconds):
        for step in range(first_step, count):
            time.sleep(seconds)
            image = np.random.default_rng(step).integers(0, 256, (16, small.SIZE, small.SIZE, 3))
            yield {"image": image.astype(np.uint8), "label": np.full(16, 1, np.int32)}

    def __next__(self):
        return next(self._iterator)

    def close(self):
        self.closed = True


MESH = training.make_mesh(devices=jax.devices()[:1])
STEP = training.make_streamed_step(
    small.linear, small.adam, MESH, batch_size=16, mean=imagenet.IMAGENET_MEAN,
    std=imagenet.IMAGENET_STD,
)  # fmt: skip


def host_steps(count, seconds=0.0):
    return HostSteps(STEP, lambda seed, step: Batches(MESH, count, seconds, step), MESH, METRICS)


def states_of(**options):
    return training.shard_runs(training.stack([small.begin(**options)]), MESH)


def test_stalls_are_measured():
    slow, fast = host_steps(6, seconds=0.05), host_steps(6)
    slow(states_of(), np.array([6]))
    fast(states_of(), np.array([6]))
    assert 0.3 <= slow.seconds_waited < 0.3 + 1.0 and fast.seconds_waited < 0.3


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

    steps = HostSteps(in_turns, lambda seed, step: Batches(MESH, 9, 0.0, step), MESH, METRICS)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(steps, states_of(), np.array([6])) for _ in range(2)]
        found = [call.result().curve["loss"] for call in calls]
    alone = host_steps(9)(states_of(), np.array([6])).curve["loss"]
    for each in found:
        np.testing.assert_array_equal(each, alone)


def test_a_stream_that_ends_early_is_said():
    with pytest.raises(ValueError) as error:
        host_steps(3)(states_of(), np.array([5]))
    assert str(error.value) == "the stream ended before step 3; expected more batches."
