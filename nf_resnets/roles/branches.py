"""The residual branches of a tree: which leaves are whose layers, and in which order."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nf_resnets.roles.axes import attention_order, ends_in_bias
from nf_resnets.roles.leaf import Branch, Leaf, Role
from nf_resnets.roles.rules import Rules


class _Group(NamedTuple):
    """A branch, or a stack of them, that the outer groups of ``rules.branch`` name."""

    outer: tuple[str, ...]  # what the outer groups found
    name: str  # the path of the branch
    layers: dict[str, list[int]]  # the leaves' positions in the tree, by what the last group found
    leaf: Leaf  # one of them


def number_branches(leaves: Sequence[Leaf], rules: Rules) -> tuple[list[Leaf], list[Branch]]:
    """Groups the branch leaves by the groups of ``rules.branch`` and numbers them from 1.

    Returns the leaves with ``branches``, ``layer`` and ``m``, and the branches by their numbers.
    Leaves of a branch that contradict each other are refused, so are scans that may be one or two.
    """
    found: dict[tuple[str, ...], dict[str, list[int]]] = {}
    for position, leaf in enumerate(leaves):
        if leaf.role is Role.BRANCH:
            *names, last = search(rules.branch, leaf.path)
            found.setdefault(tuple(names), {}).setdefault(last, []).append(position)
    groups = []
    for outer, layers in found.items():
        members = [leaves[position] for at in layers.values() for position in at]
        groups.append(_Group(outer, _branch_name(members, rules), layers, members[0]))
        _refuse_lengths(members, groups[-1].name)
        for at in layers.values():
            _refuse_ill_formed([leaves[position] for position in at])
    groups.sort(key=lambda group: natural(group.outer, rules.order))

    branches: list[Branch] = []
    numbered = list(leaves)
    for scan in _scans(groups, rules.stacked):
        start = len(branches)
        for turn, (_, name, layers, first) in enumerate(scan):
            numbers = tuple(start + 1 + turn + len(scan) * at for at in range(first.count))
            for j, layer in enumerate(layer_order(layers, rules), start=1):
                for i in layers[layer]:
                    numbered[i] = dataclasses.replace(
                        leaves[i], branches=numbers, layer=j, m=len(layers)
                    )
            for index, k in enumerate(numbers):
                own_name = f"{name}[{index}]" if first.stacked else name
                branches.append(Branch(k, own_name, len(layers)))
    return numbered, sorted(branches, key=lambda branch: branch.k)


def search(pattern: str | None, path: str) -> tuple[str, ...]:
    """What the groups of ``rules.branch`` find in a path."""
    match = re.search(pattern or "", path)
    assert match is not None
    return tuple(group or "" for group in match.groups())


def _branch_name(members: Sequence[Leaf], rules: Rules) -> str:
    """The path up to the key in which the layer's group begins, in a layer where it takes part."""
    for leaf in members:
        match = re.search(rules.branch or "", leaf.path)
        assert match is not None
        start = match.start(match.re.groups)
        if start >= 0:
            return leaf.path[:start].rpartition("/")[0] or leaf.path
    return members[0].path


def natural(names: Sequence[str], order: tuple[str, ...]) -> tuple[Any, ...]:
    """Orders ``""`` before ``"2"`` before ``"10"`` before ``"b2"`` before ``"b10"``.

    Names in ``order`` stand before all others, as they stand there.
    """
    return tuple(
        ((-1, order.index(name), ""),)
        if name in order
        else tuple(
            (0, int(part), "") if part.isdecimal() else (1, 0, part)
            for part in re.findall(r"\d+|\D+", name)
        )
        for name in names
    )


def layer_order(names: Iterable[str], rules: Rules) -> list[str]:
    """The layers of a branch: those of an attention as it computes, unless ``order`` names one."""
    in_order = sorted(names, key=lambda name: natural((name,), rules.order))
    if not set(in_order) & set(rules.order):
        in_order = list(attention_order(in_order) or in_order)
    return in_order


def _refuse_lengths(members: Sequence[Leaf], name: str) -> None:
    """Refuses leaves of one branch that are stacked over different numbers of branches."""
    lengths = {leaf.count for leaf in members}
    if len(lengths) > 1:
        raise ValueError(
            f"the leaves of branch {name!r} are stacked over "
            f"{' and '.join(map(str, sorted(lengths)))} branches; expected one number."
        )


