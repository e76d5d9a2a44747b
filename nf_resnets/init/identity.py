"""Kernels that are a matrix at their central tap, and weights that are written down, not drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import roles
from nf_resnets.init.tree import cast_like, check_key, refuse_not_finite
from nf_resnets.roles import LAYER_ROLES, Leaf, Role, RoleMap


def set_matrices(
    params: Any,
    role_map: RoleMap,
    matrix: Callable[[Leaf], np.ndarray],
    key: jax.Array | None = None,
) -> Any:
    """Sets every layer's weight to a matrix at its central tap, and its bias vector to 0.

    Embeddings stay as they are. Each branch of a stacked weight gets the same matrix.

    Args:
      params: the tree.
      role_map: its roles.
      matrix: ``matrix(leaf) -> [C_out, C_in]``, of one group of a grouped convolution.
      key: not used, for nothing is drawn; refused if it is no key.

    Raises:
      ValueError: if a value is not finite, a weight's layout is not known, or a kernel has an even
        side.
      TypeError: if ``key`` is not a PRNG key.
    """
    if key is not None:
        check_key(key)
    refuse_not_finite(params, role_map, drawn=True)

    def fill(leaf: Leaf, value: Any) -> Any:
        if leaf.role not in LAYER_ROLES or leaf.role is Role.EMBEDDING:
            return value
        if not leaf.weight:
            return cast_like(value, 0)
        columns = np.tile(matrix(leaf).T, leaf.groups)
        rows = np.broadcast_to(columns, (leaf.length("N"), *columns.shape))
        return cast_like(value, at_central_tap(leaf, rows, np))

    return role_map.map(fill, params)


def is_last(leaf: Leaf) -> bool:
    """Whether a leaf belongs to the last layer of a branch."""
    return leaf.role is Role.BRANCH and leaf.layer == leaf.m


def at_central_tap(leaf: Leaf, matrices: Any, numpy: Any = jnp) -> Any:
    """A weight of a leaf's shape that is 0 but for its central tap.

    Args:
      leaf: what the leaf is.
      matrices: what stands there, ``[n, C_in, C_out]`` with ``n`` copies.
      numpy: what computes it.

    Raises:
      ValueError: if a side of the kernel is even.
    """
    axes = roles.axes_of(leaf)
    order = by_place(axes)
    taps = [leaf.shape[axis] if axes[axis] in "DHW" else 1 for axis in order]
    if any(length % 2 == 0 for length in taps):
        raise ValueError(
            f"leaf {leaf.path!r} {list(leaf.shape)} has no central tap; expected kernels of odd "
            "sides."
        )
    lengths = [leaf.shape[axis] // tap for axis, tap in zip(order, taps, strict=True)]
    weight = numpy.pad(matrices.reshape(lengths), [(tap // 2, tap // 2) for tap in taps])
    return numpy.transpose(weight, np.argsort(order).tolist())


def by_place(axes: str) -> list[int]:
    """The axes of a weight in order: copies, then taps and inputs, then outputs.

    Example:
      >>> by_place("HWIO"), by_place("OIHW")
      ([0, 1, 2, 3], [1, 2, 3, 0])
    """
    return sorted(range(len(axes)), key=lambda axis: {"N": 0, "O": 2}.get(axes[axis], 1))


__all__ = ["at_central_tap", "by_place", "is_last", "set_matrices"]
