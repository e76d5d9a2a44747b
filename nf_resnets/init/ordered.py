"""The order of layers and branches as a network computes them, read off its traced program."""

from __future__ import annotations

import dataclasses
import graphlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from nf_resnets import roles
from nf_resnets.roles import Role, Rules, path_name
from nf_resnets.roles.branches import layer_order, natural, search

# Where a value comes from: the numbers of the parameters, none for a constant; None if it depends
# on the inputs.
Origin = tuple[int, ...] | None


def ordered(rules: Rules, network: Callable[..., Any], params: Any, *inputs: Any) -> Rules:
    r"""Adds to rules the ``order`` of layers and branches in which a network computes them.

    Names need not tell it: Flax numbers modules as they are constructed, so that the last layer of
    ``nn.Dense(d)(nn.gelu(nn.Dense(d)(x)))`` is ``Dense_0``; ``down`` stands before ``up``. The
    network is traced and nothing is computed.

    Args:
      rules: what the paths of the tree mean.
      network: ``network(params, *inputs)``, its forward pass, of any library.
      params: a parameter tree, or the shapes of one.
      *inputs: arrays, or trees of them; shapes are enough.

    Returns:
      The rules; where their order is the network's already, as they are.

    Raises:
      ValueError: if no texts of ``rules.branch`` give the network's order, or two of its groups
        find one text that the order would need; or the tree does not fit the rules.

    Example:
      >>> import numpy as np
      >>> tree = {f"block_{k}": {"up": np.ones((4, 4)), "down": np.ones((4, 4))} for k in (1, 2)}
      >>> def network(params, x):
      ...     for block in params.values():
      ...         x = x + jax.nn.gelu(x @ block["up"]) @ block["down"]
      ...     return x
      >>> rules = Rules(branch=r"block_(\d)/(up|down)")
      >>> ordered(rules, network, tree, np.ones((1, 4))).order
      ('up', 'down')
    """
    used = [path for path in first_uses(network, params, *inputs) if _is_layer(rules, path)]
    texts = [search(rules.branch, path) for path in used]
    order: list[str] = []
    for group in range(len(texts[0]) if texts else 0):
        found: dict[tuple[str, ...], dict[str, None]] = {}
        for each in texts:
            found.setdefault(each[:group], {})[each[group]] = None
        rows = [list(row) for row in found.values()]
        is_layer = group == len(texts[0]) - 1
        if all(row == _by_rules(row, rules, is_layer=is_layer) for row in rows):
            continue
        after: dict[str, list[str]] = {text: [] for row in rows for text in row}
        for one, two in itertools.chain.from_iterable(map(itertools.pairwise, rows)):
            after[two].append(one)
        try:
            order += graphlib.TopologicalSorter(after).static_order()
        except graphlib.CycleError as error:
            raise ValueError(
                f"{', '.join(error.args[1][1:])} are computed in one order in some branches and in "
                "another in others, and rules.order is one for all; expected other names."
            ) from None
    result = rules
    if order:
        old = [text for text in rules.order if text not in order]
        result = dataclasses.replace(rules, order=(*order, *old))
    _refuse_other_order(roles.assign(params, result), used)
    return result


def _is_layer(rules: Rules, path: str) -> bool:
    return rules.branch is not None and re.search(rules.branch, path) is not None


def _by_rules(row: Sequence[str], rules: Rules, *, is_layer: bool) -> list[str]:
    """Texts of a group in the order that the rules give them."""
    if is_layer:
        return layer_order(row, rules)
    return sorted(row, key=lambda text: natural((text,), rules.order))


