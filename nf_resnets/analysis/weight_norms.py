"""The sizes of the branches' weights, by the roles of a tree's leaves."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from nf_resnets import roles
from nf_resnets.roles import Leaf, Role, Rules


def weight_norms(params: Any, *, rules: Rules | None = None) -> np.ndarray:
    r"""The L2 norm of every layer of every residual branch.

    Args:
      params: a parameter tree.
      rules: what the paths of the tree mean; by default the names of this library's models.

    Returns:
      float64 ``[L, m]``: branch ``k``, layer ``i``; ``m`` is that of the branch with most layers,
      and NaN stands where a branch has fewer.

    Raises:
      ValueError: if the tree does not fit the rules.

    Example:
      >>> tree = {"block_1": {"conv_1": np.ones((3, 3, 1, 1)), "conv_2": np.zeros((3, 3, 1, 1))}}
      >>> weight_norms(tree, rules=Rules(branch=r"block_(\d+)/conv_(\d+)")).tolist()
      [[3.0, 0.0]]
    """
    return np.sqrt(_of_layers(params, rules, lambda leaf, squares: squares.sum(axis=1)))


def layer_gains(params: Any, *, rules: Rules | None = None) -> np.ndarray:
    r"""``fan_in mean(W^2)`` of every layer of every branch: what it multiplies second moments by.

    It is 2 for He's initialisation, which makes up for the ReLU before the layer.

    Returns:
      As :func:`weight_norms`.

    Example:
      >>> tree = {"block_1": {"conv_1": np.ones((3, 3, 1, 1)), "conv_2": np.zeros((3, 3, 1, 1))}}
      >>> layer_gains(tree, rules=Rules(branch=r"block_(\d+)/conv_(\d+)")).tolist()
      [[9.0, 0.0]]
    """

    def gain(leaf: Leaf, squares: np.ndarray) -> np.ndarray:
        return roles.fans(leaf)[0] * squares.mean(axis=1)

    return _of_layers(params, rules, gain)


def shortcut_gains(params: Any, *, rules: Rules | None = None) -> np.ndarray:
    r"""``fan_in mean(W^2)`` of the weight on the skip path beside every branch.

    Returns:
      float64 ``[L]``, with NaN where the shortcut has no weight.

    Example:
      >>> tree = {"block_1": {"conv_1": np.ones((3, 3, 2, 4)), "project": np.ones((1, 1, 2, 4))}}
      >>> rules = Rules(branch=r"block_(\d+)/conv_(\d+)", shortcut=r"/project")
      >>> shortcut_gains(tree, rules=rules).tolist()
      [2.0]
    """
    role_map = roles.assign(params, rules)
    found = np.full(role_map.num_branches, np.nan)
    for leaf, value in zip(role_map.leaves, jax.tree.leaves(params), strict=True):
        if leaf.role is Role.SHORTCUT and leaf.weight:
            squares = np.square(np.asarray(value, np.float64)).reshape(leaf.count, -1)
            own = role_map.branches_of(leaf, leaf.count)
            found[[k - 1 for k in own]] = roles.fans(leaf)[0] * squares.mean(axis=1)
    return found


def _of_layers(params: Any, rules: Rules | None, of: Any) -> np.ndarray:
    """``of(leaf, squared weights [branches, N]) -> [branches]`` for every layer, as ``[L, m]``."""
    role_map = roles.assign(params, rules)
    most = max((branch.m for branch in role_map.branches), default=0)
    found = np.full((role_map.num_branches, most), np.nan)
    for leaf, value in zip(role_map.leaves, jax.tree.leaves(params), strict=True):
        if leaf.role is Role.BRANCH and leaf.weight:
            squares = np.square(np.asarray(value, np.float64)).reshape(len(leaf.branches), -1)
            found[[k - 1 for k in leaf.branches], leaf.layer - 1] = of(leaf, squares)
    return found


__all__ = ["layer_gains", "shortcut_gains", "weight_norms"]
