"""How correlated the two paths of a block are, and what became of its learnable scalar."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import roles
from nf_resnets.analysis.observe import branches
from nf_resnets.analysis.signal import moments
from nf_resnets.roles import Role, Rules


def eta(taps: Any) -> jax.Array:
    r"""The relative error of adding up variances, in percent, for every residual block.

    ``eta_k = |(Var[alpha_k x_{k-1}] + Var[beta_k F_k(x_{k-1})] - Var[x_k]) / Var[x_k]| 100%``,
    equation 1 of the feedback. ``Var`` is each channel's variance over images and positions,
    averaged over the channels, and ``x_k`` the sum before a ReLU. It is 0 where skip and branch are
    uncorrelated, which the analysis of RescaleNet assumes.

    Args:
      taps: as ``observed`` returns them (see :func:`nf_resnets.analysis.observe.observe`).

    Returns:
      float32 ``[L]``; NaN where the sum is constant.

    Source: Shao et al., *Is normalization indispensable for training deep neural networks?*,
    NeurIPS 2020, author feedback, equation 1.

    Example:
      >>> x = jnp.array([1.0, -1.0]).reshape(2, 1, 1, 1)
      >>> taps = {"block_1": {"skip": x, "branch": x, "sum": 2 * x}}
      >>> jax.jit(eta)(taps).tolist()  # |1 + 1 - 4| / 4
      [50.0]
    """

    def of(block: dict[str, Any]) -> jax.Array:
        skip, branch, total = (moments(block[name]).variance for name in ("skip", "branch", "sum"))
        return 100 * jnp.abs((skip + branch - total) / total)

    return jnp.stack([of(block) for block in branches(taps, "skip", "branch", "sum")])


def multipliers(params: Any, *, rules: Rules | None = None) -> np.ndarray:
    r"""The learnable scalar of every residual branch, Fixup's and RescaleNet's or SkipInit's.

    Of a branch that has several it is their product.

    Args:
      params: a parameter tree.
      rules: what the paths of the tree mean; by default the names of this library's models.

    Returns:
      float64 ``[L]``, ``k = 1..L``; NaN where a branch has none.

    Raises:
      ValueError: if the tree does not fit the rules, or it cannot be told whose a scalar is.

    Example:
      >>> tree = {"block_1": {"conv_1": jnp.ones((3, 3, 8, 8)), "alpha": jnp.array(0.5)},
      ...         "block_2": {"conv_1": jnp.ones((3, 3, 8, 8)), "alpha": jnp.array(2.0)}}
      >>> multipliers(tree, rules=Rules(branch=r"block_(\d+)/conv_(\d+)", alpha="alpha")).tolist()
      [0.5, 2.0]
    """
    role_map = roles.assign(params, rules)
    found = np.full(role_map.num_branches, np.nan)
    for leaf, value in zip(role_map.leaves, jax.tree.leaves(params), strict=True):
        if leaf.role in (Role.MULTIPLIER, Role.ALPHA):
            values = np.ravel(np.asarray(value, np.float64))
            own = [k - 1 for k in role_map.branches_of(leaf, values.size)]
            found[own] = np.where(np.isnan(found[own]), values, found[own] * values)
    return found


__all__ = ["eta", "multipliers"]
