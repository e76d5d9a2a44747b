"""The step on streamed batches against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nf_resnets import training
from nf_resnets.data import imagenet, mixture
from nf_resnets.training.host_steps import host_step, on_devices
from nf_resnets.training.streamed import mixed

B, SIDE, CLASSES = 16, 2, 5
MEAN, STD = imagenet.IMAGENET_MEAN, imagenet.IMAGENET_STD
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (B, SIDE, SIDE, 3)).astype(np.uint8)
LABELS = RNG.integers(0, CLASSES, B).astype(np.int32)
KERNEL = RNG.standard_normal((SIDE * SIDE * 3, CLASSES)).astype(np.float32)
RATE, SEED, STEP = 0.1, 9, 4


def linear(params, batch_stats, images, keys=None):
    return images.reshape(images.shape[0], -1) @ params["kernel"], batch_stats


def sgd(hyper):
    return optax.sgd(hyper["learning_rate"])


def state():
    made = training.create_state(
        {"kernel": jnp.asarray(KERNEL)}, sgd, {"learning_rate": RATE}, seed=SEED
    )
    return made.replace(step=jnp.int32(STEP))


def in_numpy(mixup, smoothing):
    """Loss and new kernel of one step, in float64 from the definitions."""
    x = ((IMAGES.astype(np.float64) - MEAN) / STD).reshape(B, -1)
    y = np.eye(CLASSES)[LABELS]
    if mixup:
        fraction, partners = mixture(mixup, SEED, STEP, B)
        fraction, partners = float(fraction), np.asarray(partners)
        x, y = (fraction * each + (1 - fraction) * each[partners] for each in (x, y))
    y = (1 - smoothing) * y + smoothing / CLASSES
    z = x @ KERNEL.astype(np.float64)
    log_p = z - np.log(np.exp(z).sum(1, keepdims=True))
    return -(y * log_p).sum(1).mean(), KERNEL - RATE * x.T @ (np.exp(log_p) - y) / B


@pytest.mark.parametrize(
    ("devices", "mixup", "smoothing"), [(1, 0.7, 0.0), (4, 0.0, 0.0), (4, 0.7, 0.1)]
)
def test_a_step_is_that_of_numpy(devices, mixup, smoothing):
    mesh = training.make_mesh(devices=jax.devices()[:devices])
    loss_fn = training.image_loss(linear, label_smoothing=smoothing)
    step = host_step(loss_fn, mixed(B, mixup), sgd, mesh)
    (batch,) = on_devices(iter([{"image": IMAGES, "label": LABELS, "index": LABELS}]), mesh)
    states, metrics = step(training.shard_runs(training.stack([state()]), mesh), batch)
    loss, kernel = in_numpy(mixup, smoothing)
    # Sums of up to 16 x 12 float32 products of size one: a few hundred roundings of 6e-8.
    np.testing.assert_allclose(metrics["loss"][0], loss, rtol=1e-5)
    np.testing.assert_allclose(states.params["kernel"][0], kernel, rtol=1e-4, atol=2e-6)
    assert int(states.step[0]) == STEP + 1
    if mixup:
        # It does mix, and so the check above could fail.
        assert abs(loss - in_numpy(0.0, smoothing)[0]) > 1e-2
