"""Mixup: every image of a batch is mixed with another one of it, and so are the labels."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from nf_resnets.data.order import seed_key

# No run reaches this epoch, nor the one that the keys of single images are folded from: orders,
# images and mixtures have keys of their own.
_MIXUP = 0xA06_0001


class Mixture(NamedTuple):
    """How the batch of a step is mixed, the same on every replica.

    Attributes:
      fraction: ``lambda``, the fraction of an image that stays its own, float32 [].
      partners: int32 [B], for each position in the global batch that of the other image: a
        permutation, in which some may be their own partner.
    """

    fraction: jax.Array
    partners: jax.Array


def mixture(alpha: float, seed: ArrayLike, step: ArrayLike, batch_size: int) -> Mixture:
    r"""Draws how the batch of a step is mixed: ``lambda ~ Beta(alpha, alpha)`` and the partners.

    One ``lambda`` is drawn for the whole batch and the partners are a permutation of it, as in the
    published code. It is a function of seed and step only, and so the same on every replica and
    after a resume.

    Args:
      alpha: above 0; with 1 the fraction is uniform on [0, 1].
      seed: integer scalar in [0, 2**32), the one given to ``epoch_order``; may be traced.
      step: integer scalar, counted from 0 over the whole run; may be traced.
      batch_size: ``B``, examples in a step over all replicas.

    Source: Zhang, Cisse, Dauphin, Lopez-Paz, *mixup: Beyond Empirical Risk Minimization*, ICLR
    2018, section 2.
    """
    key = jax.random.fold_in(jax.random.fold_in(seed_key(seed), _MIXUP), step)
    fraction_key, partner_key = jax.random.split(key)
    positions = jnp.arange(batch_size, dtype=jnp.int32)
    return Mixture(
        _symmetric_beta(fraction_key, alpha), jax.random.permutation(partner_key, positions)
    )


# Of so many pairs none is taken with a probability of 10**-42.
_PAIRS = 64


def _symmetric_beta(key: jax.Array, alpha: float) -> jax.Array:
    """Draws from Beta(alpha, alpha); ``jax.random.beta`` takes six seconds to compile on a CPU.

    Source: Devroye, *Non-Uniform Random Variate Generation*, 1986, section IX.3: Ulrich's polar
    method, which needs ``alpha >= 1/2``, and Joehnk's, which rejects few pairs below that.
    """
    if alpha >= 0.5:
        radius, angle = jax.random.uniform(key, (2,))
        power = 2 / (2 * alpha - 1) if alpha > 0.5 else float("inf")
        return 0.5 + 0.5 * jnp.sqrt(1 - radius**power) * jnp.cos(2 * jnp.pi * angle)
    # The logarithms of u**(1 / alpha), which in float32 itself may be zero.
    x, y = -jax.random.exponential(key, (2, _PAIRS)) / alpha
    total = jnp.logaddexp(x, y)
    taken = jnp.argmax(total <= 0)
    return jnp.exp(x - total)[taken]


__all__ = ["Mixture", "mixture"]
