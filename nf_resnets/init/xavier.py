"""Xavier (Glorot) initialisation: a compromise between the forward and the backward signal."""

from __future__ import annotations

from typing import Any, Literal

import jax

from nf_resnets import random, roles
from nf_resnets.init.tree import draw
from nf_resnets.roles import Leaf, RoleMap, Rules

REFERENCE = "Glorot, Bengio: Understanding the difficulty of training deep networks, AISTATS 2010"


def xavier(
    params: Any,
    key: jax.Array,
    *,
    distribution: Literal["uniform", "normal"] = "uniform",
    rules: Rules | RoleMap | None = None,
) -> Any:
    r"""Draws every weight with variance ``2 / (fan_in + fan_out)``, the paper's equation 12.

    The uniform distribution, equation 16, lies on
    ``[-sqrt(6 / (fan_in + fan_out)), +sqrt(6 / (fan_in + fan_out))]``. Bias vectors become 0;
    scalars, multipliers, norms and whatever ``rules.keep`` names stay as they are.
    Embeddings ``[V, D]`` are drawn from ``N(0, 1 / D)``.

    Args:
      params: a parameter tree; weights ``[H, W, C_in, C_out]`` or ``[C_in, C_out]``.
      key: a JAX PRNG key.
      distribution: ``"uniform"`` or ``"normal"``, of the same variance.
      rules: what the paths of the tree mean; by default the names of this library's models.

    Returns:
      A tree of the same structure, dtypes and shardings.

    Raises:
      ValueError: if ``distribution`` is neither, a leaf that is not drawn is not finite, or the
        tree does not fit the rules.
      TypeError: if ``key`` is not a PRNG key.

    Source: Glorot, Bengio, *Understanding the difficulty of training deep feedforward neural
    networks*, AISTATS 2010.

    Example:
      >>> import jax.numpy as jnp
      >>> weight = xavier({"head": {"kernel": jnp.zeros((64, 10))}}, jax.random.key(0))
      >>> bool(jnp.abs(weight["head"]["kernel"]).max() <= (6 / 74) ** 0.5)
      True
    """
    if distribution not in ("uniform", "normal"):
        raise ValueError(f"distribution={distribution!r} found; expected 'uniform' or 'normal'.")

    def sample(leaf_key: jax.Array, leaf: Leaf, dtype: Any) -> jax.Array:
        fan_in, fan_out = roles.fans(leaf)
        std = (2 / (fan_in + fan_out)) ** 0.5
        if distribution == "normal":
            return std * random.normal(leaf_key, leaf.shape, dtype)
        return random.uniform(leaf_key, leaf.shape, dtype, 3**0.5 * std)

    return draw(params, key, roles.assign(params, rules), sample)


__all__ = ["xavier"]