def _refuse_ill_formed(layer: Sequence[Leaf]) -> None:
    """Refuses a layer that has no weight, two weights, or two vectors."""
    weights = [leaf for leaf in layer if leaf.weight]
    if not weights:
        raise ValueError(
            f"leaf {layer[0].path!r} is matched by rules.branch but has shape {layer[0].shape}, "
            "and its layer has no weight; expected a layer's weight to have two axes or more (a "
            "group that orders nothing is written (?:...))."
        )
    biases = [leaf for leaf in layer if ends_in_bias(leaf.path)]
    if len(weights) == 2 and len(biases) == 1 and not biases[0].stacked:
        kernel = next(leaf for leaf in layer if leaf is not biases[0])
        raise ValueError(
            f"leaf {biases[0].path!r} {list(biases[0].shape)} is no bias vector of its layer's "
            f"weight {list(kernel.shape)}; expected one, or rules.stacked to match both if their "
            "first axis runs over branches."
        )
    vectors = [leaf for leaf in layer if not leaf.weight]
    for same, kind in ((weights, "weights"), (vectors, "vectors")):
        if len(same) > 1:
            raise ValueError(
                f"leaves {same[0].path!r} and {same[1].path!r} are two {kind} of one layer by the "
                "groups of rules.branch; expected a layer to have one weight and at most one bias "
                "vector."
            )


def _scans(groups: Sequence[_Group], stacked: str | None) -> list[list[_Group]]:
    """The groups in order, those together that one scan makes in turns."""
    scans: dict[Any, list[_Group]] = {}
    for group in groups:
        key = _scan(group, stacked or "") if group.leaf.stacked else group.outer
        scans.setdefault(key, []).append(group)
    place = {group.outer: at for at, group in enumerate(groups)}
    for sharing in scans.values():
        first, last = sharing[0], sharing[-1]
        between = [
            group
            for group in groups[place[first.outer] : place[last.outer] + 1]
            if group not in sharing
        ]
        if between:
            raise ValueError(
                f"branches {first.name!r} and {last.name!r} are of one scan, and "
                f"{between[0].name!r} stands between them by the groups of rules.branch; expected "
                "groups, or rules.order, by which it does not."
            )
    if stacked is not None and not re.compile(stacked).groups:
        found = {key: groups for key, groups in scans.items() if groups[0].leaf.stacked}
        _refuse_ambiguous_scans(found, stacked)
    return list(scans.values())


def _scan(group: _Group, stacked: str) -> tuple[Any, ...]:
    """What the branches of one scan have in common, the length of the scan included."""
    path, count = group.leaf.path, group.leaf.count
    match = re.search(stacked, path)
    assert match is not None
    if match.re.groups:
        return ("", *(found or "" for found in match.groups()), str(count))
    # A match may end within a key, as "stage_" in "stage_1/conv_1": the scan is "stage_1/".
    end = match.end()
    if match.group() and not path[:end].endswith("/"):
        whole = path.find("/", end) + 1
        end = whole if 0 < whole <= len(group.name) + 1 else end
    return path[:end], count


def _refuse_ambiguous_scans(scans: Mapping[Any, list[_Group]], stacked: str) -> None:
    """Refuses branches that may, or may not, take turns, where no group of ``stacked`` tells.

    Attention and feed-forward branch of a layer do: each has one key below the scan's path, and
    their layers differ. Branches of the same layers may as well be two scans.
    """

    def alike(one: _Group, two: _Group) -> bool:
        return one.layers.keys() == two.layers.keys()

    def refuse(one: _Group, two: _Group) -> None:
        raise ValueError(
            f"branches {one.name!r} and {two.name!r}, both stacked {one.leaf.count} times by "
            f"rules.stacked={stacked!r}, may be one scan, in which they take turns, or two; "
            "expected a group in rules.stacked around what the branches of a scan have in common, "
            f"such as r'^({one.name})/|^({two.name})/' for two."
        )

    for sharing in scans.values():
        paths = [group.name.split("/") for group in sharing]
        depth = len(os.path.commonprefix(paths))
        keys = {tuple(path[depth : depth + 1]) for path in paths}
        same = all(alike(sharing[0], group) for group in sharing) or len(keys) < len(paths)
        if len(sharing) > 1 and same:
            refuse(sharing[0], sharing[-1])
    alone = [(key, sharing[0]) for key, sharing in scans.items() if len(sharing) == 1]
    for ((path, count), one), ((other_path, other_count), two) in itertools.combinations(alone, 2):
        (above, _, key), (other_above, _, other_key) = (
            each.rstrip("/").rpartition("/") for each in (path, other_path)
        )
        siblings = above == other_above and count == other_count
        numbered = re.sub(r"\d+", "", key) == re.sub(r"\d+", "", other_key)
        if siblings and not numbered and not alike(one, two):
            refuse(one, two)


def rows(leaves: Sequence[Leaf]) -> list[list[Leaf]]:
    """The weights of each branch in order, of those whose axes are all known."""
    found: dict[tuple[int, ...], list[Leaf]] = {}
    for leaf in leaves:
        if leaf.weight and leaf.role is Role.BRANCH:
            found.setdefault(leaf.branches, []).append(leaf)
    return [
        sorted(found[branches], key=lambda leaf: leaf.layer)
        for branches in sorted(found)
        if all(leaf.axes for leaf in found[branches])
    ]


__all__ = ["layer_order", "natural", "number_branches", "rows", "search"]
