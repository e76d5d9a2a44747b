"""The role map of a tree by rules: what the paths of its leaves mean.

The axes of a weight are written as a word with one letter for each: ``HWIO`` is Flax's convolution,
``OI`` PyTorch's dense layer, ``IOO`` a dense layer to ``[heads, head_dim]``.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from nf_resnets.roles.leaf import LAYER_ROLES, Branch, Leaf, Role, is_numeric, path_name
from nf_resnets.roles.role_map import RoleMap
from nf_resnets.roles.rules import OUR_RULES, Rules

# NNX adds a key to a Param's path.
_BIAS = re.compile(r"(?:^|[/_.])(?:bias|b)(?:/(?:raw_)?value)?$", re.I)
_LAST = re.compile(r"(?:^|[/_.])[^/_.]+(?:/(?:raw_)?value)?$")
_MOST_TAPS = 11


def assign(params: Any, rules: Rules | RoleMap | None = None, *, part: bool = False) -> RoleMap:
    r"""Finds the role of every leaf of a parameter tree.

    Args:
      params: any pytree of arrays: of Flax Linen, NNX, Haiku, Equinox or hand-written. Weights are
        ``[H, W, C_in, C_out]`` or ``[C_in, C_out]``, or as ``rules.layout`` and ``rules.axes`` say,
        with one more leading axis where ``rules.stacked`` says so.
      rules: what the paths mean; by default the names of this library's models. A
        :class:`RoleMap` that was made for this tree is returned as it is.
      part: whether ``params`` may be a part of a tree, as inside ``optax.masked``: then expressions
        may match nothing, and branches are not numbered.

    Returns:
      The :class:`RoleMap` of the tree.

    Raises:
      ValueError: if the tree is not that of the :class:`RoleMap`, a weight is matched by no rule or
        a leaf by two, a rule matches nothing, the leaves of a branch contradict each other or words
        order its layers and ``rules.order`` does not, a bias vector has not as many values as its
        layer has outputs, or a kernel of default layout has the taps of the other one.

    Example:
      >>> import numpy as np
      >>> block = {"conv_1": np.ones((3, 3, 4, 4)), "conv_2": np.ones((3, 3, 4, 4))}
      >>> tree = {"block_2": block, "block_10": block}
      >>> role_map = assign(tree, Rules(branch=r"block_(\d+)/conv_(\d+)"))
      >>> [branch.name for branch in role_map.branches]
      ['block_2', 'block_10']
    """
    if isinstance(rules, RoleMap):
        return rules.part(params, whole=not part)
    flat, treedef = jax.tree_util.tree_flatten_with_path(params)
    used = OUR_RULES if rules is None else rules
    leaves = [_classify(path_name(path), value, used) for path, value in flat]
    leaves = _with_axes(leaves, used)
    paths = tuple(path for path, _ in flat)
    if part:
        return RoleMap(tuple(leaves), (), used, treedef, paths, ((),) * len(leaves))
    _refuse_unmatched(leaves, used)
    leaves, branches, beside = _number_branches(leaves, used)
    _refuse_biases(leaves)
    return RoleMap(tuple(leaves), tuple(branches), used, treedef, paths, tuple(beside))


def _classify(path: str, value: Any, rules: Rules) -> Leaf:
    if not is_numeric(value):
        return Leaf(path, Role.KEEP)
    matches = [role for role, pattern in rules.patterns() if re.search(pattern, path)]
    if len(matches) > 1:
        raise ValueError(
            f"leaf {path!r} is matched by two rules, rules.{matches[0].value} and "
            f"rules.{matches[1].value}; expected one."
        )
    stacked = int(rules.stacked is not None and re.search(rules.stacked, path) is not None)
    shape = tuple(value.shape)
    role = matches[0] if matches else Role.KEEP
    return Leaf(path, role, shape, stacked, weight=len(shape) - stacked >= 2)


def _refuse_unmatched(leaves: Sequence[Leaf], rules: Rules) -> None:
    """Refuses weights that no rule matches, and rules that match no leaf."""
    unknown = [
        f"{leaf.path!r} {list(leaf.shape)}"
        for leaf in leaves
        if leaf.role is Role.KEEP and leaf.weight and not re.search(rules.keep or "(?!)", leaf.path)
    ]
    if unknown:
        shown = ", ".join(unknown[:5]) + (f" and {len(unknown) - 5} more" if unknown[5:] else "")
        advice = (
            "these are not the names of this library's models, so pass network= and inputs=, "
            "or rules=: roles.read(network, params, *inputs) or init.Rules(...)"
            if rules == OUR_RULES
            else "name it in rules=, in keep= if it is to stay as it is"
        )
        raise ValueError(f"no rule says what the weight {shown} is; {advice}.")
    named = [(role.value, pattern) for role, pattern in rules.patterns()]
    named += [("axes", pattern) for pattern in dict(rules.axes)]
    named += [("stacked", rules.stacked)] if rules.stacked is not None else []
    for name, pattern in named:
        # What was taken over from our own rules serves all of our networks.
        may_miss = pattern == getattr(OUR_RULES, name)
        if not may_miss and not any(re.search(pattern, leaf.path) for leaf in leaves):
            shown = ", ".join(repr(leaf.path) for leaf in leaves[:3])
            raise ValueError(
                f"rules.{name}={pattern!r} matches no leaf of params; its paths are like {shown}."
            )


# Axes.


def _with_axes(leaves: Sequence[Leaf], rules: Rules) -> list[Leaf]:
    """Tells bias vectors of several axes from weights, and gives weights the words of the rules."""
    most: dict[str, int] = {}
    for leaf in leaves:
        layer = _LAST.sub("", leaf.path)
        most[layer] = max(most.get(layer, 0), len(leaf.own_shape))

    def with_axes(leaf: Leaf) -> Leaf:
        shape = leaf.own_shape
        smaller = len(shape) < most[_LAST.sub("", leaf.path)]
        if is_bias(leaf.path) and (smaller or sum(n > 1 for n in shape) <= 1):
            return dataclasses.replace(leaf, weight=False)
        return dataclasses.replace(leaf, axes="N" * leaf.stacked + _word(leaf, rules))

    return [with_axes(leaf) if leaf.weight else leaf for leaf in leaves]


def is_bias(path: str) -> bool:
    """Whether the last key of a path is ``bias`` or ``b``."""
    return _BIAS.search(path) is not None


def _word(leaf: Leaf, rules: Rules) -> str:
    """The axes of a weight but the stacked one."""
    shape = leaf.own_shape
    for pattern, word in dict(rules.axes).items():
        if re.search(pattern, leaf.path):
            if len(word) != len(shape):
                raise ValueError(
                    f"leaf {leaf.path!r} has {len(shape)} axes and rules.axes says {word!r}; "
                    "expected a letter for each axis but the stacked one."
                )
            return word
    taps = "D" * max(len(shape) - 5, 0) + "DHW"[max(5 - len(shape), 0) :]
    if rules.layout == "OIHW" and leaf.role is not Role.EMBEDDING:
        return "OI" + taps
    is_reversed = len(shape) == 4 and shape[2] == shape[3] <= _MOST_TAPS < max(shape[:2])
    if rules.layout is None and leaf.role in LAYER_ROLES and is_reversed:
        raise ValueError(
            f"leaf {leaf.path!r} {list(leaf.shape)} would have {shape[0]} x {shape[1]} taps in the "
            "layout [H, W, C_in, C_out]; expected rules.layout='OIHW' for [C_out, C_in, H, W], or "
            "'HWIO' if it is meant."
        )
    word = taps + "IO"
    is_thin = len(shape) > 2 and shape[-2] == 1 < min(math.prod(shape[:-2]), shape[-1])
    if leaf.role is Role.BRANCH and rules != OUR_RULES and is_thin:
        raise ValueError(
            f"leaf {leaf.path!r} {list(leaf.shape)} takes one channel; expected rules.axes to say "
            f"whether it is depthwise, {word.replace('O', 'N')!r}, or not, {word!r}."
        )
    return word


def _refuse_biases(leaves: Sequence[Leaf]) -> None:
    """Refuses a bias vector that has not as many values as its layer has outputs."""
    weights: dict[object, list[Leaf]] = {}
    for leaf in leaves:
        if leaf.weight:
            weights.setdefault(_layer(leaf), []).append(leaf)
    for leaf in leaves:
        layer = weights.get(_layer(leaf), [])
        if leaf.weight or leaf.role not in LAYER_ROLES or len(layer) != 1:
            continue
        weight, values = layer[0], math.prod(leaf.own_shape)
        outputs = weight.length("O")
        copies = weight.length("N") // weight.count
        if weight.stacked == leaf.stacked and values in (outputs, copies * outputs):
            continue
        raise ValueError(
            f"leaf {leaf.path!r} {list(leaf.shape)} is the bias vector of a layer whose weight "
            f"{list(weight.shape)} has {outputs} outputs by its axes {weight.axes!r}; expected as "
            "many values, or rules.layout, rules.axes or rules.stacked to say what the axes are."
        )


def _layer(leaf: Leaf) -> object:
    if leaf.role is Role.BRANCH:
        return leaf.branches[:1], leaf.layer
    return leaf.role, _LAST.sub("", leaf.path)


# Branches.


class _Group(NamedTuple):
    """A branch, or a stack of them, that the outer groups of ``rules.branch`` name."""

    outer: tuple[str, ...]  # what the outer groups match
    layers: list[list[int]]  # the leaves' positions in the tree, layer by layer
    leaf: Leaf  # one of them
    prefix: str  # the path of its block


def _number_branches(
    leaves: Sequence[Leaf], rules: Rules
) -> tuple[list[Leaf], list[Branch], list[tuple[int, ...]]]:
    """Numbers the branches that the groups of ``rules.branch`` name from 1.

    Returns the leaves with their branches, the branches, and for each leaf the numbers of the
    branches in whose block it is by its path.
    """
    texts: dict[tuple[str, ...], dict[str, list[int]]] = {}
    for position, leaf in enumerate(leaves):
        if leaf.role is Role.BRANCH:
            *outer, last = _search(rules, leaf.path).groups("")
            texts.setdefault(tuple(outer), {}).setdefault(last, []).append(position)
    groups = [_group(outer, layers, leaves, rules) for outer, layers in texts.items()]
    groups.sort(key=lambda group: natural(group.outer, rules.order))

    scans: dict[Any, list[_Group]] = {}
    for group in groups:
        key = _scan(group.leaf, rules) if group.leaf.stacked else group.outer
        scans.setdefault(key, []).append(group)
    branches: list[Branch] = []
    numbered = list(leaves)
    blocks: dict[str, list[int]] = {}  # a path that ends in / is that of one block
    for scan in scans.values():
        start = len(branches)
        for turn, group in enumerate(scan):
            numbers = tuple(start + 1 + turn + len(scan) * at for at in range(group.leaf.count))
            m, name = len(group.layers), group.prefix or group.leaf.path
            blocks[f"{group.prefix}/"] = []
            path = group.prefix
            while path:
                blocks.setdefault(path, []).extend(numbers)
                path = _parent(path)
            for j, layer in enumerate(group.layers, start=1):
                for i in layer:
                    numbered[i] = dataclasses.replace(leaves[i], branches=numbers, layer=j, m=m)
            for index, k in enumerate(numbers):
                branches.append(Branch(k, name + f"[{index}]" * group.leaf.stacked, m))
    beside = [leaf.branches or _beside(leaf, blocks, len(branches)) for leaf in numbered]
    return numbered, sorted(branches, key=lambda branch: branch.k), beside


def _search(rules: Rules, path: str) -> re.Match[str]:
    match = re.search(rules.branch or "", path)
    assert match is not None
    return match


def _group(
    outer: tuple[str, ...], layers: dict[str, list[int]], leaves: Sequence[Leaf], rules: Rules
) -> _Group:
    """A group of leaves as a branch, refused if they contradict each other."""
    members = [leaves[position] for at in layers.values() for position in at]
    prefix = _prefix(members, rules)
    name = prefix or members[0].path
    lengths = {leaf.count for leaf in members}
    if len(lengths) > 1:
        raise ValueError(
            f"the leaves of branch {name!r} are stacked over "
            f"{' and '.join(map(str, sorted(lengths)))} branches; expected one number."
        )
    for at in layers.values():
        count = sum(leaves[position].weight for position in at)
        if count != 1 or len(at) > 2:
            raise ValueError(
                f"leaf {leaves[at[0]].path!r} is in a layer of {count} weights and "
                f"{len(at) - count} vectors by the groups of rules.branch; expected one weight of "
                "two axes or more and at most one bias vector (a group that orders nothing is "
                "written (?:...))."
            )
    words = {re.sub(r"\d+", "", text) for text in layers}
    in_order = sorted(layers, key=lambda text: natural((text,), rules.order))
    if len(words) > 1 and not set(layers) <= set(rules.order):
        raise ValueError(
            f"layers {', '.join(map(repr, sorted(layers)))} of residual branch {name!r} are told "
            "apart by words; expected rules.order to name them from the first to the last."
        )
    return _Group(outer, [layers[text] for text in in_order], members[0], prefix)


def _prefix(members: Sequence[Leaf], rules: Rules) -> str:
    """The path up to the key in which the outer groups end, or the layer's begins."""
    for leaf in members:
        match = _search(rules, leaf.path)
        start = match.start(match.re.groups)
        if start >= 0:
            end = max((match.end(at) for at in range(1, match.re.groups)), default=-1)
            ends = [i for i in range(max(end, 0), start) if leaf.path[i] in "/."]
            return leaf.path[: ends[0]] if ends and end >= 0 else _parent(leaf.path[:start])
    return ""


