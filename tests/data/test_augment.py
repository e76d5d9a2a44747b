"""Augmentation against loops in NumPy, its statistics, and its independence of the devices."""

import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets.data import (
    augment,
    cutout,
    example_keys,
    normalize,
    random_crop,
    random_flip,
    seed_key,
)

SIDE, PADDING = 8, 4
OFFSETS = 2 * PADDING + 1


def _numbered_image():
    """All pixels differ and none is black, so a crop or a flip can be told from its result."""
    return np.arange(1, SIDE * SIDE + 1, dtype=np.uint8).reshape(SIDE, SIDE, 1)


def _numpy_crops(image, padding):
    """Every crop of the zero-padded image, by its offset."""
    padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    height, width, _ = image.shape
    return {
        (down, right): padded[down : down + height, right : right + width]
        for down, right in itertools.product(range(2 * padding + 1), repeat=2)
    }


crop = jax.jit(random_crop, static_argnames="padding")
flip = jax.jit(random_flip)


@cache
def _draw(transform, count=8_100):
    image = _numbered_image()
    images = np.broadcast_to(image, (count, *image.shape))
    return np.asarray(transform(images, example_keys(0, 5, jnp.arange(count))))


def _offsets(crops):
    table = {crop.tobytes(): at for at, crop in _numpy_crops(_numbered_image(), PADDING).items()}
    assert len(table) == OFFSETS**2
    return np.array([table[crop.tobytes()] for crop in crops])  # a KeyError is an impossible crop


def _chi_squared(counts):
    expected = counts.sum() / counts.size
    return ((counts - expected) ** 2 / expected).sum()


def test_crop_matches_numpy_and_offsets_are_uniform():
    offsets = _offsets(_draw(crop))
    counts = np.bincount(offsets[:, 0] * OFFSETS + offsets[:, 1], minlength=OFFSETS**2)
    # All 81 pairs, 100 times each on average.  chi-squared with 80 degrees of freedom exceeds 133.8
    # with probability 1e-4; correlated directions or a missing last offset give thousands.
    assert counts.min() > 0
    assert _chi_squared(counts) < 133.8


def test_flip_matches_numpy_and_has_probability_one_half():
    image, images = _numbered_image(), _draw(flip)
    is_flipped = (images == np.fliplr(image)).all((1, 2, 3))
    assert (is_flipped | (images == image).all((1, 2, 3))).all()
    # Four standard deviations of a binomial of 8,100 fair coins: 4 * sqrt(8,100 / 4) = 180.
    assert abs(is_flipped.sum() - 4_050) < 180


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_crops_of_all_images_at_once_are_those_of_one_after_another(dtype):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (30, 9, 11, 3)).astype(dtype)
    offsets = rng.integers(0, 5, (30, 2))
    one_by_one, shifted = (
        function(jnp.asarray(pixels), offsets, shape=(5, 7, 3))
        for function in (augment._slices, augment._shifted)
    )
    np.testing.assert_array_equal(one_by_one, shifted)
    assert shifted.dtype == dtype and len({tuple(offset) for offset in offsets}) > 10


def test_keys_differ_by_seed_step_and_position_and_from_those_of_the_order():
    keys = [
        tuple(data)
        for seed in range(3)
        for step in range(20)
        for data in jax.random.key_data(example_keys(seed, step, jnp.arange(16))).tolist()
    ]
    assert len(set(keys)) == len(keys) == 3 * 20 * 16
    # Pinned: another stream would let a resumed run augment otherwise than before an upgrade.
    assert jax.random.key_data(example_keys(1, 2, jnp.array([3]))).tolist() == PINNED
    # What the keys would be without their own domain: a fold of the key of epoch `step`.
    for step in range(20):
        epoch_key = jax.random.fold_in(seed_key(0), step)
        folds = jax.vmap(jax.random.fold_in, (None, 0))(epoch_key, jnp.arange(16))
        keys_of_epoch = {tuple(data) for data in jax.random.key_data(folds).tolist()}
        assert not keys_of_epoch & set(keys)


PINNED = [[2392960368, 2912453650]]


def test_what_would_leave_nothing_of_an_image_is_refused():
    images, keys = jnp.zeros((2, 4, 4, 3)), example_keys(0, 0, jnp.arange(2))
    for call, found in (
        (lambda: random_crop(images, keys, -1), "padding=-1"),
        (lambda: random_crop(images, keys, 4), "padding=4"),
        (lambda: cutout(images, keys, 5), "size=5"),
        (lambda: example_keys(-1, 0, jnp.arange(2)), "seed=-1"),
        (lambda: normalize(images, (0.0,), (1.0, 1.0, 1.0)), r"mean \(1,\)"),
    ):
        with pytest.raises(ValueError, match=f"^{found}"):
            call()
