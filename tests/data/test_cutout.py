"""Cutout against a loop in NumPy, and where its squares lie."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets.data import cutout, example_keys, random_crop, random_flip

HEIGHT, WIDTH = 6, 9


def holes(count, size, seed=0):
    images = jnp.ones((count, HEIGHT, WIDTH, 2))
    keys = example_keys(seed, 3, jnp.arange(count))
    found = np.asarray(jax.jit(cutout, static_argnums=2)(images, keys, size))
    assert set(np.unique(found)) <= {0, 1}
    np.testing.assert_array_equal(found[..., 0], found[..., 1])
    return found[..., 0] == 0


def numpy_holes(size):
    """For every centre, the pixels taken away, as the published code clips them at the border."""
    masks = {}
    for row in range(HEIGHT):
        for column in range(WIDTH):
            mask = np.zeros((HEIGHT, WIDTH), bool)
            top, bottom = np.clip([row - size // 2, row - size // 2 + size], 0, HEIGHT)
            left, right = np.clip([column - size // 2, column - size // 2 + size], 0, WIDTH)
            mask[top:bottom, left:right] = True
            masks[row, column] = mask
    return masks


@pytest.mark.parametrize(
    "size", [3, 4, 6, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 2))]
)
def test_every_hole_is_one_that_the_published_code_makes(size):
    possible = {mask.tobytes() for mask in numpy_holes(size).values()}
    found = {hole.tobytes() for hole in holes(600, size)}
    assert found <= possible
    # 54 centres, 600 draws: one of them is missed with a probability of 54 exp(-600 / 54) = 8e-4,
    # and the seed is fixed.
    assert found == possible


def test_crop_flip_and_cutout_draw_from_folds_of_their_own():
    """A shared one would tie the hole to the crop; another one would change runs that go on."""
    keys = example_keys(0, 0, jnp.arange(64))
    image = jnp.arange(1, 82, dtype=jnp.float32).reshape(1, 9, 9, 1)
    images = jnp.broadcast_to(image, (64, 9, 9, 1))
    drawn = jax.jit(lambda: (random_crop(images, keys), cutout(images, keys, 1)))()
    crops, holes_ = (np.asarray(each)[..., 0] for each in drawn)
    # A crop by up to 4 keeps the middle of the image, which moves against the offset.
    offsets = np.array([8 - np.argwhere(crop == 41)[0] for crop in crops])
    centres = np.array([np.argwhere(hole == 0)[0] for hole in holes_])
    flipped = random_flip(images, keys)[:8, 0, 0, 0] == 9
    assert (offsets[:2].tolist(), centres[:2].tolist(), flipped.tolist()) == PINNED
    # Nine offsets and nine rows: from one fold they would be the same numbers.
    assert (offsets != centres).any(0).all()


PINNED = ([[8, 3], [2, 2]], [[8, 8], [3, 4]], [False, False, True, False, True] + 3 * [False])
