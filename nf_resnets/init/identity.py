"""Weights that are written down, and not drawn: a matrix at the middle tap of every kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from nf_resnets import roles
from nf_resnets.init.tree import cast_like, check_key, refuse_not_finite
from nf_resnets.roles import LAYER_ROLES, Leaf, Role, RoleMap

_ORDER = "NDHWIO"


def set_matrices(
    params: Any,
    role_map: RoleMap,
    matrix: Callable[[Leaf], np.ndarray],
    key: jax.Array | None = None,
) -> Any:
    """Sets every layer's weight to a matrix at its middle tap, and its bias vector to 0.

    Embeddings stay as they are. Each branch of a stacked weight gets the same matrix.

    Args:
      params: the tree.
      role_map: its roles.
      matrix: ``matrix(leaf) -> [C_out, C_in]``.
      key: not used, for nothing is drawn; refused if it is no key.

    Raises:
      ValueError: if a value is not finite, or a weight's layout is not known.
      TypeError: if ``key`` is not a PRNG key.
    """
    if key is not None:
        check_key(key)
    refuse_not_finite(params, role_map, drawn=True)

    def fill(leaf: Leaf, value: Any) -> Any:
        if leaf.role not in LAYER_ROLES or leaf.role is Role.EMBEDDING:
            return value
        return cast_like(value, _kernel(leaf, matrix(leaf)) if leaf.weight else 0)

    return role_map.map(fill, params)


def is_last(leaf: Leaf) -> bool:
    """Whether a leaf belongs to the last layer of a branch."""
    return leaf.role is Role.BRANCH and leaf.layer == leaf.m


def _kernel(leaf: Leaf, matrix: np.ndarray) -> np.ndarray:
    """The weight of a leaf's shape with the matrix at the middle of its taps, 0 elsewhere."""
    axes = roles.axes_of(leaf)
    order = sorted(range(len(axes)), key=lambda axis: _ORDER.index(axes[axis]))
    weight = np.zeros([leaf.shape[axis] for axis in order], np.float32)
    middle = tuple(
        leaf.shape[axis] // 2 if axes[axis] in "DHW" else slice(None)
        for axis in order
        if axes[axis] not in "IO"
    )
    weight[middle] = matrix.T.reshape([leaf.shape[axis] for axis in order if axes[axis] in "IO"])
    return np.transpose(weight, np.argsort(order))


__all__ = ["is_last", "set_matrices"]
