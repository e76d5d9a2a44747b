"""Xavier (Glorot) initialisation: a compromise between the forward and the backward signal."""

from __future__ import annotations

from typing import Any, Literal

import jax

from nf_resnets import random, roles
from nf_resnets.init.from_network import takes_network
from nf_resnets.init.tree import draw
from nf_resnets.roles import Leaf, RoleMap, Rules

REFERENCE = "Glorot, Bengio: Understanding the difficulty of training deep networks, AISTATS 2010"


@takes_network()
def xavier(
    params: Any,
    key: jax.Array,
    *,
    distribution: Literal["uniform", "normal"] = "uniform",
    rules: Rules | RoleMap | None = None,
) -> Any:
    r"""Draws every weight with variance ``2 / (fan_in + fan_out)``, the paper's equation 12.

    As :func:`nf_resnets.init.he`, but for that variance: ``distribution="uniform"``, equation 16,
    draws from ``[-sqrt(6 / (fan_in + fan_out)), +sqrt(6 / (fan_in + fan_out))]``, ``"normal"`` a
    normal distribution; any other is a ``ValueError``.

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
