"""A small split, small networks and short runs, and a log of events, shared by the tests.

Drawn with NumPy, since JAX compiles every shape of a random array anew.
"""

from __future__ import annotations

import functools
import math
import threading

import jax
import numpy as np
import pytest

from nf_resnets import models, optim, training
from nf_resnets.data import epoch_order, steps_per_epoch
from nf_resnets.data.batch import Augmentation, DeviceData, training_batch
from nf_resnets.training.images import METRICS

HYPER = {"learning_rate": 0.1, "weight_decay": 5e-4}


class Log:
    """A callback that keeps its events in order, and hooks that keep rows and stop at a step."""

    def __init__(self, stop_at=math.inf, **hooks):
        self.events, self.rows, self.over, self._stop_at = [], [], False, stop_at
        self.hooks = training.Hooks(self, self.record, lambda: self.over, **hooks)
        self._lock = threading.Lock()

    def __getattr__(self, name):
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *values: self.add(name, *values)

    def add(self, *event):
        with self._lock:
            self.events.append(event)

    def on_step(self, key, step, curve):
        self.add("on_step", key, step, curve)
        self.over |= step >= self._stop_at

    def record(self, rows):
        self.rows.extend(rows)
        return rows

    def of(self, name):
        return [event[1:] for event in self.events if event[0] == name]


def split(count=48, size=8, seed=0):
    """Random pixels and labels, uint8 [count, size, size, 1] and int32 [count]."""
    rng = np.random.default_rng(seed)
    return DeviceData(
        images=rng.integers(0, 17, (count, size, size, 1)).astype(np.uint8),
        labels=rng.integers(0, 10, count).astype(np.int32),
        mean=np.array([8.0], np.float32),
        std=np.array([5.0], np.float32),
    )


def sgd(hyper):
    return optim.sgd(hyper["learning_rate"], weight_decay=hyper["weight_decay"])


def wide_resnet(scheme, depth=10):
    return models.WideResNet(depth=depth, scheme=scheme, stem_channels=4, bn_groups=8)


def state_of(variables, seed=3, optimizer=sgd, **hyper):
    return training.create_state(
        variables["params"],
        optimizer,
        HYPER | hyper,
        batch_stats=variables.get("batch_stats"),
        seed=seed,
    )


@functools.cache
def order(seed, epoch, count):
    return np.asarray(epoch_order(seed, epoch, count))


def mesh_of(sweep=1, data=1):
    return training.make_mesh(sweep, data, devices=jax.devices()[: sweep * data])


def train(steps, states, data, mesh, *, num_steps):
    """Makes steps with several runs; returns their last states and the metrics [num_steps, R]."""
    runs = len(states)
    states = training.shard_runs(training.stack(states), mesh)
    data = training.replicate(data, mesh)
    curves = []
    while (left := num_steps - sum(map(len, curves))) > 0:
        found = steps(states, training.shard_runs(np.full(runs, left, np.int32), mesh), data)
        states, (count, *others) = found.states, found.counts.tolist()
        assert others == [count] * (runs - 1)
        names = list(found.curve)
        curves.append(np.stack([np.asarray(found.curve[name])[:, :count].T for name in names], 1))
    curve = np.concatenate([np.moveaxis(each, 1, 2) for each in curves])
    return jax.device_get(states), {name: curve[..., index] for index, name in enumerate(names)}


def reference(apply_fn, state, data, *, num_steps, batch_size, **options):
    """As `train` with one run, but step by step, without a mesh and with batches made outside."""
    augmentation = options.pop("augmentation", Augmentation())
    options = {"optimizer": sgd, **options}
    count, seed = data.labels.shape[0], int(state.seed)
    take = jax.jit(
        functools.partial(training_batch, batch_size=batch_size, augmentation=augmentation)
    )
    loss = training.image_loss(apply_fn)
    step = jax.jit(functools.partial(training.replica_step, loss=loss, **options))
    curve = []
    for index in range(num_steps):
        epoch = index // steps_per_epoch(count, batch_size)
        state, metrics = step(state, take(data, order(seed, epoch, count), seed, index))
        curve.append(metrics)
    curve = {name: np.stack([metrics[name] for metrics in curve])[:, None] for name in METRICS}
    return jax.device_get(training.stack([state])), curve


def assert_close(actual, desired, rtol, atol):
    """Compares two trees leaf by leaf, naming the leaf that differs."""
    flat, treedef = jax.tree_util.tree_flatten_with_path(actual)
    assert treedef == jax.tree.structure(desired)
    for (path, leaf), expected in zip(flat, jax.tree.leaves(desired), strict=True):
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(leaf, expected, rtol=rtol, atol=atol, err_msg=name)


UNLIKE = (
    "seconds", "seconds_per_step", "resumed_at", "made", "traceback", "input_wait",
    "input_fraction",
)  # fmt: skip
# Waves of another width are another program, and XLA's fused loops sum in another order: of the
# losses here one in ten differs in the last place of float32, a part in 2^22 of 2.3.
WIDTH = 2.0**-20


def repeatable(value):
    """Rows without what another machine or another try would change."""
    if isinstance(value, dict):
        return {name: repeatable(each) for name, each in value.items() if name not in UNLIKE}
    return [repeatable(each) for each in value] if isinstance(value, list) else value


def assert_rows_alike(rows, others, rel=0.0):
    """Every repeatable number of the rows is equal; to the last bit where ``rel`` is 0."""

    def alike(value, other):
        if isinstance(value, float):
            return value == pytest.approx(other, rel=rel, abs=0.0)
        return value == other

    assert jax.tree.all(jax.tree.map(alike, repeatable(rows), repeatable(others)))
