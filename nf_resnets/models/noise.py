"""What is random in the branches of a residual network in training: stochastic depth, dropout."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets.models.layers import dropout, missing_keys

# The head's dropout draws from the images' keys themselves, and VGG's layers fold small numbers.
_BRANCHES = 0x5D_0000
# Folded into a branch's keys; its convolutions, counted from 1, fold their numbers.
_SURVIVAL = 0


class BranchNoise(NamedTuple):
    """What the branches draw at random in a step.

    Attributes:
      keys: PRNG keys ``[n, B]``, for each branch those of the images; ``[B]`` within a branch.
        None where nothing is drawn.
      survival: float32 [n], the probability that a branch is there; [] within a branch. None where
        all are.
    """

    keys: Any = None
    survival: Any = None

    def part(self, which: int | slice) -> BranchNoise:
        """That of one branch or of a slice of them."""
        return BranchNoise(*(None if value is None else value[which] for value in self))


NO_NOISE = BranchNoise()
"""That of a network that is tested, or has none."""


def branch_noise(network: Any, keys: jax.Array | None, num_blocks: int) -> BranchNoise:
    """What a network's ``L`` branches draw in a training step, from the images' keys ``[B]``."""
    if network.survival == 1 and not network.conv_dropout:
        return NO_NOISE
    if keys is None:
        raise missing_keys("stochastic depth or dropout in its branches")
    numbers = _BRANCHES + jnp.arange(num_blocks)
    of_branches = jax.vmap(jax.vmap(jax.random.fold_in, (0, None)), (None, 0))(keys, numbers)
    survival = None if network.survival == 1 else linear_decay(network.survival, num_blocks)
    return BranchNoise(of_branches, survival)


def linear_decay(last: float, num_blocks: int) -> np.ndarray:
    """The probabilities that the branches survive, ``p_l = 1 - (l / L) (1 - p_L)``, equation 4.

    Example:
      >>> linear_decay(0.5, 4).tolist()
      [0.875, 0.75, 0.625, 0.5]
    """
    return (1 - np.arange(1, num_blocks + 1) / num_blocks * (1 - last)).astype(np.float32)


def surviving(branch: jax.Array, noise: BranchNoise) -> jax.Array:
    """The branch ``[B, H, W, C]`` divided by the probability that it is there, or 0: ``b F / p``.

    ``b`` is 1 with probability ``p``, drawn for every image by itself. The paper draws once for a
    batch, and multiplies by ``p`` in the test. Here the expectation is that of the whole network at
    every step, as in dropout, and the network that is tested has no stochastic depth.

    Source: Huang, Sun, Liu, Sedra, Weinberger, ECCV 2016, equations 2 and 5.
    """
    if noise.survival is None:
        return branch
    keys = jax.vmap(jax.random.fold_in, (0, None))(noise.keys, _SURVIVAL)
    there = jax.vmap(lambda key: jax.random.uniform(key) < noise.survival)(keys)
    survival = noise.survival.astype(branch.dtype)
    return jnp.where(there[:, None, None, None], branch / survival, 0)


def dropped(h: jax.Array, noise: BranchNoise, rate: float, layer: int) -> jax.Array:
    """Dropout of whole channels of ``[B, H, W, C]`` after the branch's convolution of a number."""
    if not rate or noise.keys is None:
        return h
    keys = jax.vmap(jax.random.fold_in, (0, None))(noise.keys, layer)
    return dropout(h, keys, rate, whole_channels=True)


__all__ = ["NO_NOISE", "BranchNoise", "branch_noise", "dropped", "linear_decay", "surviving"]
