"""The weights of the residual branches: their sizes, the scalars beside them, and the head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from nf_resnets import random, roles
from nf_resnets.init.tree import cast_like
from nf_resnets.roles import Leaf, Role, RoleMap, Rules


def weight_norms(params: Any, *, rules: Rules | RoleMap | None = None) -> np.ndarray:
    r"""The L2 norm of every layer of every residual branch.

    Args:
      params: a parameter tree.
      rules: what its leaves are, as :func:`nf_resnets.roles.read` or Rules say it; by default the
        names of this library's models.

    Returns:
      float64 ``[L, m]``: branch ``k``, layer ``i``; ``m`` is that of the branch with most layers,
      and NaN stands where a branch has fewer.

    Example:
      >>> tree = {"block_1": {"conv_1": np.ones((3, 3, 1, 1)), "conv_2": np.zeros((3, 3, 1, 1))}}
      >>> weight_norms(tree, rules=Rules(branch=r"block_(\d+)/conv_(\d+)")).tolist()
      [[3.0, 0.0]]
    """
    return np.sqrt(_of_layers(params, rules, lambda leaf, squares: squares.sum(axis=1)))


def layer_gains(params: Any) -> np.ndarray:
    r"""``fan_in mean(W^2)`` of every layer of every branch, as :func:`weight_norms`.

    A layer multiplies second moments by it. It is 2 for He's initialisation, which makes up for the
    ReLU before the layer.
    """
    return _of_layers(
        params, None, lambda leaf, squares: roles.fans(leaf)[0] * squares.mean(axis=1)
    )


def shortcut_gains(params: Any) -> np.ndarray:
    r"""``fan_in mean(W^2)`` of the weight on the skip path beside every branch, or NaN, ``[L]``."""
    role_map = roles.assign(params)
    gains = np.full(role_map.num_branches, np.nan)
    for leaf, value in role_map.items(params):
        if leaf.role is Role.SHORTCUT and leaf.weight:
            squares = _squares(value, leaf.count)
            at, each = by_branch(role_map, leaf, roles.fans(leaf)[0] * squares.mean(axis=1))
            gains[at] = each
    return gains


def multipliers(params: Any, *, rules: Rules | RoleMap | None = None) -> np.ndarray:
    r"""The learnable scalar of every residual branch, Fixup's and RescaleNet's or SkipInit's.

    The result is float64 ``[L]``: the product where a branch has several, NaN where it has none.
    The ``rules`` are as for :func:`weight_norms`.

    Example:
      >>> tree = {"block_1": {"conv_1": np.ones((3, 3, 8, 8)), "alpha": np.array(0.5)},
      ...         "block_2": {"conv_1": np.ones((3, 3, 8, 8)), "alpha": np.array(2.0)}}
      >>> multipliers(tree, rules=Rules(branch=r"block_(\d+)/conv_(\d+)", alpha="alpha")).tolist()
      [0.5, 2.0]
    """
    role_map = roles.assign(params, rules)
    products = np.full(role_map.num_branches, np.nan)
    for leaf, value in role_map.items(params):
        if leaf.role in (Role.MULTIPLIER, Role.ALPHA):
            at, each = by_branch(role_map, leaf, np.ravel(np.asarray(value, np.float64)))
            products[at] = np.where(np.isnan(products[at]), each, products[at] * each)
    return products


def random_head(params: Any, key: jax.Array, *, rules: Rules | RoleMap | None = None) -> Any:
    """Draws the head from ``N(0, 1 / fan_in)``, its bias vector 0, and leaves all else as it is.

    Fixup's zero head keeps the gradient from every other layer in the first step; what its rules do
    to the residual branches shows with the head of a standard initialisation. The ``rules`` are as
    for :func:`weight_norms`.

    Raises:
      ValueError: if the tree has not one head weight.

    Example:
      >>> tree = {"stem": {"kernel": np.ones((3, 3, 1, 8))}, "head": {"kernel": np.zeros((8, 4))}}
      >>> drawn = random_head(tree, jax.random.key(0))
      >>> bool((drawn["head"]["kernel"] != 0).all()), bool((drawn["stem"]["kernel"] == 1).all())
      (True, True)
    """
    role_map = roles.assign(params, rules)
    heads = [leaf.path for leaf in role_map.leaves if leaf.role is Role.HEAD and leaf.weight]
    if len(heads) != 1:
        raise ValueError(f"{len(heads)} head weights found in params ({heads}); expected one.")

    def fill(leaf: Leaf, value: Any) -> Any:
        if leaf.role is not Role.HEAD:
            return value
        if not leaf.weight:
            return cast_like(value, 0)
        fan_in, _ = roles.fans(leaf)
        return cast_like(value, fan_in**-0.5 * random.normal(key, leaf.shape, "float32"))

    return role_map.map(fill, params)


def _of_layers(
    params: Any, rules: Rules | RoleMap | None, of: Callable[[Leaf, np.ndarray], np.ndarray]
) -> np.ndarray:
    """``of(leaf, squared weights [slices, N]) -> [slices]`` for every layer, as ``[L, m]``."""
    role_map = roles.assign(params, rules)
    most = max((branch.m for branch in role_map.branches), default=0)
    values = np.full((role_map.num_branches, most), np.nan)
    for leaf, value in role_map.items(params):
        if leaf.role is Role.BRANCH and leaf.weight:
            at, each = by_branch(role_map, leaf, of(leaf, _squares(value, leaf.count)))
            values[at, leaf.layer - 1] = each
    return values


def by_branch(role_map: RoleMap, leaf: Leaf, values: np.ndarray) -> tuple[list[int], np.ndarray]:
    """The indices of a leaf's branches, and of its slices' values that of each branch."""
    at = [k - 1 for k in role_map.branches_of(leaf, len(values), shared=True)]
    return at, np.repeat(values, len(at) // len(values))


def _squares(value: Any, count: int) -> np.ndarray:
    return np.square(np.asarray(value, np.float64)).reshape(count, -1)
