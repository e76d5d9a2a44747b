"""What a vector is by its name: added, multiplied by, of a norm; and those taken for biases."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nf_resnets.roles.leaf import LAYER_ROLES, Leaf

NORM = re.compile(
    r"(?<!weight)(?<!weight_)(?<!spectral)(?<!spectral_)norm|(?:^|[/._])(?:bn|ln|gn)(?=\d|[/._]|$)",
    re.IGNORECASE,
)
"""Names of norms and their like: BatchNorm_0, batchnorm, layer_norm, norm1, bn1, ln_2."""

_ADDED = re.compile(
    r"bias|offset|shift|center|mean|var|num_batches|beta|vector|(?:^|_)b\d*$", re.IGNORECASE
)
_FACTOR = re.compile(
    r"scale|gain|gamma|alpha|multiplier|weight|rezero|gate|factor|coef|lambda|(?:^|_)(?:[gsw]|ls)\d*$",
    re.IGNORECASE,
)
# That of a PReLU is no bias either; at 0 it blocks nothing.
_SLOPE = re.compile("slope", re.IGNORECASE)


def refuse_factors(leaves: Sequence[Leaf]) -> None:
    """Refuses factors among the vectors of layers, which are taken for bias vectors and become 0.

    The scale of a norm behind a head's layer, of 0 like that layer, would never get a gradient.
    """
    for leaf in leaves:
        named = is_named_factor(leaf) or _SLOPE.search(last_name(leaf))
        if leaf.role in LAYER_ROLES and not leaf.weight and named:
            raise ValueError(
                f"leaf {leaf.path!r} {list(leaf.shape)} is matched by rules.{leaf.role.value}, "
                "whose vectors are bias vectors, and is a factor by its name; expected "
                f"rules.{leaf.role.value} not to match it, and rules.norm, rules.multiplier, "
                "rules.alpha or rules.keep to do."
            )


def is_gain(leaf: Leaf) -> bool:
    """Whether a leaf is called the gain of a standardised weight."""
    return "gain" in last_name(leaf)


def is_added(leaf: Leaf) -> bool:
    """Whether a leaf's name says that it is added, or a statistic, and not multiplied by."""
    return _ADDED.search(last_name(leaf)) is not None


def is_named_factor(leaf: Leaf) -> bool:
    """Whether a leaf's own name says that it is multiplied by."""
    return _FACTOR.search(last_name(leaf)) is not None and not is_added(leaf)


def last_name(leaf: Leaf) -> str:
    """The last key of a leaf's path; NNX adds a key to a Param's path."""
    return re.split(r"[/.]", re.sub(r"/(?:raw_)?value$", "", leaf.path))[-1]


__all__ = ["NORM", "is_added", "is_gain", "is_named_factor", "last_name", "refuse_factors"]
