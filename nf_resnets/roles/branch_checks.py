"""Branches that are not what the rules say: layers beside them, other orders, no skip path."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from nf_resnets.roles.axes import attention_order, names_of_attention
from nf_resnets.roles.branches import rows, search
from nf_resnets.roles.leaf import Branch, Leaf, Role
from nf_resnets.roles.rules import Rules

# A squeeze-and-excitation, which multiplies the branch by a number above 0.
_GATE = re.compile(
    r"(?:^|[/._])(?:se|se_?(?:block|layer|module|unit)|squeeze\w*excit\w*|excit\w*)_?\d*[/._]", re.I
)

# What a layer at the end of a branch is called: out, o_proj, linear_out.
_OUTPUT = re.compile(
    r"(?:^|[/._])(?:w_?)?(?:o|out|output)(?:_?(?:proj\w*|dense|linear|layer|conv\w*))?$", re.I
)


def refuse_layers_beside(leaves: Sequence[Leaf], branches: Sequence[Branch], rules: Rules) -> None:
    """Refuses a layer that is in no row with the others: a shortcut, a gate, or an embedding's.

    A shortcut takes what the branch takes and gives what the branch gives, and does not fit to its
    neighbour; or it is what a branch of a stage's first block has more than the others.
    """
    taps = {tuple(map(_taps, row)) for row in rows(leaves)}
    for row in rows(leaves):
        name = branches[row[0].branches[0] - 1].name
        names = _names(row, rules)
        if set(names) & set(rules.order):
            continue
        _refuse_attention(names, name)
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
        _refuse_condition(row, name)
        for place, beside in enumerate(row):
            rest = [leaf for leaf in row if leaf is not beside]
            # Two layers that do not fit may be two halves of something else.
            if len(rest) < 2:
                continue
            if (_widths(rest[0])[0], _widths(rest[-1])[1]) != _widths(beside):
                continue
            near = itertools.pairwise(row[max(place - 1, 0) : place + 2])
            own = tuple(map(_taps, rest))
            signs = (
                any(_widths(given)[1] != _widths(taken)[0] for given, taken in near),
                max(own) > 1 and own in taps,
            )
            # With taps, or between two others, it may be a gate, of which every branch has one.
            between = 0 < place < len(row) - 1
            if all(signs) if _taps(beside) > 1 or between else any(signs):
                raise ValueError(
                    f"leaf {beside.path!r} {list(beside.shape)} takes what residual branch "
                    f"{name!r} takes and gives what it gives, as a shortcut beside the other "
                    f"{len(rest)} does; expected rules.branch not to match it and rules.shortcut "
                    "to do, or rules.order to name all layers if it is one of the branch."
                )


def _refuse_condition(row: Sequence[Leaf], branch: str) -> None:
    """Refuses a dense layer among convolutions that takes what none of them gives."""
    widths = {_widths(row[0])[0], *(_widths(leaf)[1] for leaf in row)}
    for leaf in row:
        taken = _widths(leaf)[0]
        # A gate halves what it takes; a convolution in space has two more axes.
        if _is_dense(leaf) and not all(map(_is_dense, row)) and not {taken, 2 * taken} & widths:
            raise ValueError(
                f"leaf {leaf.path!r} {list(leaf.shape)} takes {taken} channels, which no layer of "
                f"residual branch {branch!r} gives, as an embedding of the time or of a condition "
                "does, which is added to the branch; expected rules.branch not to match it and "
                "rules.keep or rules.stem to do, or rules.order to name all layers if it is one "
                "of them."
            )


def _is_dense(leaf: Leaf) -> bool:
    return not set(leaf.axes) & set("DHW")


def _refuse_attention(names: Sequence[str], branch: str) -> None:
    """Refuses query, key and value, or one weight of them, among the layers of another branch."""
    found = names_of_attention(names)
    if found and len(names) > len(found) + 1:
        raise ValueError(
            f"residual branch {branch!r} has {len(names)} layers, {', '.join(names)}, and "
            f"{', '.join(found)} among them are an attention's, which with its output is a branch "
            "of its own; expected a group of rules.branch that tells it from the others, or "
            "rules.order to name all layers if they are one branch."
        )


def _taps(leaf: Leaf) -> int:
    return leaf.length("DHW")


def refuse_missing_skips(leaves: Sequence[Leaf], branches: Sequence[Branch], rules: Rules) -> None:
    """Refuses blocks without a skip path, of a MobileNet or EfficientNet and of a DenseNet.

    Nothing passes a block that changes the width once its last layer is 0. (Other blocks may pad or
    pool on the skip path.) What a DenseNet's layers give is put beside what they take, not added.
    """
    shortcuts = {
        _widths(leaf) for leaf in leaves if leaf.role is Role.SHORTCUT and leaf.weight and leaf.axes
    }
    needed, in_order = "shortcut" not in rules.optional, rows(leaves)
    ends = [(_widths(row[0])[0], _widths(row[-1])[1]) for row in in_order]
    taken_next = [taken for taken, _ in ends[1:]]
    for row, (taken, given), following in itertools.zip_longest(in_order, ends, taken_next):
        if taken == given or (taken, given) in shortcuts:
            continue
        name = branches[row[0].branches[0] - 1].name
        if following == taken + given:
            raise ValueError(
                f"branch {name!r} takes {taken} channels, gives {given}, and the next one takes "
                f"{following}, as where outputs are put beside inputs (DenseNet); expected "
                "branches whose outputs are added, or rules.shortcut to name a layer beside them."
            )
        told = _is_told(_names(row, rules), rules)
        inner = taken in (_widths(leaf)[1] for leaf in row)
        # A gate at the end of the branch halves what it takes.
        if following == taken and inner and given != 2 * taken and not told:
            raise ValueError(
                f"branch {name!r} takes {taken} channels, its last layer {row[-1].path!r} "
                f"{list(row[-1].shape)} gives {given}, and the next branch takes {following} "
                "again, as where that layer feeds the output of the network beside the branch "
                "(WaveNet); expected rules.branch not to match it and rules.keep to do, or "
                "rules.order to name the layers from the first to the last."
            )
        if any(leaf.groups == leaf.length("O") > 1 for leaf in row) and needed:
            raise ValueError(
                f"branch {name!r} has a depthwise kernel, takes "
                f"{taken} channels, gives {given} and has no shortcut beside it, as a block "
                "without a skip path; expected rules.branch not to match it and rules.stem to do, "
                "or 'shortcut' in rules.optional if its skip path has no weight."
            )


def _widths(leaf: Leaf) -> tuple[int, int]:
    """The channels that a layer takes and gives."""
    return leaf.length("I") * leaf.groups, leaf.length("O")


def refuse_order_of_names(leaves: Sequence[Leaf], branches: Sequence[Branch], rules: Rules) -> None:
    """Refuses an order by names, as of ``down`` before ``up``, in which a branch fits nowhere.

    An end of the branch is of no width of the network around it, and other layers have the width
    that it should have. Or its layers fit to each other, but not so. (Flax numbers modules as they
    are constructed: in ``Dense(d)(gelu(Dense(h)(x)))`` the last layer is ``Dense_0``.) Or they are
    the layers of two branches.
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
    in_order = rows(leaves)
    kinds = [tuple(map(_widths, row)) for row in in_order]
    before, after = ({kind: set[int]() for kind in kinds} for _ in range(2))
    for one, two in itertools.pairwise(kinds):
        if one != two:
            after[one].add(_ends(two)[0])
            before[two].add(_ends(one)[1])

    # Branches of the same widths say the same, right or wrong.
    for kind, row in dict(zip(reversed(kinds), reversed(in_order), strict=True)).items():
        names = _names(row, rules)
        if _is_told(names, rules):
            continue
        outputs = [leaf for leaf, each in zip(row, names, strict=True) if _OUTPUT.search(each)]
        if outputs and row[-1] not in outputs and _by_text(names, rules):
            raise ValueError(
                f"leaf {outputs[0].path!r} is the last layer of its branch by its name, and in the "
                f"order of the names, {', '.join(names)}, it is not; expected rules.order to name "
                "them from the first to the last, as init.rules.ordered finds them."
            )
        (taken, given), others = _ends(kind), _other_ends(kind)
        taken_there, given_there = before[kind] or around, after[kind] or around
        equal, fits = {first for first, last in others if first == last}, _fit(kind)
        name = branches[row[0].branches[0] - 1].name
        wider = others & set(itertools.product(taken_there, given_there))
        if (equal and not (fits and taken == given)) or (wider and not fits):
            raise ValueError(
                "in the order of their names, "
                f"{', '.join(leaf.path for leaf in row)}, the layers of residual branch "
                f"{name!r} do not take what those before "
                "them give, and in another one they do; expected rules.order to name them from "
                "the first to the last, as init.rules.ordered finds them."
            )
        there = taken_there | given_there
        if taken_there and given_there:
            there = taken_there & given_there
        if not {taken, given} & (taken_there | given_there | around) and there & equal:
            raise ValueError(
                "by the names of its layers residual branch "
                f"{name!r} begins with {row[0].path!r}, "
                f"which takes {taken} channels, and ends with {row[-1].path!r}, which gives "
                f"{given}, and neither is a width of the network around it; expected "
                "rules.order to name the layers from the first to the last, as init.rules.ordered "
                "finds them."
            )
        _refuse_two(row, name)


