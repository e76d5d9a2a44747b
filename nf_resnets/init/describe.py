"""What a scheme sees in a tree: the role of every leaf, what becomes of it, and what is missing."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import roles, schemes
from nf_resnets.init.needs import MissingPart, missing_parts, without_checks
from nf_resnets.init.norms import refuse_norms
from nf_resnets.init.tree import is_concrete
from nf_resnets.init.zeros import refuse_two_zeros
from nf_resnets.roles import Leaf, RoleMap, Rules
from nf_resnets.schemes import BranchConstants, Scheme

_SAID = {
    "fails": "missing, and training fails",
    "worse": "missing, and training is worse",
    "differs": "missing",
}


@dataclasses.dataclass(frozen=True)
class Row:
    r"""One leaf.

    Attributes:
      path: its keys joined by ``/``.
      shape: its shape.
      role: what it is for, a :class:`~nf_resnets.roles.Role`.
      branches: the branches ``k`` that it lies in; as many as its leading axis is long if it is
        stacked, none outside the branches.
      layer: its location ``j`` among the layers of the branch, 0 if it is none of them.
      m: how many layers the branch has, 0 if it is none of them.
      change: what the initialiser does with it, without ``key``: it is multiplied (``"times"``),
        set to a number (``"to"``), scaled to a standard deviation (``"std"``) or left as it is
        (``"kept"``); ``"unknown"`` if the initialiser refuses the tree.
      by: the factor (1 where it is left), number or standard deviation; one for each branch of a
        stacked leaf.

    Example:
      >>> import numpy as np
      >>> tree = {"block_1": {"conv_1": np.ones((3, 3, 4, 4)), "conv_2": np.ones((3, 3, 4, 4))}}
      >>> rules = roles.Rules(branch=r"block_(\d+)/conv_(\d)")
      >>> first, last = describe(tree, 1, rules=rules, scheme="fixup").rows
      >>> (first.path, first.change, first.by), (last.path, last.change, last.by)
      (('block_1/conv_1', 'kept', (1.0,)), ('block_1/conv_2', 'to', (0.0,)))
    """

    path: str
    shape: tuple[int, ...]
    role: roles.Role
    branches: tuple[int, ...]
    layer: int
    m: int
    change: Literal["times", "to", "std", "kept", "unknown"]
    by: tuple[float, ...]


@dataclasses.dataclass(frozen=True, repr=False)
class Description:
    """What a scheme sees in a tree; it prints as a table.

    Attributes:
      scheme: the scheme.
      depth: ``L``, the number of residual branches.
      rows: one for each leaf, in the order of ``jax.tree.leaves``.
      missing: the parts that the scheme expects and the tree does not show.
      refused: why the initialiser refuses the tree, one sentence each; empty if it does not.
      constants: what the forward pass multiplies by; None where that is 1, or depends on where the
        shape changes.
      by_name: for each kind of branch whose layers are ordered by the letters of their names alone,
        those names in that order.
    """

    scheme: Scheme
    depth: int
    rows: tuple[Row, ...]
    missing: tuple[MissingPart, ...]
    refused: tuple[str, ...]
    constants: BranchConstants
    by_name: tuple[tuple[str, ...], ...] = ()

    def __str__(self) -> str:
        heads = ("leaf", "shape", "role", "branch k", "layer j/m", "becomes")
        cells = [heads, *(_cells(row) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [f"{self.scheme.title} on {self.depth} residual branches"]
        for line in cells:
            padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            lines.append("  ".join(padded).rstrip())
        for name, value in self.constants._asdict().items():
            if value is not None and len(value):
                lines.append(f"in the forward pass: {name} = {_span(value)}")
        for names in self.by_name:
            shown = ", ".join(names)
            lines.append(f"layers in the order of their names: {shown} (rules.order for another)")
        lines += [f"{_SAID[each.without]}: {each.sentence}" for each in self.missing]
        lines += [f"refused: {sentence}" for sentence in self.refused]
        return "\n".join(lines)

    __repr__ = __str__


def describe(
    params: Any,
    depth: int,
    *,
    rules: Rules | RoleMap | None = None,
    scheme: str | Scheme = "fixup",
    constants: BranchConstants | None = None,
    **options: Any,
) -> Description:
    r"""Says what a scheme sees in a tree, before its initialiser is called.

    What becomes of a leaf is found by calling the initialiser, without ``key``, on trees of ones
    and of twos.

    Args:
      params: a parameter tree, or the shapes of one. It is not changed.
      depth: ``L``, the number of residual branches, checked against the tree.
      rules: what the paths of the tree mean; by default the names of this library's models.
      scheme: its name, or itself.
      constants: those of the network's forward pass, if it has the scheme's.
      **options: what else the scheme's initialiser wants to know, such as ``scales=`` of
        :func:`nf_resnets.init.zero_gamma`.

    Returns:
      The :class:`Description`; ``print`` shows it as a table.

    Raises:
      ValueError: if no scheme has that name, ``depth`` is not the number of residual branches,
        ``constants`` are not the scheme's, or the tree does not fit the rules (see
        :func:`nf_resnets.roles.assign`).
      TypeError: if ``depth`` is not an integer.

    Example:
      >>> tree = {"block_1": {"conv_1": jnp.ones((3, 3, 8, 8)), "conv_2": jnp.ones((3, 3, 8, 8))},
      ...         "block_2": {"conv_1": jnp.ones((3, 3, 8, 8)), "conv_2": jnp.ones((3, 3, 8, 8))},
      ...         "dense": jnp.ones((8, 10))}
      >>> found = describe(tree, 2, rules=Rules(branch=r"block_(\d+)/conv_(\d+)", head="dense"))
      >>> print(found)
      Fixup on 2 residual branches
      leaf            shape         role    branch k  layer j/m  becomes
      block_1/conv_1  [3, 3, 8, 8]  branch  1         1/2        × 0.7071
      block_1/conv_2  [3, 3, 8, 8]  branch  1         2/2        0
      block_2/conv_1  [3, 3, 8, 8]  branch  2         1/2        × 0.7071
      block_2/conv_2  [3, 3, 8, 8]  branch  2         2/2        0
      dense           [8, 10]       head                         0
      missing, and training is worse: no scalar biases found in params for 2 residual branches ...
      missing, and training is worse: no multipliers found in params for 2 residual branches ...
      >>> [each.part for each in found.missing]
      ['scalar_biases', 'multiplier']
    """
    found = schemes.get(scheme)
    role_map = roles.assign(params, rules)
    role_map.check_depth(depth)
    refused: list[str] = []
    changes: list[Any] = [("unknown", ())] * len(role_map.leaves)
    with _noting(refused):
        ones, twos = (_probed(found, params, role_map, value, options) for value in (1, 2))
        trees = map(jax.tree.leaves, (params, ones, twos))
        changes = [_change(*each) for each in zip(role_map.leaves, *trees, strict=True)]
    with _noting(refused):
        if found.norm_free:
            refuse_norms(found, role_map)
    with _noting(refused):
        refuse_two_zeros(found, _after(params, role_map, changes), role_map)
    rows = []
    for leaf, location, change in zip(role_map.leaves, role_map.locations, changes, strict=True):
        branches = location.branches[0] if len(location.branches) == 1 else ()
        rows.append(Row(leaf.path, leaf.shape, leaf.role, branches, leaf.layer, leaf.m, *change))
    missing = missing_parts(found, role_map, constants=constants)
    shown = _constants(found, int(depth))
    named = tuple(role_map.orders_by_text)
    return Description(found, int(depth), tuple(rows), missing, tuple(refused), shown, named)


@contextlib.contextmanager
def _noting(refused: list[str]) -> Iterator[None]:
    """Notes why a tree is refused, and goes on."""
    try:
        yield
    except ValueError as error:
        refused.append(str(error))


def _probed(
    scheme: Scheme, params: Any, role_map: RoleMap, value: int, options: dict[str, Any]
) -> Any:
    """What the initialiser makes of a tree of that number."""

    def probe(leaf: Leaf, given: Any) -> Any:
        return np.broadcast_to(np.float32(value), leaf.shape) if _is_real(given) else given

    with without_checks():
        probes = role_map.map(probe, params)
        return scheme.init(probes, role_map.num_branches, rules=role_map, **options)


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
    if leaf.weight and parts[0].any():
        return "std", by
    return "to", by


def _size(rows: np.ndarray) -> np.ndarray:
    """The number that each row holds, or its root mean square if it holds several."""
    equal = (rows == rows[:, :1]).all(axis=1)
    return np.where(equal, rows[:, 0], np.sqrt(np.square(rows).mean(axis=1)))


def _after(params: Any, role_map: RoleMap, changes: list[Any]) -> Any:
    """The tree as the initialiser would leave its zeros; what cannot be looked at as it is."""
    fates = iter(changes)

    def settled(leaf: Leaf, value: Any) -> Any:
        change, by = next(fates)
        if change == "to":
            number = np.asarray(by, np.float32).reshape(-1, *[1] * (len(leaf.shape) - 1))
            return np.broadcast_to(number if leaf.stacked else np.float32(by[0]), leaf.shape)
        concrete = is_concrete(value) and not isinstance(value, jax.ShapeDtypeStruct)
        return value if concrete else np.broadcast_to(np.float32(1), leaf.shape)

    return role_map.map(settled, params)


def _constants(scheme: Scheme, depth: int) -> BranchConstants:
    try:
        found = scheme.constants(depth)
    except ValueError:  # they depend on where the shape changes
        return schemes.NO_CONSTANTS
    return BranchConstants(*(None if np.all(value == 1) else value for value in found))


def _cells(row: Row) -> tuple[str, ...]:
    ks = ""
    if row.branches:
        first, last = row.branches[0], row.branches[-1]
        ks = str(first) if len(row.branches) == 1 else f"{first}..{last}"
    becomes = {"kept": "as given", "unknown": "?"}.get(row.change)
    if becomes is None:
        becomes = {"times": "× ", "to": "", "std": "std "}[row.change] + _span(row.by)
    layer = f"{row.layer}/{row.m}" if row.layer else ""
    return row.path, str(list(row.shape)), row.role.value, ks, layer, becomes


def _span(values: Any) -> str:
    first, last = f"{float(values[0]):.4g}", f"{float(values[-1]):.4g}"
    return first if first == last else f"{first} to {last}"


__all__ = ["Description", "Row", "describe"]
