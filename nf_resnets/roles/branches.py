"""The residual branches of a tree: which leaves are whose layers, and in which order."""

from __future__ import annotations

import collections
import dataclasses
import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nf_resnets.roles.axes import attention_order, ends_in_bias
from nf_resnets.roles.leaf import Branch, Leaf, Role, by_channel
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
            *names, last = _search(rules.branch, leaf.path)
            found.setdefault(tuple(names), {}).setdefault(last, []).append(position)
    groups = []
    for outer, layers in found.items():
        members = [leaves[position] for at in layers.values() for position in at]
        groups.append(_Group(outer, _branch_name(members, rules), layers, members[0]))
        _refuse_lengths(members, groups[-1].name)
        for at in layers.values():
            _refuse_ill_formed([leaves[position] for position in at])
    groups.sort(key=lambda group: _natural(group.outer, rules.order))

    branches: list[Branch] = []
    numbered = list(leaves)
    for scan in _scans(groups, rules.stacked):
        start = len(branches)
        for turn, (_, name, layers, first) in enumerate(scan):
            numbers = tuple(start + 1 + turn + len(scan) * at for at in range(first.count))
            for j, layer in enumerate(_layer_order(layers, rules), start=1):
                for i in layers[layer]:
                    numbered[i] = dataclasses.replace(
                        leaves[i], branches=numbers, layer=j, m=len(layers)
                    )
            for index, k in enumerate(numbers):
                own_name = f"{name}[{index}]" if first.stacked else name
                branches.append(Branch(k, own_name, len(layers)))
    return numbered, sorted(branches, key=lambda branch: branch.k)


def _search(pattern: str | None, path: str) -> tuple[str, ...]:
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


def _natural(names: Sequence[str], order: tuple[str, ...]) -> tuple[Any, ...]:
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


def _layer_order(names: Iterable[str], rules: Rules) -> list[str]:
    """The layers of a branch: those of an attention as it computes, unless ``order`` names one."""
    in_order = sorted(names, key=lambda name: _natural((name,), rules.order))
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


# A squeeze-and-excitation, which multiplies the branch by a number above 0.
_GATE = re.compile(
    r"(?:^|[/._])(?:se|se_?(?:block|layer|module|unit)|squeeze\w*excit\w*|excit\w*)_?\d*[/._]", re.I
)


def refuse_layers_beside(leaves: Sequence[Leaf], branches: Sequence[Branch], rules: Rules) -> None:
    """Refuses a first or last layer that is in no row with the others: a shortcut, or a gate.

    A shortcut takes what the branch takes and gives what the branch gives, and does not fit to its
    neighbour; or it is what a branch of a stage's first block has more than the others.
    """
    rows = _rows(leaves)
    taps = {tuple(map(_taps, row)) for row in rows}
    for row in rows:
        name = branches[row[0].branches[0] - 1].name
        if {_search(rules.branch, leaf.path)[-1] for leaf in row} & set(rules.order):
            continue
        for leaf in row:
            if _GATE.search(leaf.path):
                raise ValueError(
                    f"leaf {leaf.path!r} {list(leaf.shape)} is that of a gate by its name, a "
                    f"squeeze-and-excitation, and no layer in the row of residual branch {name!r}; "
                    "expected rules.branch not to match it and rules.keep to do."
                )
        for one, two in itertools.pairwise(row):
            pointwise = _taps(one) == 1 == _taps(two)
            returns = (one.length("I"), one.length("O")) == (two.length("O"), two.length("I"))
            squeezes = one.length("O") < one.length("I")
            if pointwise and returns and squeezes and max(map(_taps, row)) > 1:
                raise ValueError(
                    f"leaves {one.path!r} {list(one.shape)} and {two.path!r} {list(two.shape)} of "
                    f"residual branch {name!r} squeeze and restore the channels without a tap, as "
                    "a squeeze-and-excitation does, which is a gate; expected rules.branch not to "
                    "match them and rules.keep to do, or rules.order to name all layers if they "
                    "are two of the branch."
                )
        for beside, rest, neighbour in (
            (row[-1], row[:-1], row[-2:-1]), (row[0], row[1:], row[1:2]),
        ):  # fmt: skip
            # Two layers that do not fit may be two halves of something else.
            if len(rest) < 2 or _taps(beside) > 1:
                continue
            if (rest[0].length("I"), rest[-1].length("O")) != tuple(map(beside.length, "IO")):
                continue
            given, taken = sorted((beside, neighbour[0]), key=lambda leaf: leaf.layer)
            own = tuple(map(_taps, rest))
            if given.length("O") != taken.length("I") or (max(own) > 1 and own in taps):
                raise ValueError(
                    f"leaf {beside.path!r} {list(beside.shape)} takes what residual branch "
                    f"{name!r} takes and gives what it gives, as a shortcut beside the other "
                    f"{len(rest)} does; expected rules.branch not to match it and rules.shortcut "
                    "to do, or rules.order to name all layers if it is one of the branch."
                )


def _taps(leaf: Leaf) -> int:
    return leaf.length("DHW")


