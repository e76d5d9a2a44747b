"""The same numbers on one device and many, under pmap, without a mesh, and in two processes."""

import functools
import json
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import linen as nn
from jax import lax

from nf_resnets import schemes, training
from nf_resnets.data.batch import Augmentation, training_batch
from nf_resnets.models.blocks import PreActivationBlock
from nf_resnets.models.layers import Conv, Head
from nf_resnets.models.stage import Stage
from tests.experiments.as_a_user import one_device
from tests.training import small

STEPS, BATCH = 4, 16  # of 48 examples: the fourth step begins the second epoch
AUGMENTATION = Augmentation(padding=1, flip=True)
# Float32 sums taken in another order. Measured: up to 3e-7 of a metric, 4e-7 in parameters and 1e-6
# in velocities, whose entries are of order 1; ten times that is allowed. The smallest mistake of a
# device count, a factor of 2 in some gradient, is 1e4 times larger.
METRIC = {"rtol": 3e-6, "atol": 0}
PARAMS = {"rtol": 0, "atol": 4e-6}
VELOCITY = {"rtol": 0, "atol": 1e-5}


class OneStage(nn.Module):
    """Three Fixup blocks, the last two of them scanned; compiles faster than a whole network."""

    scheme: str = "fixup"

    @nn.compact
    def __call__(self, images, train=False):
        block = partial(PreActivationBlock, features=4, anatomy=schemes.get(self.scheme).anatomy)
        x = Conv(4, name="stem")(images)
        x = Stage(block, num_blocks=3, stride=1, name="stage_1")(x)
        return Head(10, name="head")(x.mean(axis=(1, 2)))


def mesh_of(devices):
    return training.make_mesh(devices=jax.devices()[:devices])


def step_on(model, mesh, **options):
    shards = mesh.shape[training.DATA]
    return training.make_train_step(
        training.train_apply(model, shards=shards),
        small.sgd,
        mesh,
        batch_size=BATCH,
        augmentation=AUGMENTATION,
        **options,
    )


@functools.cache
def on_mesh(scheme, devices):
    """The final state of one run, with its axis [1], and the metrics [STEPS]."""
    model = OneStage() if scheme == "scanned" else small.wide_resnet(scheme)
    mesh = mesh_of(devices)
    state = small.state_of(small.he_variables(model))
    states, metrics = small.train(
        step_on(model, mesh), [state], small.split(), mesh, num_steps=STEPS, batch_size=BATCH
    )
    return small.host(states), {name: curve[:, 0] for name, curve in metrics.items()}


def assert_same_run(found, expected):
    (state, metrics), (expected_state, expected_metrics) = found, expected
    for name in ("loss", "accuracy", "grad_norm"):
        np.testing.assert_allclose(metrics[name], expected_metrics[name], **METRIC, err_msg=name)
    small.assert_close(state.params, expected_state.params, **PARAMS)
    small.assert_close(state.batch_stats, expected_state.batch_stats, **PARAMS)
    small.assert_close(state.opt_state, expected_state.opt_state, **VELOCITY)


