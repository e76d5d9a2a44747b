"""Norms that were left in a branch of a network that is to have none."""

from __future__ import annotations

import math
import re

from nf_resnets.roles import Leaf, Role, RoleMap, Rules
from nf_resnets.roles.location import Location
from nf_resnets.roles.vectors import NORM, is_added, is_gain, is_named_factor, last_name
from nf_resnets.schemes import Scheme

_STATISTIC = re.compile(r"mean|var|num_batches", re.IGNORECASE)
# A weight that is divided by its length, or that length: Flax's two in Linen and NNX, PyTorch's.
_NORMALIZED = re.compile(
    r"weight_?norm|spectral_?norm|layer_instance/|(?:^|[/._])(?:weight_g|original0)$", re.I
)
_LEFT = (
    "leaf {path!r} {shape} is that of a norm in residual branch{block}, and {title} is for "
    "branches without normalisation; expected the norm to be taken out of the network, or "
    "to be named in rules.norm if it is meant."
)
_UNNAMED = (
    "no rule says what the vector {path!r} {shape} in residual branch{block} is, and it may be a "
    "norm's scale, where {title} is for branches without normalisation; name it in rules.norm if a "
    "norm is meant there, or else in the rule of its role or in rules.keep."
)


def refuse_norms(scheme: Scheme, role_map: RoleMap) -> None:
    """Refuses a norm in a residual block, unless ``rules.norm`` names it.

    A norm is known by its name, or as a vector that no rule names and that is called neither a bias
    nor a standardised weight's gain. (A norm without parameters leaves no trace in a tree.) In a
    tree without modules for its blocks, norms that are numbered as the branches are theirs.

    Normalised weights are refused by the schemes that scale weights, whatever the rules say.

    Args:
      scheme: whose network it is.
      role_map: the roles of the tree.

    Raises:
      ValueError: if there is one.
    """
    scales_weights = not (scheme.anatomy.alpha or scheme.anatomy.standardized)
    if role_map.rules is None:
        return _refuse_seen(scheme, role_map, scales_weights=scales_weights)
    if scales_weights:
        _refuse_normalized_weights(scheme, role_map.rules, role_map)
    rules, ours = role_map.rules, role_map.is_ours
    kept = re.compile(rules.keep or "(?!)")
    norms, unnamed, outside = [], [], []
    for leaf, location in zip(role_map.leaves, role_map.locations, strict=True):
        # Where norms are meant, so are their running statistics, which rules do not name.
        if rules.norm is not None and not ours and _STATISTIC.search(last_name(leaf)):
            continue
        if leaf.role is not Role.KEEP and not (leaf.role is Role.NORM and ours):
            continue
        if not location.inside and not ours and not kept.search(leaf.path):
            outside.append(leaf)
        longer_axes = sum(length > 1 for length in leaf.own_shape)
        if not location.inside or is_gain(leaf) or longer_axes > 1:
            continue
        if NORM.search(location.name):
            norms.append((leaf, location))
        elif longer_axes == 1 and not is_added(leaf) and not kept.search(leaf.path):
            unnamed.append((leaf, location))
    for found, sentence in ((norms, _LEFT), (unnamed, _UNNAMED)):
        if found:
            # Of a norm's leaves the scale says most.
            leaf, location = min(found, key=lambda item: is_added(item[0]))
            numbers = location.branches and location.branches[0]
            block = f" {role_map.branches[numbers[0] - 1].name!r}" if numbers else ""
            shown = {"path": leaf.path, "shape": list(leaf.shape)}
            raise ValueError(sentence.format(**shown, block=block, title=scheme.title))
    _refuse_numbered(scheme, role_map, outside)


def _refuse_seen(scheme: Scheme, role_map: RoleMap, *, scales_weights: bool) -> None:
    """Refuses a branch that normalises, as the network's computation shows."""
    for branch in role_map.branches:
        if branch.normalized == "data":
            raise ValueError(
                f"residual branch {branch.name!r} contains a norm, and {scheme.title} is for "
                "branches without normalisation; expected the norm to be taken out of the network, "
                "or its leaves to be matched by keep= if it is meant."
            )
        if branch.normalized == "weights" and scales_weights:
            raise ValueError(
                f"residual branch {branch.name!r} normalises its weights, and {scheme.title} "
                "scales weights, without effect there; expected plain weights, or a scheme that "
                "leaves them as they are, such as 'skipinit'."
            )


def _refuse_normalized_weights(scheme: Scheme, rules: Rules, role_map: RoleMap) -> None:
    """Refuses weights whose length is a parameter of its own, or that are standardised."""
    kept = re.compile(rules.keep or "(?!)")
    for leaf, location in zip(role_map.leaves, role_map.locations, strict=True):
        gain = is_gain(leaf) and math.prod(leaf.own_shape) > 1 and not kept.search(leaf.path)
        gain = gain and leaf.role in (Role.NORM, Role.KEEP)
        length = last_name(leaf) == "g" and len(leaf.own_shape) > 1  # Equinox's
        if location.inside and (gain or length or _NORMALIZED.search(leaf.path)):
            raise ValueError(
                f"leaf {leaf.path!r} {list(leaf.shape)} belongs to a normalised weight by its "
                f"name, and {scheme.title} scales weights, without effect there; expected "
                "plain weights, or a scheme that leaves them as they are, such as 'skipinit'."
            )


def _refuse_numbered(scheme: Scheme, role_map: RoleMap, outside: list[Leaf]) -> None:
    """Refuses norms outside the blocks of which there are as many of one name as branches."""
    named: dict[str, dict[str, Leaf]] = {}
    for leaf in outside:
        if not is_gain(leaf) and NORM.search(leaf.path):
            module = re.sub(r"[/.](?!\d+$)\w+$", "", re.sub(r"/(?:raw_)?value$", "", leaf.path))
            named.setdefault(re.sub(r"\d+", "", module), {}).setdefault(module, leaf)
    for norms in named.values():
        if len(norms) >= max(role_map.num_branches, 2):
            leaf = next(iter(norms.values()))
            raise ValueError(
                f"leaf {leaf.path!r} {list(leaf.shape)} is that of one of {len(norms)} norms, for "
                f"{role_map.num_branches} residual branches, and {scheme.title} is for branches "
                "without normalisation; expected the norms to be taken out of the network, to be "
                "named in rules.norm if they are meant, or in rules.keep if they are not in the "
                "branches."
            )


def is_factor(leaf: Leaf, location: Location) -> bool:
    """Whether a leaf's name, or that of its norm, says that it is multiplied by."""
    of_norm = NORM.search(location.name) is not None and not is_added(leaf)
    return of_norm or is_named_factor(leaf)


__all__ = ["is_factor", "refuse_norms"]
