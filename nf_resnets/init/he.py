"""He initialisation: weights that preserve the signal's scale through a ReLU."""

from __future__ import annotations

from typing import Any, Literal

import jax

from nf_resnets import random, roles
from nf_resnets.init.from_network import takes_network
from nf_resnets.init.tree import draw
from nf_resnets.roles import Leaf, Role, RoleMap, Rules


@takes_network()
def he(
    params: Any,
    key: jax.Array,
    *,
    mode: Literal["fan_in", "fan_out"] = "fan_in",
    rules: Rules | RoleMap | None = None,
) -> Any:
    r"""Draws every weight from ``N(0, 2 / fan)``, He et al.'s equations 10 and 14.

    With ``fan_in = H W C_in`` the forward signal keeps its second moment through a convolution and
    a ReLU, with ``fan_out = H W C_out`` the backward one does. The head, which no ReLU follows, has
    the standard deviation ``fan_in**-0.5`` in either mode. Bias vectors that the rules name become
    0. Scalars, multipliers, norms, whatever ``rules.keep`` names and vectors that no rule names
    stay as they are.
    Embeddings ``[V, D]`` are drawn from ``N(0, 1 / D)``.

    Args:
      params: a parameter tree; weights ``[H, W, C_in, C_out]`` or ``[C_in, C_out]``.
      key: a JAX PRNG key.
      mode: which fan to divide by.
      rules: what the paths of the tree mean; by default the names of this library's models.
      network: in place of rules, ``network(params, *inputs)``, whose roles are read and verified.
      inputs: of the network, such as ``(images,)``; shapes are enough.

    Returns:
      A tree of the same structure, dtypes and shardings.

    Raises:
      ValueError: if ``mode`` is neither, a leaf that is not drawn is not finite, or the tree does
        not fit the rules (see :func:`nf_resnets.roles.assign`).
      TypeError: if ``key`` is not a PRNG key.

    Source: He, Zhang, Ren, Sun, *Delving Deep into Rectifiers*, ICCV 2015.

    Example:
      >>> import jax.numpy as jnp
      >>> tree = {"stem": {"kernel": jnp.zeros((3, 3, 64, 128))}}
      >>> weight = he(tree, jax.random.key(0))["stem"]["kernel"]
      >>> round(float(weight.std() * (9 * 64 / 2) ** 0.5), 1)
      1.0
    """
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"mode={mode!r} found; expected 'fan_in' or 'fan_out'.")

    def sample(leaf_key: jax.Array, leaf: Leaf, dtype: Any) -> jax.Array:
        fan_in, fan_out = roles.fans(leaf)
        if leaf.role is Role.HEAD:
            std = fan_in**-0.5
        else:
            std = (2 / (fan_in if mode == "fan_in" else fan_out)) ** 0.5
        return std * random.normal(leaf_key, leaf.shape, dtype)

    return draw(params, key, roles.assign(params, rules), sample)


__all__ = ["he"]
