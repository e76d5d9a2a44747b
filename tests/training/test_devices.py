"""The same numbers on one device and many, under pmap, and without a mesh."""

from functools import partial

import jax
import numpy as np
import pytest

from experiments.untrained import OneStage
from nf_resnets import training
from nf_resnets.data.batch import Augmentation, training_batch
from nf_resnets.training.images import make_train_steps
from tests.models.trees import random_variables
from tests.training import small

STEPS, BATCH = 4, 16  # of 48 examples: the fourth step begins the second epoch
AUGMENTATION = Augmentation(padding=1, flip=True)
# Float32 sums taken in another order. Measured: up to 3e-7 of a metric, 4e-7 in parameters and 1e-6
# in velocities, whose entries are of order 1; ten times that is allowed. The smallest mistake of a
# device count, a factor of 2 in some gradient, is 1e4 times larger.
METRIC = {"rtol": 3e-6, "atol": 0}
PARAMS = {"rtol": 0, "atol": 4e-6}
VELOCITY = {"rtol": 0, "atol": 1e-5}


def model_of(scheme):
    """Of "one SCHEME" a network of one block, which compiles faster than a whole one."""
    if scheme.startswith("one "):
        return OneStage(1, 4, scheme.removeprefix("one "), bn_groups=8)
    return small.wide_resnet(scheme)


def state_of(scheme):
    return small.state_of(random_variables(model_of(scheme), 0, (8, 8, 1), branch=1.0))


def on_mesh(scheme, devices, parts):
    """The final state of one run, with its axis [1], and the metrics [STEPS, 1]."""
    mesh = small.mesh_of(1, devices)
    apply_fn = training.train_apply(model_of(scheme), shards=devices * parts)
    how = training.ImageTraining(
        BATCH, num_steps=STEPS, augmentation=AUGMENTATION, micro_batches=parts
    )
    steps = make_train_steps(apply_fn, small.sgd, mesh, how)
    return small.train(steps, [state_of(scheme)], small.split(), mesh, num_steps=STEPS)


def alone(scheme):
    """The same run without a mesh."""
    apply_fn = training.train_apply(model_of(scheme))
    options = {"num_steps": STEPS, "batch_size": BATCH, "augmentation": AUGMENTATION}
    return small.reference(apply_fn, state_of(scheme), small.split(), **options)


def assert_same_run(found, expected):
    (state, metrics), (expected_state, expected_metrics) = found, expected
    for name in ("loss", "accuracy", "grad_norm"):
        np.testing.assert_allclose(metrics[name], expected_metrics[name], **METRIC, err_msg=name)
    small.assert_close(state.params, expected_state.params, **PARAMS)
    small.assert_close(state.batch_stats, expected_state.batch_stats, **PARAMS)
    small.assert_close(state.opt_state, expected_state.opt_state, **VELOCITY)


@pytest.mark.every(4)  # the sharpest of them
@pytest.mark.parametrize(
    ("scheme", "devices", "parts"),
    [("one batchnorm", 8, 1), ("batchnorm", 2, 2), ("fixup", 8, 1), ("fixup", 1, 2)],
)
def test_many_devices_and_parts_give_the_numbers_of_a_step_without_a_mesh(scheme, devices, parts):
    assert_same_run(on_mesh(scheme, devices, parts), alone(scheme))


def test_pmap_with_a_batch_split_by_hand():
    loss = training.image_loss(training.train_apply(model_of("one fixup")))
    pmapped = jax.pmap(
        partial(training.replica_step, loss=loss, optimizer=small.sgd, axis_name="data"),
        axis_name="data",
        devices=jax.devices()[:2],
    )
    state = training.stack([state_of("one fixup")] * 2)
    take = jax.jit(
        partial(training_batch, small.split(), batch_size=BATCH, augmentation=AUGMENTATION)
    )
    seed, losses = int(state.seed[0]), []
    for step in range(STEPS):
        batch = take(small.order(seed, step // 3, 48), seed, step)
        halves = jax.tree.map(lambda x: x.reshape(2, BATCH // 2, *x.shape[1:]), batch)
        state, metrics = pmapped(state, halves)
        losses.append(np.asarray(metrics["loss"]))
    expected, curve = alone("one fixup")
    for replica in range(2):
        one = training.unstack(jax.device_get(state), slice(replica, replica + 1))
        small.assert_close(one.params, expected.params, **PARAMS)
        np.testing.assert_allclose(np.stack(losses)[:, replica], curve["loss"][:, 0], **METRIC)
