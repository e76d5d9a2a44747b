"""A small split, small networks and short runs, shared by the tests of training.

Drawn with NumPy, since JAX compiles every shape of a random array anew.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import models, optim, training
from nf_resnets.data import epoch_order, steps_per_epoch
from nf_resnets.data.batch import DeviceData

HYPER = {"learning_rate": 0.1, "weight_decay": 5e-4}


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


def he_variables(model, size=8, seed=0):
    """He weights, biases of a tenth, scales around one: no leaf's gradient is blocked by a zero."""
    rng = np.random.default_rng(seed)
    images = jax.ShapeDtypeStruct((8, size, size, 1), jnp.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)

    def draw(path, leaf):
        name = path[-1].key
        noise = rng.standard_normal(leaf.shape).astype(np.float32)
        if path[0].key == "batch_stats":
            return np.full(leaf.shape, name == "var", np.float32)
        if name == "kernel":
            return noise * np.float32((2 / math.prod(leaf.shape[-4:-1])) ** 0.5)
        return np.float32(name in ("multiplier", "alpha", "scale")) + np.float32(0.1) * noise

    return jax.tree_util.tree_map_with_path(draw, shapes)


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


def train(step, states, data, mesh, *, num_steps, batch_size):
    """Takes steps with several runs; returns their last states and the metrics [num_steps, R]."""
    count = data.labels.shape[0]
    per_epoch = steps_per_epoch(count, batch_size)
    seeds = [int(state.seed) for state in states]
    states = training.shard_runs(training.stack(states), mesh)
    data = training.replicate(data, mesh)
    curves = []
    for index in range(num_steps):
        orders = np.stack([order(seed, index // per_epoch, count) for seed in seeds])
        states, metrics = step(states, data, training.shard_runs(orders, mesh))
        # Waited for: steps that run ahead can deadlock on virtual devices.
        curves.append(jax.block_until_ready(metrics))
    return states, {name: np.stack([curve[name] for curve in curves]) for name in curves[0]}


def host(tree):
    return jax.tree.map(np.asarray, tree)


def assert_close(actual, desired, rtol, atol):
    """Compares two trees leaf by leaf, naming the leaf that differs."""
    flat, treedef = jax.tree_util.tree_flatten_with_path(actual)
    assert treedef == jax.tree.structure(desired)
    for (path, leaf), expected in zip(flat, jax.tree.leaves(desired), strict=True):
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(leaf, expected, rtol=rtol, atol=atol, err_msg=name)