def _refuse_other_order(role_map: roles.RoleMap, used: Sequence[str]) -> None:
    """Refuses branches that no order of single texts brings into the network's."""
    places = {path: place for place, path in enumerate(used)}
    firsts: dict[int, int] = {}
    for leaf in role_map.leaves:
        if leaf.role is Role.BRANCH and leaf.path in places:
            k, place = leaf.branches[0], places[leaf.path]
            firsts[k] = min(place, firsts.get(k, place))
    for one, two in itertools.pairwise(sorted(firsts)):
        if firsts[one] > firsts[two]:
            names = [role_map.branches[k - 1].name for k in (one, two)]
            raise ValueError(
                f"branch {names[1]!r} is computed before {names[0]!r}, and stands after it by the "
                "groups of rules.branch, whatever rules.order says; expected the group of what "
                "counts the blocks to stand before those of their names."
            )


def first_uses(network: Callable[..., Any], params: Any, *inputs: Any) -> list[str]:
    """The paths of the arrays of a tree, in the order in which a network first uses them.

    An array is used where it meets what depends on the inputs: a cast is no use.

    Raises:
      ValueError: if none is used.

    Example:
      >>> import numpy as np
      >>> tree = {"a": np.ones((2, 2)), "b": np.ones((2, 2))}
      >>> first_uses(lambda at, x: x @ at["b"] @ (2 * at["a"]), tree, np.ones((1, 2)))
      ['b', 'a']
    """
    flat, treedef = jax.tree_util.tree_flatten_with_path(params)
    shapes = {
        place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        for place, (_, leaf) in enumerate(flat)
        if hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    }

    def of(arrays: Sequence[Any], inputs: Any) -> Any:
        leaves = [leaf for _, leaf in flat]
        for place, array in zip(shapes, arrays, strict=True):
            leaves[place] = array
        return network(jax.tree.unflatten(treedef, leaves), *inputs)

    program = jax.make_jaxpr(of)(list(shapes.values()), inputs).jaxpr
    places: list[Origin] = [(place,) for place in shapes]
    used: dict[int, None] = {}
    _follow(program, [*places, *[None] * (len(program.invars) - len(places))], used)
    if not used:
        raise ValueError(
            "no leaf of params meets an input of the network; expected network(params, *inputs) "
            "and the inputs."
        )
    return [path_name(flat[place][0]) for place in used]


def _follow(
    program: Any, given: Sequence[Origin], used: dict[int, None], *, looped: bool = False
) -> list[Origin]:
    """Walks through a program, notes what is used, and returns where its results come from."""
    origins: dict[Any, Origin] = dict(zip(program.invars, given, strict=True))

    def of(value: Any) -> Origin:
        return () if hasattr(value, "val") else origins.get(value, ())  # a number, or a constant

    for step in program.eqns:
        operands = [of(value) for value in step.invars]
        results: list[Origin] = [None] * len(step.outvars)
        inner = list(_inner(step))
        loop = step.primitive.name in ("scan", "while")
        for each in inner:
            own = operands[len(operands) - len(each.invars) :]
            if loop:  # what is carried depends on the inputs
                own = [operand or None for operand in own]
            found = _follow(each, own, used, looped=looped or loop)
            results = found if len(found) == len(results) else results
        if looped and step.primitive.name == "dynamic_slice" and operands[0]:
            results = [operands[0]]  # a loop takes its turn's layer from a stack: no use yet
        elif not inner and None in operands:
            used.update(dict.fromkeys(number for each in operands for number in each or ()))
        elif not inner:
            numbers = dict.fromkeys(number for each in operands for number in each or ())
            results = [tuple(numbers)] * len(step.outvars)
        origins.update(zip(step.outvars, results, strict=True))
    return [of(value) for value in program.outvars]


def _inner(step: Any) -> Iterator[Any]:
    """The programs that a step calls with its last operands, as those of jit, remat and scan."""
    if re.match("scatter|reduce", step.primitive.name):
        return
    for name, value in step.params.items():
        for each in value if isinstance(value, tuple | list) else (value,):
            program: Any = getattr(each, "jaxpr", each)
            called = hasattr(program, "eqns") and len(program.invars) <= len(step.invars)
            if called and name != "cond_jaxpr":
                yield program


__all__ = ["first_uses", "ordered"]