def _beside(leaf: Leaf, blocks: dict[str, list[int]], count: int) -> tuple[int, ...]:
    """The branches of the innermost path that holds both a leaf and blocks.

    What is beside all branches of the tree, and not stacked as they are, is in none.
    """
    path = leaf.path
    while path := _parent(path):
        if path in blocks:
            inside = len(blocks[path]) < count or leaf.stacked or f"{path}/" in blocks
            return tuple(sorted(blocks[path])) if inside else ()
    return ()


def _parent(path: str) -> str:
    return re.sub(r"(?:^|[/.])[^/.]*$", "", path)


def natural(names: Sequence[str], order: tuple[str, ...] = ()) -> tuple[Any, ...]:
    """Orders ``""`` before ``"2"`` before ``"10"`` before ``"b2"`` before ``"b10"``.

    Names in ``order`` stand before all others, as they stand there.
    """

    def of_name(name: str) -> tuple[Any, ...]:
        if name in order:
            return ((-1, order.index(name), ""),)
        parts = re.findall(r"\d+|\D+", name)
        return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)

    return tuple(map(of_name, names))


def _scan(leaf: Leaf, rules: Rules) -> tuple[Any, ...]:
    """What the branches of one scan have in common, the length of the scan included."""
    match = re.search(rules.stacked or "", leaf.path)
    assert match is not None
    if match.re.groups:
        return ("", *match.groups(""), str(leaf.count))
    # A match may end within a key, as "stage_" in "stage_1/conv_1": the scan is "stage_1/".
    end = match.end()
    if match.group() and not match.group().endswith("/"):
        end = leaf.path.find("/", end) + 1 or end
    return leaf.path[:end], leaf.count