def refuse_missing_skips(leaves: Sequence[Leaf], branches: Sequence[Branch], rules: Rules) -> None:
    """Refuses a block of a MobileNet or EfficientNet that changes the width: it has no skip path.

    Nothing passes it once its last layer is 0. (Other blocks may pad or pool on the skip path.)
    """
    if "shortcut" in rules.optional:
        return
    shortcuts = {
        _widths(leaf) for leaf in leaves if leaf.role is Role.SHORTCUT and leaf.weight and leaf.axes
    }
    for row in _rows(leaves):
        depthwise = any(leaf != by_channel(leaf) for leaf in row)
        (taken, _), (_, given) = _widths(row[0]), _widths(row[-1])
        if depthwise and taken != given and (taken, given) not in shortcuts:
            raise ValueError(
                f"branch {branches[row[0].branches[0] - 1].name!r} has a depthwise kernel, takes "
                f"{taken} channels, gives {given} and has no shortcut beside it, as a block "
                "without a skip path; expected rules.branch not to match it and rules.stem to do, "
                "or 'shortcut' in rules.optional if its skip path has no weight."
            )


def _widths(leaf: Leaf) -> tuple[int, int]:
    """The channels that a layer takes and gives."""
    given = leaf.length("O")
    return (leaf.length("I") if leaf == by_channel(leaf) else given), given


def _rows(leaves: Sequence[Leaf]) -> list[list[Leaf]]:
    """The weights of each branch in order, of those whose axes are all known."""
    rows: dict[tuple[int, ...], list[Leaf]] = {}
    for leaf in leaves:
        if leaf.weight and leaf.role is Role.BRANCH:
            rows.setdefault(leaf.branches, []).append(leaf)
    return [
        sorted(row, key=lambda leaf: leaf.layer)
        for row in rows.values()
        if all(leaf.axes for leaf in row)
    ]


def refuse_order_of_names(leaves: Sequence[Leaf], branches: Sequence[Branch], rules: Rules) -> None:
    """Refuses an order by names, as of ``down`` before ``up``, in which a branch fits nowhere.

    Neither what its first layer takes nor what its last one gives is a width of the network around
    it, and layers between them are of such a width. Or its layers fit to each other, but not so.
    """
    around: set[int] = set()
    for leaf in leaves:
        if not leaf.weight:
            continue
        if leaf.role is Role.EMBEDDING:
            around.add(leaf.shape[-1])
        elif leaf.axes:
            letters = {Role.HEAD: "I", Role.STEM: "O", Role.SHORTCUT: "IO"}.get(leaf.role, "")
            around |= {leaf.length(letter) for letter in letters}
    # Branches of the same widths say the same, right or wrong.
    kinds: dict[tuple[tuple[int, int], ...], list[Leaf]] = {}
    for row in _rows(leaves):
        kinds.setdefault(tuple(map(_widths, row)), row)
    outer = collections.Counter(width for kind in kinds for width in {kind[0][0], kind[-1][1]})

    for kind, in_order in kinds.items():
        (taken, _), (_, given) = kind[0], kind[-1]

        def fits(width: int, own: tuple[int, int] = (taken, given)) -> bool:
            return width in around or outer[width] > (width in own)

        if not _by_text(in_order, rules):
            continue
        if not _closed(kind) and len(kind) < 8 and any(map(_closed, itertools.permutations(kind))):
            raise ValueError(
                "in the order of their names, "
                f"{', '.join(leaf.path for leaf in in_order)}, the layers of residual branch "
                f"{branches[in_order[0].branches[0] - 1].name!r} do not take what those before "
                "them give, and in another one they do; expected rules.order to name them from "
                "the first to the last."
            )
        if fits(taken) or fits(given):
            continue
        if any(fits(width) for width in {each for each, _ in kind} & {each for _, each in kind}):
            raise ValueError(
                "by the names of its layers residual branch "
                f"{branches[in_order[0].branches[0] - 1].name!r} begins with {in_order[0].path!r}, "
                f"which takes {taken} channels, and ends with {in_order[-1].path!r}, which gives "
                f"{given}, and neither is a width of the network around it; expected rules.order "
                "to name the layers from the first to the last."
            )


def _closed(widths: Sequence[tuple[int, int]]) -> bool:
    """Whether each layer takes what the one before gives, and the first what the last does."""
    links = itertools.pairwise((widths[-1], *widths))
    return all(given == taken for (_, given), (taken, _) in links)


def _by_text(in_order: Sequence[Leaf], rules: Rules) -> bool:
    """Whether the layers of a branch are in the order of the letters of their names."""
    names = [_search(rules.branch, leaf.path)[-1] for leaf in in_order]
    if set(names) & set(rules.order) or attention_order(names):
        return False
    return len({re.sub(r"\d+", "", name) for name in names}) > 1


def orders_by_text(leaves: Sequence[Leaf], rules: Rules) -> list[tuple[str, ...]]:
    """The names of layers, in order, of each kind of branch in which their letters alone order."""
    rows = [row for row in _rows(leaves) if _by_text(row, rules)]
    names = [tuple(_search(rules.branch, leaf.path)[-1] for leaf in row) for row in rows]
    return list(dict.fromkeys(names))


def refuse_unused_order(leaves: Sequence[Leaf], rules: Rules) -> None:
    """Refuses texts of ``rules.order`` that no group of ``rules.branch`` finds."""
    found = {
        text
        for leaf in leaves
        if leaf.role is Role.BRANCH
        for text in _search(rules.branch, leaf.path)
    }
    unused = [name for name in rules.order if name not in found]
    if unused:
        raise ValueError(
            f"rules.order names {unused[0]!r}, which no group of rules.branch={rules.branch!r} "
            f"finds; expected texts that they find, such as {sorted(found)[:4]}."
        )


__all__ = [
    "number_branches", "orders_by_text", "refuse_layers_beside", "refuse_missing_skips",
    "refuse_order_of_names", "refuse_unused_order",
]  # fmt: skip