def _refuse_two(row: Sequence[Leaf], branch: str) -> None:
    """Refuses two branches in one: both give what they take, and one does not take the other's."""
    widths = [_widths(leaf) for leaf in row]
    for place in range(1, len(row)):
        (taken, given), (begins, ends) = _ends(widths[:place]), _ends(widths[place:])
        fitting = {taken, *(width for _, width in widths[:place])}
        if taken == given and begins == ends and begins not in fitting:
            raise ValueError(
                f"residual branch {branch!r} has {len(row)} layers, of which the first {place} "
                f"take and give {given} channels, and those from {row[place].path!r} "
                f"{list(row[place].shape)} on {ends}, as two branches do; expected a group of "
                "rules.branch that tells them apart, or rules.order to name all layers if they "
                "are one branch."
            )


def _ends(kind: Sequence[tuple[int, int]]) -> tuple[int, int]:
    return kind[0][0], kind[-1][1]


def _other_ends(kind: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """What a branch takes and gives in each order in which its layers fit to each other."""
    orders = itertools.permutations(kind) if len(kind) < 8 else ()
    return {_ends(order) for order in orders if _fit(order)}


def _fit(widths: Sequence[tuple[int, int]]) -> bool:
    """Whether layers take what the branch or an earlier one does, and a later one takes theirs.

    (A gate takes what the branch takes, and is multiplied by what the first layer gives.)
    """
    given = [width for _, width in widths]
    taken = [width for width, _ in widths]
    return all(
        taken[j] in {taken[0], *given[:j]} and (given[j] in taken[j + 1 :] or j == len(widths) - 1)
        for j in range(len(widths))
    )


def _names(row: Sequence[Leaf], rules: Rules) -> list[str]:
    return [search(rules.branch, leaf.path)[-1] for leaf in row]


def _is_told(names: Sequence[str], rules: Rules) -> bool:
    """Whether ``rules.order`` or the names of an attention order the layers of a branch."""
    return bool(set(names) & set(rules.order)) or attention_order(names) is not None


def _by_text(names: Sequence[str], rules: Rules) -> bool:
    """Whether the layers of a branch are in the order of the letters of their names."""
    return not _is_told(names, rules) and len({re.sub(r"\d+", "", name) for name in names}) > 1


def orders_by_text(leaves: Sequence[Leaf], rules: Rules) -> list[tuple[str, ...]]:
    """The names of layers, in order, of each kind of branch in which their letters alone order."""
    names = [tuple(_names(row, rules)) for row in rows(leaves)]
    return list(dict.fromkeys(each for each in names if _by_text(each, rules)))


def refuse_unused_order(leaves: Sequence[Leaf], rules: Rules) -> None:
    """Refuses texts of ``rules.order`` that no group of ``rules.branch`` finds, or two of them."""
    places: dict[str, set[int]] = {}
    for leaf in leaves:
        if leaf.role is Role.BRANCH:
            for place, text in enumerate(search(rules.branch, leaf.path), start=1):
                places.setdefault(text, set()).add(place)
    found = set(places)
    unused = [name for name in rules.order if name not in found]
    if unused:
        raise ValueError(
            f"rules.order names {unused[0]!r}, which no group of rules.branch={rules.branch!r} "
            f"finds; expected texts that they find, such as {sorted(found)[:4]}."
        )
    for name in rules.order:
        if len(places[name]) > 1:
            raise ValueError(
                f"rules.order names {name!r}, which groups {' and '.join(map(str, places[name]))} "
                f"of rules.branch={rules.branch!r} find, so that it would order both; expected a "
                r"group that tells them apart, as (Dense_\d+) in place of Dense_(\d+)."
            )


__all__ = [
    "orders_by_text", "refuse_layers_beside", "refuse_missing_skips", "refuse_order_of_names",
    "refuse_unused_order",
]  # fmt: skip
