"""The loop on streamed batches: resumed it ends where it would have, and stalls are measured."""

import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from nf_resnets.training.streamed_loop import train_streamed

from nf_resnets.data import stream
from nf_resnets.training.checkpoint import Checkpoints
from nf_resnets.training.preemption import Preemption
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


def test_it_trains(whole):
    assert whole.status == "finished" and whole.first_step == 0
    assert int(whole.state.step) == len(whole.curve) == small.STEPS
    assert all(math.isfinite(value) for metrics in whole.curve for value in metrics.values())
    begun = small.begin().params["head"]["kernel"]
    assert np.abs(whole.state.params["head"]["kernel"] - begun).max() > 0.01


def test_a_killed_run_ends_with_the_same_parameters(data_dir, whole, tmp_path):
    folder = tmp_path / "checkpoints"
    killed = start(data_dir, folder, 11)
    killed.communicate(timeout=240)
    assert killed.returncode == -signal.SIGKILL
    # In the second epoch, and two steps after the newest checkpoint.
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


def test_a_run_that_is_told_to_stop_saves_and_goes_on(data_dir, whole, tmp_path):
    def on_step(made, metrics):
        if made == 6:
            signal.raise_signal(signal.SIGTERM)

    with Preemption() as stop:
        stopped = small.run(data_dir, tmp_path, stop=stop, on_step=on_step, save_every=0)
    # The signal is seen after the next step.
    assert stopped.status == "stopped" and len(stopped.curve) == 7 and stop.exit_code == 143
    resumed = small.run(data_dir, tmp_path)
    assert resumed.first_step == 7
    assert small.digest(resumed.state) == small.digest(whole.state)


def test_devices_change_nothing_but_rounding(data_dir, whole):
    made = small.run(data_dir, devices=4)
    # Means over the batch are summed in another order, Adam divides by their roots.
    np.testing.assert_allclose(
        [m["loss"] for m in made.curve], [m["loss"] for m in whole.curve], rtol=2e-4
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
    # Both of them begin where the leader's checkpoint is: at the end.
    pair = [start(data_dir, tmp_path / "both", 0, port, process) for process in (0, 1)]
    again = [finish(process) for process in pair]
    assert [one["first_step"] for one in again] == [small.STEPS] * 2
    assert {one["digest"] for one in again} == {found[0]["digest"]}


def made_up(count, seconds=0.0):
    """A stream without files: its images are what the step number says."""

    def batches(first_step, rows):
        for step in range(first_step, count):
            time.sleep(seconds)
            shape = (len(rows), small.SIZE, small.SIZE, 3)
            image = np.random.default_rng(step).integers(0, 256, shape).astype(np.uint8)
            yield {"image": image, "label": np.full(len(rows), 1, np.int32)}

    return batches


def loop(batches, steps, **options):
    mesh, step = small.compiled(1)
    return train_streamed(
        step, small.begin(), batches, mesh, num_steps=steps, batch_size=small.BATCH, **options
    )


def test_stalls_are_measured_and_shown():
    shown = []
    made = loop(made_up(6, seconds=0.1), 6, on_step=lambda step, metrics: shown.append(metrics))
    assert 0.6 <= made.waited < 0.6 + 1.0 and made.waited < made.seconds
    assert all(metrics["input_wait"] >= 0.1 for metrics in shown)
    # A step of this network takes milliseconds: nearly all of the time is waiting.
    assert shown[-1]["input_share"] > 0.5
    fast = []
    loop(made_up(6), 6, on_step=lambda step, metrics: fast.append(metrics))
    assert max(metrics["input_wait"] for metrics in fast) < 0.1
    assert not {"input_wait", "input_share"} & made.curve[0].keys()


def test_a_stream_that_ends_early_is_said():
    with pytest.raises(ValueError) as error:
        loop(made_up(3), 5)
    assert str(error.value) == "the stream ended before step 3; expected batches up to step 4."


def test_a_run_that_diverges_is_never_saved(tmp_path):
    checkpoints = Checkpoints(tmp_path / "run", {})
    mesh, step = small.compiled(1)
    begun = small.begin()
    begun = begun.replace(hyper={"learning_rate": jax.numpy.float32(np.inf)})
    made = train_streamed(
        step,
        begun,
        made_up(6),
        mesh,
        num_steps=6,
        batch_size=small.BATCH,
        checkpoints=checkpoints,
        save_every=1,
    )
    assert made.status == "diverged" and len(made.curve) == 1
    assert checkpoints.steps() == []
    checkpoints.close()


def test_what_is_out_of_range_is_refused():
    with pytest.raises(ValueError, match="num_steps=0 found; expected at least 1"):
        loop(made_up(1), 0)
    with pytest.raises(ValueError, match="save_every=-1 found; expected at least 0"):
        loop(made_up(1), 1, save_every=-1)
