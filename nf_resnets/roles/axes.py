"""What each axis of a weight is by rules: an input, an output, a tap of a convolution, or a copy.

The axes are written as a word with one letter for each: ``HWIO`` is Flax's convolution, ``OI``
PyTorch's dense layer, ``IOO`` a dense layer to ``[heads, head_dim]``.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence

from nf_resnets.roles.leaf import LAYER_ROLES, Leaf, Role
from nf_resnets.roles.rules import OUR_RULES, Rules

# NNX adds a key to a Param's path.
_BIAS = re.compile(r"(?:^|[/_.])(?:bias|b)(?:/(?:raw_)?value)?$", re.I)
_LAST = re.compile(r"(?:^|[/_.])[^/_.]+(?:/(?:raw_)?value)?$")
_MOST_TAPS = 11


def with_axes(leaves: Sequence[Leaf], rules: Rules) -> list[Leaf]:
    """Tells bias vectors of several axes from weights, and gives weights the words of the rules."""
    most: dict[str, int] = {}
    for leaf in leaves:
        layer = _LAST.sub("", leaf.path)
        most[layer] = max(most.get(layer, 0), len(leaf.own_shape))

    def is_vector(leaf: Leaf) -> bool:
        own = leaf.own_shape
        smaller = len(own) < most[_LAST.sub("", leaf.path)]
        return is_bias(leaf.path) and (smaller or sum(n > 1 for n in own) <= 1)

    return [
        leaf
        if not leaf.weight
        else dataclasses.replace(leaf, weight=False)
        if is_vector(leaf)
        else dataclasses.replace(leaf, axes="N" * leaf.stacked + _word(leaf, rules))
        for leaf in leaves
    ]


def is_bias(path: str) -> bool:
    """Whether the last key of a path is ``bias`` or ``b``."""
    return _BIAS.search(path) is not None


def _word(leaf: Leaf, rules: Rules) -> str:
    """The axes of a weight but the stacked one."""
    own = leaf.own_shape
    for pattern, word in dict(rules.axes).items():
        if re.search(pattern, leaf.path):
            if len(word) != len(own):
                raise ValueError(
                    f"leaf {leaf.path!r} has {len(own)} axes and rules.axes says {word!r}; "
                    "expected a letter for each axis"
                    + (" but the stacked one." if leaf.stacked else ".")
                )
            return word
    taps = "D" * max(len(own) - 5, 0) + "DHW"[max(5 - len(own), 0) :]
    if rules.layout == "OIHW" and leaf.role is not Role.EMBEDDING:
        return "OI" + taps
    is_reversed = len(own) == 4 and own[2] == own[3] <= _MOST_TAPS < max(own[:2])
    if rules.layout is None and leaf.role in LAYER_ROLES and is_reversed:
        raise ValueError(
            f"leaf {leaf.path!r} {list(leaf.shape)} would have {own[0]} x {own[1]} taps in the "
            "layout [H, W, C_in, C_out]; expected rules.layout='OIHW' for [C_out, C_in, H, W], or "
            "'HWIO' if it is meant."
        )
    word = taps + "IO"
    is_thin = len(own) > 2 and own[-2] == 1 < min(math.prod(own[:-2]), own[-1])
    if leaf.role is Role.BRANCH and rules != OUR_RULES and is_thin:
        raise ValueError(
            f"leaf {leaf.path!r} {list(leaf.shape)} takes one channel; expected rules.axes to say "
            f"whether it is depthwise, {word.replace('O', 'N')!r}, or not, {word!r}."
        )
    return word


def refuse_biases(leaves: Sequence[Leaf]) -> None:
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


__all__ = ["is_bias", "refuse_biases", "with_axes"]
