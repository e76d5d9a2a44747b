"""The batch of a step: what is done to it in which order, and the same on one device and eight."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from nf_resnets.data import (
    Augmentation,
    DeviceData,
    cutout,
    epoch_order,
    example_keys,
    mixture,
    random_crop,
    random_flip,
    training_batch,
)

BATCH, COUNT, SEED = 16, 40, 5
ALL = Augmentation(padding=2, flip=True, mixup=0.7, cutout=3)
RNG = np.random.default_rng(0)
SPLIT = DeviceData(
    images=RNG.integers(0, 256, (COUNT, 8, 8, 3)).astype(np.uint8),
    labels=RNG.integers(0, 10, COUNT).astype(np.int32),
    mean=np.array([120.0, 130.0, 110.0], np.float32),
    std=np.array([60.0, 50.0, 70.0], np.float32),
)
ORDER = np.asarray(epoch_order(SEED, 0, COUNT))


@functools.cache
def compiled(augmentation):
    return jax.jit(functools.partial(training_batch, batch_size=BATCH, augmentation=augmentation))


def whole(augmentation, step):
    return compiled(augmentation)(SPLIT, ORDER, SEED, step)


@jax.jit
def apart(images, step):
    """Images that are cropped and flipped, the holes in them, fraction and partners."""
    keys = example_keys(SEED, step, jnp.arange(BATCH))
    raw = random_flip(random_crop(images, keys, 2), keys)
    return raw, cutout(jnp.ones((BATCH, 8, 8, 3)), keys, 3), mixture(0.7, SEED, step, BATCH)


def test_images_in_rows_make_the_same_batch():
    rows = SPLIT.replace(images=SPLIT.images.reshape(COUNT, -1), shape=(8, 8, 3))
    found = compiled(ALL)(rows, ORDER, SEED, 1)
    for name, value in whole(ALL, 1).items():
        assert (found[name] == value).all()


@pytest.mark.parametrize("step", [0, 1, 3])
def test_mixup_against_numpy(step):
    """Step 3 is the second of the second epoch: the batch is cut from the order again."""
    batch = whole(ALL, step)
    rows = ORDER[step % 2 * BATCH : step % 2 * BATCH + BATCH]
    raw, holes, (fraction, partners) = apart(SPLIT.images[rows], step)
    images = (np.float64(raw) - np.float64(SPLIT.mean)) / np.float64(SPLIT.std)
    images[np.asarray(holes) == 0] = 0
    fraction, partners = np.float64(fraction), np.asarray(partners)
    expected = fraction * images + (1 - fraction) * images[partners]
    # Normalized pixels of order 2 in float32: subtraction, quotient, two products and a sum.
    np.testing.assert_allclose(batch["image"], expected, rtol=0, atol=3e-6)
    np.testing.assert_array_equal(batch["label"], SPLIT.labels[rows])
    np.testing.assert_array_equal(batch["other_label"], SPLIT.labels[rows][partners])
    np.testing.assert_allclose(batch["fraction"], np.full(BATCH, fraction), rtol=1e-6)
    assert batch["fraction"].dtype == jnp.float32 and batch["other_label"].dtype == jnp.int32
    # Something was mixed, and something cut out.
    assert np.any(partners != np.arange(BATCH)) and 0.01 < fraction < 0.99


@pytest.mark.parametrize("devices", [pytest.param(2, marks=pytest.mark.slow), 8])
def test_one_device_and_eight_mix_the_same_images(devices):
    mesh = jax.make_mesh(
        (devices,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices]
    )
    local = functools.partial(training_batch, batch_size=BATCH, augmentation=ALL, axis_name="data")
    sharded = jax.shard_map(
        lambda split, order, step: {
            name: value for name, value in local(split, order, SEED, step).items() if name != "keys"
        },
        mesh=mesh,
        in_specs=(P(), P(), P()),
        out_specs=P("data"),
    )
    for step in (0, 3):
        found, expected = jax.jit(sharded)(SPLIT, ORDER, step), whole(ALL, step)
        for name in ("label", "other_label", "fraction"):
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
        # The same products and sums, which a compiler may fuse in one place and not in the other.
        np.testing.assert_allclose(found["image"], expected["image"], rtol=0, atol=1e-6)
