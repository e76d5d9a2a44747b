"""How many groups a convolution splits its channels into, which its shape does not say."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from nf_resnets.roles.branches import rows
from nf_resnets.roles.leaf import Leaf, Role
from nf_resnets.roles.rules import Rules


def with_groups(leaves: Sequence[Leaf], rules: Rules) -> list[Leaf]:
    """Gives the kernels of depthwise and grouped convolutions their ``groups``.

    A kernel of one input channel is depthwise, in a branch or shortcut; in the stem it may be that
    of grey images, too, and in the first block if its pointwise shortcut takes one channel. A
    kernel has groups if the layers of its branch before and after it have as many channels as it
    gives, and it takes a part of them. If this is as much as the branch takes, it may stand beside
    the layer before it, unless kernels of its shape have groups. ``rules.axes`` says what is
    otherwise.
    """
    stated = re.compile("|".join(f"(?:{pattern})" for pattern in dict(rules.axes)) or "(?!)")
    kernels = {
        leaf: leaf.length("I")
        for leaf in leaves
        if leaf.weight and leaf.axes and leaf.length("DHW") > 1 and not stated.search(leaf.path)
    }
    thin = [leaf for leaf, taken in kernels.items() if taken == 1]
    in_blocks = [leaf for leaf in thin if leaf.role in (Role.BRANCH, Role.SHORTCUT)]
    if any(_takes_grey_images(leaf) for leaf in leaves):
        in_blocks = [leaf for leaf in in_blocks if (*leaf.branches[:1], leaf.layer) != (1, 1)]
    of_stem = [leaf for leaf in thin if leaf.role is Role.STEM]
    if of_stem and not _image_kernels(leaves, kernels):
        of_stem = _without_grey_images(of_stem, in_blocks)
    groups = {leaf: leaf.length("O") for leaf in (*in_blocks, *of_stem)}
    ambiguous: dict[Leaf, int] = {}
    for row in rows(leaves):
        for before, leaf, after in zip(row, row[1:], row[2:], strict=False):
            given, taken = leaf.length("O"), leaf.length("I")
            whole = before.length("O") == given == after.length("I") and given % taken == 0
            if leaf in kernels and whole:
                found = ambiguous if taken == row[0].length("I") else groups
                found[leaf] = given // taken
    shapes = {leaf.own_shape for leaf in groups}
    groups |= {leaf: count for leaf, count in ambiguous.items() if leaf.own_shape in shapes}
    return [
        dataclasses.replace(leaf, groups=groups[leaf]) if leaf in groups else leaf
        for leaf in leaves
    ]


def _takes_grey_images(leaf: Leaf) -> bool:
    """Whether a leaf is a pointwise shortcut of one channel: its block takes the images."""
    known = leaf.role is Role.SHORTCUT and leaf.weight and leaf.axes
    return bool(known) and leaf.length("DHWI") == 1 < leaf.length("O")


def _image_kernels(leaves: Sequence[Leaf], kernels: Mapping[Leaf, int]) -> list[Leaf]:
    """Those that take several channels which no layer gives: those of images in colour."""
    weights = [leaf for leaf in leaves if leaf.weight and leaf.axes and leaf.role is not Role.HEAD]
    given = {1, *(leaf.length("O") for leaf in weights)}

    def square(leaf: Leaf) -> bool:  # a table of positions is not
        taps = {n for n, axis in zip(leaf.shape, leaf.axes, strict=True) if axis in "DHW"}
        return len(taps) == 1

    outside = (Role.STEM, Role.KEEP)
    return [
        leaf
        for leaf, taken in kernels.items()
        if leaf.role in outside and taken not in given and square(leaf)
    ]


def _without_grey_images(thin: Sequence[Leaf], in_blocks: Sequence[Leaf]) -> list[Leaf]:
    """Those but the one that takes grey images: its name, but for numbers, is none of a block's."""
    names = {re.sub(r"\d+", "", leaf.path) for leaf in in_blocks}
    other = [leaf for leaf in thin if re.sub(r"\d+", "", leaf.path) not in names]
    if len(other) > 1:
        raise ValueError(
            f"leaves {other[0].path!r} {list(other[0].shape)} and {other[1].path!r} "
            f"{list(other[1].shape)} take one channel each, and one may be for grey images and the "
            "other depthwise; expected rules.axes to say which are depthwise, as in "
            "{r'depthwise/kernel': 'HWIN'}."
        )
    return [leaf for leaf in thin if leaf not in other]


__all__ = ["with_groups"]
