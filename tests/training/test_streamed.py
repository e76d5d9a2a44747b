"""The step on streamed batches is that on the same images in memory."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nf_resnets import data, training
from nf_resnets.training.host_steps import host_step, on_devices
from nf_resnets.training.streamed import COLOURS, mixed

B, SIDE, CLASSES, SEED, STEP = 16, 2, 5, 9, 4
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (B, SIDE, SIDE, 3)).astype(np.uint8)
LABELS = RNG.integers(0, CLASSES, B).astype(np.int32)
KERNEL = RNG.standard_normal((SIDE * SIDE * 3, CLASSES)).astype(np.float32)


def linear(params, batch_stats, images, keys=None):
    return images.reshape(images.shape[0], -1) @ params["kernel"], batch_stats


def sgd(hyper):
    return optax.sgd(hyper["learning_rate"])


@pytest.mark.parametrize(
    ("devices", "mixup", "smoothing"), [(1, 0.7, 0.0), (4, 0.0, 0.0), (4, 0.7, 0.1)]
)
def test_a_step_is_that_on_images_in_memory(devices, mixup, smoothing):
    mesh = training.make_mesh(devices=jax.devices()[:devices])
    loss = training.image_loss(linear, label_smoothing=smoothing)
    state = training.create_state({"kernel": KERNEL}, sgd, {"learning_rate": 0.1}, seed=SEED)
    state = state.replace(step=jnp.int32(STEP))
    in_memory = data.training_batch(
        data.DeviceData(IMAGES, LABELS, *map(np.float32, COLOURS)), jnp.arange(B), SEED, STEP,
        batch_size=B, augmentation=data.Augmentation(mixup=mixup),
    )  # fmt: skip
    expected, of_all = training.replica_step(state, in_memory, loss=loss, optimizer=sgd)
    (batch,) = on_devices(iter([{"image": IMAGES, "label": LABELS, "index": LABELS}]), mesh)
    states = training.shard_runs(training.stack([state]), mesh)
    found, metrics = host_step(loss, mixed(B, mixup), sgd, mesh)(states, batch)
    # Sums of up to 16 x 12 float32 products of size one: a few hundred roundings of 6e-8.
    for name, value in of_all.items():
        np.testing.assert_allclose(metrics[name][0], value, rtol=1e-5, err_msg=name)
    kernel, moved = found.params["kernel"][0], expected.params["kernel"]
    np.testing.assert_allclose(kernel, moved, rtol=1e-4, atol=2e-6)
    assert int(found.step[0]) == STEP + 1 and np.abs(moved - KERNEL).max() > 0.01
