"""A table of what a scheme's initialiser does to each leaf of a tree."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np

from nf_resnets import roles, schemes
from nf_resnets.roles import Leaf, RoleMap, Rules
from nf_resnets.roles.leaf import is_float
from nf_resnets.schemes import Scheme, SchemeWarning


def describe(
    params: Any,
    depth: int,
    *,
    rules: Rules | RoleMap | None = None,
    scheme: str | Scheme = "fixup",
    **options: Any,
) -> str:
    r"""Tabulates what a scheme's initialiser does to each leaf of a tree.

    The initialiser is called, without ``key``, on trees of ones and of twos.

    Args:
      params: a parameter tree, or the shapes of one. It is not changed.
      depth: ``L``, the number of residual branches, checked against the tree.
      rules: the roles of the leaves; by default those of this library's models.
      scheme: its name, or itself.
      **options: other arguments of the scheme's initialiser.

    Returns:
      A table, with the parts of the scheme's network that are missing below it.

    Example:
      >>> import jax.numpy as jnp
      >>> block = {"conv_1": jnp.ones((3, 3, 8, 8)), "conv_2": jnp.ones((3, 3, 8, 8))}
      >>> tree = {"block_1": block, "block_2": block, "dense": jnp.ones((8, 10))}
      >>> rules = Rules(branch=r"block_(\d+)/conv_(\d+)", head="dense")
      >>> print(describe(tree, 2, rules=rules))
      Fixup
      leaf            shape         role    branch k  layer j/m  becomes
      block_1/conv_1  [3, 3, 8, 8]  branch  1         1/2        × 0.7071
      block_1/conv_2  [3, 3, 8, 8]  branch  1         2/2        0
      block_2/conv_1  [3, 3, 8, 8]  branch  2         1/2        × 0.7071
      block_2/conv_2  [3, 3, 8, 8]  branch  2         2/2        0
      dense           [8, 10]       head                         0
      missing: no scalar biases found in params for 2 residual branches; ...
      missing: no multipliers found in params for 2 residual branches; ...
    """
    scheme = schemes.get(scheme)
    role_map = roles.assign(params, rules)

    def initialized(number: int) -> list[Any]:
        def filled(leaf: Leaf, value: Any) -> Any:
            return np.broadcast_to(np.float32(number), leaf.shape) if is_float(value) else value

        tree = scheme.init(role_map.map(filled, params), depth, rules=role_map, **options)
        return jax.tree.leaves(tree)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SchemeWarning)
        trees = jax.tree.leaves(params), initialized(1), initialized(2)
    sentences = dict.fromkeys(str(each.message) for each in caught)  # those of both calls once
    missing = [f"missing: {each.removeprefix(f'{scheme.title}: ')}" for each in sentences]
    cells = [("leaf", "shape", "role", "branch k", "layer j/m", "becomes")]
    for leaf, ks, *values in zip(role_map.leaves, role_map.beside, *trees, strict=True):
        numbers = str(ks[0]) if len(ks) == 1 else f"{ks[0]}..{ks[-1]}" if ks else ""
        layer = f"{leaf.layer}/{leaf.m}" if leaf.layer else ""
        shape, becomes = str([*leaf.shape]), _becomes(leaf, *values)
        cells.append((leaf.path, shape, leaf.role.value, numbers, layer, becomes))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    table = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]
    return "\n".join([scheme.title, *table, *missing])


def _becomes(leaf: Leaf, given: Any, ones: Any, twos: Any) -> str:
    """What an initialiser makes of a leaf, by what it makes of ones and of twos."""
    if not is_float(given) or 0 in leaf.shape:
        return "as given"
    one, two = (_size(np.asarray(x, np.float64).reshape(leaf.count, -1)) for x in (ones, twos))
    first, last = f"{one[0]:.4g}", f"{one[-1]:.4g}"
    value = first if first == last else f"{first} to {last}"
    if one.any() and np.allclose(two, 2 * one, rtol=1e-6, atol=0):  # two roundings of float32
        return "as given" if (one == 1).all() else f"× {value}"
    return f"std {value}" if leaf.weight and one.any() else value


def _size(rows: np.ndarray) -> np.ndarray:
    """The number that each row holds, or its root mean square if it holds several."""
    equal = (rows == rows[:, :1]).all(axis=1)
    return np.where(equal, rows[:, 0], np.sqrt(np.square(rows).mean(axis=1)))
