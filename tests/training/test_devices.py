"""The same numbers on one device and many, under pmap, without a mesh, and in two processes."""

import functools
from functools import partial

import jax
import numpy as np
import pytest
from flax import linen as nn
from jax import lax

from nf_resnets import schemes, training
from nf_resnets.data.batch import Augmentation, training_batch
from nf_resnets.models.blocks import PreActivationBlock
from nf_resnets.models.layers import Conv, Dense
from nf_resnets.models.stage import Stage
from nf_resnets.training.images import make_train_steps
from tests.training import small

STEPS, BATCH = 4, 16  # of 48 examples: the fourth step begins the second epoch
AUGMENTATION = Augmentation(padding=1, flip=True)
# Float32 sums taken in another order. Measured: up to 3e-7 of a metric, 4e-7 in parameters and 1e-6
# in velocities, whose entries are of order 1; ten times that is allowed. The smallest mistake of a
# device count, a factor of 2 in some gradient, is 1e4 times larger.
METRIC = {"rtol": 3e-6, "atol": 0}
PARAMS = {"rtol": 0, "atol": 4e-6}
VELOCITY = {"rtol": 0, "atol": 1e-5}


class OneBlock(nn.Module):
    """Compiles faster than a whole network."""

    scheme: str = "fixup"
    bn_groups: int = 8

    @nn.compact
    def __call__(self, images, train=False):
        block = partial(
            PreActivationBlock,
            features=4,
            anatomy=schemes.get(self.scheme).anatomy,
            train=train,
            bn_groups=self.bn_groups,
        )
        x = Conv(4, name="stem")(images)
        x = Stage(block, num_blocks=1, stride=1, name="stage_1")(x)
        return Dense(10, name="head")(x.mean(axis=(1, 2)))


def model_of(scheme):
    one = scheme.startswith("one ")
    return OneBlock(scheme.removeprefix("one ")) if one else small.wide_resnet(scheme)


def state_of(scheme, **options):
    return small.state_of(small.he_variables(model_of(scheme)), **options)


def steps_on(apply_fn, mesh, vectorize="auto", **options):
    how = training.ImageTraining(BATCH, num_steps=STEPS, **options)
    return make_train_steps(apply_fn, small.sgd, mesh, how, vectorize=vectorize)


@functools.cache
def on_mesh(scheme, devices, **options):
    """The final state of one run, with its axis [1], and the metrics [STEPS, 1]."""
    mesh, parts = small.mesh_of(1, devices), options.get("micro_batches", 1)
    apply_fn = training.train_apply(model_of(scheme), shards=devices * parts)
    steps = steps_on(apply_fn, mesh, augmentation=AUGMENTATION, **options)
    return small.train(steps, [state_of(scheme)], small.split(), mesh, num_steps=STEPS)


@functools.cache
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


@pytest.mark.every(6)  # the sharpest of them
@pytest.mark.parametrize(
    ("scheme", "devices"),
    [
        ("one batchnorm", 8),
        ("one fixup", 8),
        ("batchnorm", 8),
        ("batchnorm", 1),
        ("fixup", 8),
        ("fixup", 1),
    ],
)
def test_many_devices_give_the_numbers_of_a_step_without_a_mesh(scheme, devices):
    assert_same_run(on_mesh(scheme, devices), alone(scheme))


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "devices"), [("batchnorm", 2), ("fixup", 1)])
def test_a_batch_in_parts_has_the_gradients_of_the_whole(scheme, devices):
    assert_same_run(on_mesh(scheme, devices, micro_batches=2), alone(scheme))


@pytest.mark.slow
def test_several_runs_vectorised():
    mesh = small.mesh_of()
    apply_fn = training.train_apply(model_of("fixup"))
    steps = steps_on(apply_fn, mesh, augmentation=AUGMENTATION, vectorize="vmap")
    states = [state_of("fixup"), state_of("fixup", seed=4, learning_rate=0.02)]
    states, metrics = small.train(steps, states, small.split(), mesh, num_steps=STEPS)
    first = {name: curve[:, :1] for name, curve in metrics.items()}
    assert_same_run((training.unstack(states, slice(0, 1)), first), alone("fixup"))
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


def linear_run(devices, **more):
    mesh = small.mesh_of(1, devices)
    states = [small.state_of(LINEAR | more)]
    return small.train(steps_on(linear, mesh), states, small.split(), mesh, num_steps=STEPS)


@functools.cache
def linear_alone():
    return linear_run(1)


def test_pmap_with_a_batch_split_by_hand():
    loss = training.image_loss(linear)
    pmapped = jax.pmap(
        partial(training.replica_step, loss=loss, optimizer=small.sgd, axis_name="data"),
        axis_name="data",
        devices=jax.devices()[:2],
    )
    state = training.stack([small.state_of(LINEAR)] * 2)
    take = jax.jit(partial(training_batch, small.split(), batch_size=BATCH))
    losses = []
    for index in range(STEPS):
        batch = take(small.order(3, index // 3, 48), 3, index)
        halves = jax.tree.map(lambda x: x.reshape(2, BATCH // 2, *x.shape[1:]), batch)
        state, metrics = pmapped(state, halves)
        losses.append(np.asarray(metrics["loss"]))
    expected, curve = linear_alone()
    for replica in range(2):
        one = training.unstack(small.host(state), slice(replica, replica + 1))
        small.assert_close(one.params, expected.params, **PARAMS)
        np.testing.assert_allclose(np.stack(losses)[:, replica], curve["loss"][:, 0], **METRIC)


def test_without_the_cast_two_devices_give_other_numbers(monkeypatch):
    # The negative control of this file: what is silently wrong in a naive port of pmap.
    expected, found = linear_alone(), linear_run(2, batch_stats={"count": np.float32(7)})
    # Statistics that nothing of the batch is in are averaged all the same.
    assert found[0].batch_stats["count"].tolist() == [7]
    assert_same_run((found[0].replace(batch_stats={}), found[1]), expected)
    own = lax.pcast

    def parameters_stay(x, *args, **options):
        return x if x.ndim == 2 and x.shape == (64, 10) else own(x, *args, **options)

    monkeypatch.setattr(lax, "pcast", parameters_stay)
    state, metrics = linear_run(2)
    np.testing.assert_allclose(metrics["loss"][0], expected[1]["loss"][0], **METRIC)
    assert (metrics["grad_norm"][0] > 1.5 * expected[1]["grad_norm"][0]).all()
    with pytest.raises(AssertionError, match="loss"):
        assert_same_run((state, metrics), expected)
