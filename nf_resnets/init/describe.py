"""A table of what a scheme's initialiser does to each leaf of a tree."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import roles, schemes
from nf_resnets.init.needs import MissingPart, missing_parts
from nf_resnets.roles import Leaf, RoleMap, Rules
from nf_resnets.schemes import Scheme, SchemeWarning


@dataclasses.dataclass(frozen=True)
class Row:
    r"""One leaf.

    Attributes:
      leaf: what it is.
      branches: the branches ``k`` that it lies in.
      change: what the initialiser does with it, without ``key``: it is multiplied (``"times"``),
        set to a number (``"to"``), scaled to a standard deviation (``"std"``) or left as it is
        (``"kept"``).
      by: the factor (1 where it is left), number or standard deviation; one for each branch of a
        stacked leaf.

    Example:
      >>> import numpy as np
      >>> tree = {"block_1": {"conv_1": np.ones((3, 3, 4, 4)), "conv_2": np.ones((3, 3, 4, 4))}}
      >>> rules = roles.Rules(branch=r"block_(\d+)/conv_(\d)")
      >>> first, last = describe(tree, 1, rules=rules, scheme="fixup").rows
      >>> (first.leaf.path, first.change, first.by), (last.leaf.path, last.change, last.by)
      (('block_1/conv_1', 'kept', (1.0,)), ('block_1/conv_2', 'to', (0.0,)))
    """

    leaf: Leaf
    branches: tuple[int, ...]
    change: Literal["times", "to", "std", "kept"]
    by: tuple[float, ...]


@dataclasses.dataclass(frozen=True, repr=False)
class Description:
    """What a scheme does to a tree; it prints as a table.

    Attributes:
      scheme: the scheme.
      rows: one for each leaf, in the order of ``jax.tree.leaves``.
      missing: the parts that the scheme expects and the tree does not show.
    """

    scheme: Scheme
    rows: tuple[Row, ...]
    missing: tuple[MissingPart, ...]

    def __str__(self) -> str:
        heads = ("leaf", "shape", "role", "branch k", "layer j/m", "becomes")
        cells = [heads, *map(_cells, self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [self.scheme.title]
        for line in cells:
            padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            lines.append("  ".join(padded).rstrip())
        return "\n".join(lines + [f"missing: {each.sentence}" for each in self.missing])

    __repr__ = __str__


def describe(
    params: Any,
    depth: int,
    *,
    rules: Rules | RoleMap | None = None,
    scheme: str | Scheme = "fixup",
    **options: Any,
) -> Description:
    r"""Tabulates what a scheme's initialiser does to each leaf of a tree.

    The initialiser is called, without ``key``, on trees of ones and of twos.

    Args:
      params: a parameter tree, or the shapes of one. It is not changed.
      depth: ``L``, the number of residual branches, checked against the tree.
      rules: what the paths of the tree mean; by default the names of this library's models.
      scheme: its name, or itself.
      **options: other arguments of the scheme's initialiser, such as ``constants=``.

    Returns:
      The :class:`Description`; ``print`` shows it as a table.

    Raises:
      ValueError: if no scheme has that name, and as the scheme's initialiser.

    Example:
      >>> tree = {"block_1": {"conv_1": jnp.ones((3, 3, 8, 8)), "conv_2": jnp.ones((3, 3, 8, 8))},
      ...         "block_2": {"conv_1": jnp.ones((3, 3, 8, 8)), "conv_2": jnp.ones((3, 3, 8, 8))},
      ...         "dense": jnp.ones((8, 10))}
      >>> rules = Rules(branch=r"block_(\d+)/conv_(\d+)", head="dense")
      >>> print(describe(tree, 2, rules=rules))
      Fixup
      leaf            shape         role    branch k  layer j/m  becomes
      block_1/conv_1  [3, 3, 8, 8]  branch  1         1/2        × 0.7071
      block_1/conv_2  [3, 3, 8, 8]  branch  1         2/2        0
      block_2/conv_1  [3, 3, 8, 8]  branch  2         1/2        × 0.7071
      block_2/conv_2  [3, 3, 8, 8]  branch  2         2/2        0
      dense           [8, 10]       head                         0
      missing: no scalar biases found in params for 2 residual branches ...
      missing: no multipliers found in params for 2 residual branches ...
    """
    scheme = schemes.get(scheme)
    role_map = roles.assign(params, rules)
    ones, twos = (_initialized(scheme, params, depth, role_map, n, options) for n in (1, 2))
    trees = map(jax.tree.leaves, (params, ones, twos))
    rows = [
        Row(leaf, branches, *_change(leaf, *values))
        for leaf, branches, *values in zip(role_map.leaves, role_map.beside, *trees, strict=True)
    ]
    missing = missing_parts(scheme, role_map, constants=options.get("constants"))
    return Description(scheme, tuple(rows), missing)


def _initialized(
    scheme: Scheme, params: Any, depth: int, role_map: RoleMap, number: int, options: Any
) -> Any:
    """What the initialiser makes of a tree of that number."""

    def filled(leaf: Leaf, value: Any) -> Any:
        return np.broadcast_to(np.float32(number), leaf.shape) if _is_real(value) else value

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SchemeWarning)  # the table has the missing parts
        return scheme.init(role_map.map(filled, params), depth, rules=role_map, **options)


def _is_real(value: Any) -> bool:
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating)


def _change(leaf: Leaf, given: Any, ones: Any, twos: Any) -> tuple[Any, tuple[float, ...]]:
    if not _is_real(given) or 0 in leaf.shape:
        return "kept", (1.0,)
    parts = [_size(np.asarray(tree, np.float64).reshape(leaf.count, -1)) for tree in (ones, twos)]
    by = tuple(float(part) for part in parts[0])
    # Two roundings of float32.
    if np.allclose(parts[1], 2 * parts[0], rtol=1e-6, atol=0) and parts[0].any():
        return ("kept" if by == (1.0,) * len(by) else "times"), by
    return ("std" if leaf.weight and parts[0].any() else "to"), by


def _size(rows: np.ndarray) -> np.ndarray:
    """The number that each row holds, or its root mean square if it holds several."""
    equal = (rows == rows[:, :1]).all(axis=1)
    return np.where(equal, rows[:, 0], np.sqrt(np.square(rows).mean(axis=1)))


def _cells(row: Row) -> tuple[str, str, str, str, str, str]:
    leaf, ks = row.leaf, row.branches
    numbers = str(ks[0]) if len(ks) == 1 else f"{ks[0]}..{ks[-1]}" if ks else ""
    layer = f"{leaf.layer}/{leaf.m}" if leaf.layer else ""
    first, last = f"{row.by[0]:.4g}", f"{row.by[-1]:.4g}"
    value = first if first == last else f"{first} to {last}"
    becomes = {"kept": "as given", "times": f"× {value}", "to": value, "std": f"std {value}"}
    shape = str(list(leaf.shape))
    return leaf.path, shape, leaf.role.value, numbers, layer, becomes[row.change]


__all__ = ["Description", "Row", "describe"]