@functools.cache
def batches():
    """The whole batches of the run's steps."""
    take = jax.jit(
        partial(training_batch, small.split(), batch_size=BATCH, augmentation=AUGMENTATION)
    )
    orders = [small.order(3, index // 3, 48) for index in range(STEPS)]
    return [take(orders[index], 3, index) for index in range(STEPS)]


def by_hand(step, state, parts):
    """Takes the steps of the run with ``parts(batch)`` as each step's batch."""
    curves = []
    for batch in batches():
        state, metrics = step(state, parts(batch))
        curves.append(jax.block_until_ready(metrics))
    return state, {name: np.stack([curve[name] for curve in curves]) for name in curves[0]}


@pytest.mark.every(5)  # the sharpest of them
@pytest.mark.parametrize(
    ("scheme", "devices"),
    [("batchnorm", 8), ("batchnorm", 2), ("fixup", 8), ("fixup", 2), ("scanned", 8)],
)
def test_many_devices_give_the_numbers_of_one(scheme, devices):
    assert_same_run(on_mesh(scheme, devices), on_mesh(scheme, 1))


@pytest.mark.parametrize("scheme", ["fixup", "batchnorm", "scanned"])
def test_the_run_that_is_compared_has_learnt(scheme):
    state, metrics = on_mesh(scheme, 1)
    model = OneStage() if scheme == "scanned" else small.wide_resnet(scheme)
    before = small.he_variables(model)
    for name in before:
        moved = jax.tree.map(
            lambda new, old: np.abs(new[0] - old).max(), getattr(state, name), before[name]
        )
        # Fifty times the tolerance, on every leaf.
        assert min(jax.tree.leaves(moved)) > 2e-4, moved
    assert len(np.unique(metrics["loss"])) == STEPS


def test_pmap_with_a_batch_split_by_hand():
    model = small.wide_resnet("fixup")
    pmapped = jax.pmap(
        partial(
            training.replica_step,
            apply_fn=training.train_apply(model, shards=2),
            optimizer=small.sgd,
            axis_name="data",
        ),
        axis_name="data",
        devices=jax.devices()[:2],
    )
    state = small.state_of(small.he_variables(model))
    state, metrics = by_hand(
        pmapped,
        training.stack([state, state]),
        lambda batch: jax.tree.map(lambda x: x.reshape(2, BATCH // 2, *x.shape[1:]), batch),
    )
    for replica in range(2):
        one = jax.tree.map(lambda leaf, replica=replica: np.asarray(leaf[replica][None]), state)
        curves = {name: curve[:, replica] for name, curve in metrics.items()}
        assert_same_run((one, curves), on_mesh("fixup", 1))


def test_one_replica_without_an_axis():
    model = small.wide_resnet("fixup")
    step = jax.jit(
        partial(training.replica_step, apply_fn=training.train_apply(model), optimizer=small.sgd)
    )
    state, metrics = by_hand(step, small.state_of(small.he_variables(model)), lambda batch: batch)
    one = jax.tree.map(lambda leaf: np.asarray(leaf[None]), state)
    assert_same_run((one, metrics), on_mesh("fixup", 1))


def test_several_runs_vectorised():
    model, mesh = small.wide_resnet("fixup"), mesh_of(1)
    variables = small.he_variables(model)
    states = [small.state_of(variables), small.state_of(variables, seed=4, learning_rate=0.02)]
    states, metrics = small.train(
        step_on(model, mesh, vectorize="vmap"),
        states,
        small.split(),
        mesh,
        num_steps=STEPS,
        batch_size=BATCH,
    )
    first = small.host(training.unstack(states, slice(0, 1)))
    assert_same_run(
        (first, {name: curve[:, 0] for name, curve in metrics.items()}), on_mesh("fixup", 1)
    )
    assert np.abs(metrics["loss"][:, 0] - metrics["loss"][:, 1]).min() > 1e-3


def linear(params, batch_stats, images, keys):
    x = images.reshape(images.shape[0], -1)
    return x @ params["head"]["kernel"] + params["bias_head"], batch_stats


LINEAR = {
    "params": {
        "head": {"kernel": np.linspace(-0.1, 0.1, 640, dtype=np.float32).reshape(64, 10)},
        "bias_head": np.float32(0.1),
    }
}


def linear_run(devices):
    mesh = mesh_of(devices)
    step = training.make_train_step(linear, small.sgd, mesh, batch_size=BATCH)
    states, metrics = small.train(
        step, [small.state_of(LINEAR)], small.split(), mesh, num_steps=STEPS, batch_size=BATCH
    )
    return small.host(states), {name: curve[:, 0] for name, curve in metrics.items()}


def test_without_the_cast_two_devices_give_other_numbers(monkeypatch):
    # The negative control of this file: what is silently wrong in a naive port of pmap.
    expected = linear_run(1)
    assert_same_run(linear_run(2), expected)
    monkeypatch.setattr(lax, "pcast", lambda x, *args, **options: x)
    state, metrics = linear_run(2)
    np.testing.assert_allclose(metrics["loss"][0], expected[1]["loss"][0], **METRIC)
    np.testing.assert_allclose(metrics["grad_norm"][0], 2 * expected[1]["grad_norm"][0], rtol=1e-5)
    with pytest.raises(AssertionError, match="loss"):
        assert_same_run((state, metrics), expected)


def test_statistics_of_a_network_that_leaves_them_alone():
    # Not of one device's own, since nothing of the batch is in them, yet averaged all the same.
    variables = LINEAR | {"batch_stats": {"count": np.float32(7)}}
    mesh = mesh_of(2)
    step = training.make_train_step(linear, small.sgd, mesh, batch_size=BATCH)
    states, _ = small.train(
        step, [small.state_of(variables)], small.split(), mesh, num_steps=2, batch_size=BATCH
    )
    assert states.batch_stats["count"].tolist() == [7]


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["fixup", "batchnorm"])
def test_two_processes_give_the_numbers_of_one(scheme, tmp_path):
    root = Path(__file__).parents[2]
    port = free_port()
    environment = one_device() | {
        "JAX_PLATFORMS": "cpu",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "PYTHONPATH": str(root),
    }
    logs = [tmp_path / f"{process}.log" for process in range(2)]
    processes = []
    try:
        for process in range(2):
            command = [sys.executable, "-m", "tests.training.two_processes"]
            command += [str(port), str(process), scheme, str(tmp_path)]
            with open(logs[process], "w") as log:
                processes.append(
                    subprocess.Popen(
                        command,
                        cwd=root,
                        env=environment,
                        stdout=subprocess.PIPE,
                        stderr=log,
                        text=True,
                    )
                )
        printed = [process.communicate(timeout=240)[0] for process in processes]
    except subprocess.TimeoutExpired:
        printed = ["timed out"] * 2
    finally:
        for process in processes:
            process.kill()
            process.wait()
    errors = "\n".join(
        f"--- process {process}: {printed[process]}\n{log.read_text()[-5000:]}"
        for process, log in enumerate(logs)
    )
    assert [process.returncode for process in processes] == [0, 0], errors

    for process in range(2):
        found = json.loads(printed[process].splitlines()[-1])
        state, metrics = on_mesh(scheme, 1)
        assert found.keys() == metrics.keys()
        for name, curve in found.items():
            np.testing.assert_allclose(curve, metrics[name], **METRIC, err_msg=name)
        expected = jax.tree.leaves((state.params, state.batch_stats))
        with np.load(tmp_path / f"{process}.npz") as leaves:
            assert len(leaves) == len(expected)
            for index, leaf in enumerate(expected):
                np.testing.assert_allclose(leaves[f"arr_{index}"], leaf, **PARAMS)
