"""Many steps in a call: the noise of gradients, several runs at once, runs that diverge."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nf_resnets import training
from nf_resnets.data.batch import Augmentation
from nf_resnets.training.images import make_train_steps
from tests.training import small

BATCH = 16
SPLIT = small.split()
# Float32 sums over 16 images of 64 pixels, in another order.
FLOAT32 = {"rtol": 5e-6, "atol": 5e-6}


def network(params, batch_stats, images, keys):
    """A layer, a ReLU, a multiplier and a head."""
    x = images.reshape(images.shape[0], -1)
    h = jax.nn.relu(x @ params["stem"]["kernel"] + params["bias_stem"])
    h = h * params["stage_1"]["first"]["multiplier"] + params["bias_head"]
    return h @ params["head"]["kernel"] + params["head"]["bias"].reshape(1, -1), batch_stats


def parameters(seed=1):
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return (0.1 * rng.standard_normal(shape)).astype(np.float32)

    return {
        "stem": {"kernel": draw(64, 6)},
        "bias_stem": draw() + np.float32(0),
        "stage_1": {"first": {"multiplier": np.float32(1.2)}},
        "head": {"kernel": draw(6, 10), "bias": draw(10)},
        "bias_head": np.float32(-0.3),
    }


def state_of(optimizer=small.sgd, **options):
    return small.state_of({"params": parameters()}, optimizer=optimizer, **options)


@functools.cache
def steps_on(sweep, data, vectorize="auto", **options):
    return make_train_steps(
        network, small.sgd, small.mesh_of(sweep, data),
        training.ImageTraining(BATCH, num_steps=5, **options), vectorize=vectorize,
    )  # fmt: skip


def call(states, counts, sweep=1, data=1, **options):
    """One call of the steps."""
    mesh = small.mesh_of(sweep, data)
    states = training.shard_runs(training.stack(states), mesh)
    counts = training.shard_runs(np.asarray(counts, np.int32), mesh)
    split = training.replicate(SPLIT, mesh)
    return jax.device_get(steps_on(sweep, data, **options)(states, counts, split))


def test_gradient_noise_is_that_of_the_micro_batches():
    """Two of them on each of four devices, of two examples each; a call ends with the epoch."""
    options = {"micro_batches": 2, "label_smoothing": 0.2, "gradient_noise": True}
    start = state_of()
    found = call([start.replace(step=jnp.int32(2))], [5], 1, 4, **options)
    assert found.counts == [1]  # of three steps in an epoch
    rows = small.order(3, 0, 48)[2 * BATCH : 3 * BATCH]
    loss = training.image_loss(network, label_smoothing=0.2)

    def square(rows):
        images = (jnp.asarray(SPLIT.images[rows], jnp.float32) - 8) / 5
        batch = {"image": images, "label": SPLIT.labels[rows]}
        grads = jax.grad(lambda params: loss(params, {}, batch)[0])(start.params)
        return sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(grads))

    parts, whole = np.mean([square(each) for each in rows.reshape(8, 2)]), square(rows)
    for name, value in (
        ("grad_norm", math.sqrt(whole)),
        ("gradient_signal", (16 * whole - 2 * parts) / 14),
        ("gradient_noise", (parts - whole) / (1 / 2 - 1 / 16)),
    ):
        np.testing.assert_allclose(found.curve[name][0, 0], value, **FLOAT32, err_msg=name)


FLIPS = Augmentation(flip=True)


def different_runs():
    return [
        state_of(seed=seed, learning_rate=rate, weight_decay=rate / 100)
        for seed, rate in enumerate((0.1, 0.4, 0.02, 0.2))
    ]


def call_four(states, counts, **options):
    """One call of four runs on two by two devices, with the augmentation."""
    return call(states, counts, 2, 2, augmentation=FLIPS, **options)


@pytest.mark.parametrize("vectorize", ["vmap", "loop"])
def test_runs_go_as_far_as_told_and_equal_the_same_runs_alone(vectorize):
    counts = [2, 0, 1, 3]
    found = call_four(different_runs(), counts, vectorize=vectorize)
    assert found.counts.tolist() == found.states.step.tolist() == counts
    assert not found.diverged.any()
    for run, state in enumerate(different_runs()):
        alone = call([state], counts[run : run + 1], augmentation=FLIPS)
        # Sums in another order on other devices and when vectorised; measured: 1e-7.
        params = training.unstack(found.states.params, slice(run, run + 1))
        small.assert_close(params, alone.states.params, rtol=2e-6, atol=2e-6)
        for name, curve in alone.curve.items():
            # NaN from the last step made on.
            np.testing.assert_allclose(found.curve[name][run], curve[0], rtol=2e-6)
            assert np.isnan(curve[0][counts[run] :]).all()
    # The comparison could fail: the runs do differ.
    assert np.nanmin(np.ptp(found.curve["loss"][[0, 2, 3], 0])) > 1e-2


@pytest.mark.parametrize("vectorize", ["vmap", "loop"])
def test_a_diverged_run_stops_at_its_step_and_leaves_its_neighbours_alone(vectorize):
    _, *others = different_runs()
    counts = [3, 3, 3, 3]
    expected = call_four([state_of(), *others], counts, vectorize=vectorize)
    hot = state_of(learning_rate=1e15)
    found = call_four([hot, *others], counts, vectorize=vectorize)
    # The first update is finite, but the second step sees weights of 1e14.
    assert found.counts.tolist() == [2, 3, 3, 3]
    assert found.diverged.tolist() == [True, False, False, False]
    last = [values[0, 1] for values in found.curve.values()]
    assert not np.isfinite(last).all()
    assert np.isfinite([values[0, 0] for values in found.curve.values()]).all()
    for name, values in found.curve.items():
        # One program, so bit for bit.
        np.testing.assert_array_equal(values[1:], expected.curve[name][1:])
    # An update that is not finite ends a run, too, though its loss is.
    found = call_four([state_of(learning_rate=3e38), *others], counts, vectorize=vectorize)
    assert found.counts.tolist() == [1, 3, 3, 3]
    last = {name: np.isfinite(values[0, 0]) for name, values in found.curve.items()}
    assert last == {"loss": True, "accuracy": True, "grad_norm": True, "update_norm": False}


@pytest.mark.parametrize("params", [
    {"head": {"kernel": np.ones((64, 10), jnp.bfloat16)}, "bias_head": np.ones((), jnp.bfloat16)},
    {"head": {"kernel": jnp.full((64, 10), 0.1)}, "bias_head": jnp.asarray(0.1)},
], ids=["bfloat16", "weak"])  # fmt: skip
def test_a_step_changes_neither_shapes_nor_dtypes(params):
    def optimizer(hyper):
        # Its velocity becomes float32 by itself where the weights are bfloat16.
        decay = optax.add_decayed_weights(hyper["weight_decay"])
        return optax.chain(decay, optax.sgd(hyper["learning_rate"], momentum=0.9))

    def abstract(tree):
        return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type), tree)

    # Running statistics of a network that computes in half precision.
    statistics = {"mean": np.zeros(1, np.float32), "weak": jnp.asarray(1.0)}

    def apply(params, batch_stats, images, keys):
        x = images.reshape(images.shape[0], -1).astype(params["head"]["kernel"].dtype)
        logits = x @ params["head"]["kernel"] + params["bias_head"]
        mean = (batch_stats["mean"] + x.mean().reshape(1)).astype(jnp.bfloat16)
        return logits, {"mean": mean, "weak": batch_stats["weak"]}

    state = small.state_of({"params": params, "batch_stats": statistics}, optimizer=optimizer)
    batch = {"image": jnp.ones((4, 8, 8, 1)), "label": jnp.zeros(4, jnp.int32)}
    loss = training.image_loss(apply)
    new, metrics = jax.eval_shape(
        functools.partial(training.replica_step, loss=loss, optimizer=optimizer), state, batch
    )
    assert abstract(new) == abstract(state)
    assert {leaf.dtype for leaf in metrics.values()} == {np.dtype(np.float32)}
