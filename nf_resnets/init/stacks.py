"""Encoder and decoder of a Transformer's tree: which branch is whose, how many layers each has."""

from __future__ import annotations

import re
from typing import NamedTuple

from nf_resnets import roles
from nf_resnets.roles import Leaf, Role, RoleMap
from nf_resnets.roles.rules import compiled

DECODER = r"(?:^|/)decoder"
"""Where the paths of the decoder's branches and embeddings are, by default."""

# The layers of a branch that depth scales, by how many it has: of attention's four, in the order
# query, key, value, out, the last two.
_SCALED = {4: (3, 4), 2: (1, 2)}


class Stacks(NamedTuple):
    """The stacks of layers of a Transformer.

    Attributes:
      decoder: the expression that finds the decoder's paths.
      layers: ``N`` of the encoder (``False``) and of the decoder (``True``), where they are.
    """

    decoder: re.Pattern[str]
    layers: dict[bool, int]

    def in_decoder(self, leaf: Leaf) -> bool:
        """Whether a leaf is the decoder's."""
        return bool(self.decoder.search(leaf.path))


def is_value_path(leaf: Leaf) -> bool:
    """Whether a leaf is a value, an out or a feed-forward matrix, and not a query or key."""
    return leaf.role is Role.BRANCH and leaf.weight and leaf.layer in _SCALED[leaf.m]


def find_stacks(title: str, role_map: RoleMap, decoder: str) -> Stacks:
    """The stacks of a Transformer, whose branches are attention (m = 4) and feed-forward (m = 2).

    Args:
      title: how errors call the scheme that asks.
      role_map: the roles of the tree.
      decoder: a regular expression, found in the decoder's paths.

    Raises:
      ValueError: if there is no branch, a branch has neither 2 nor 4 layers, a convolution of
        several taps, or two of which the second does not take what the first gives, encoder or
        decoder has not the branches of one, or ``decoder`` is no regular expression or matches
        nothing.
    """
    pattern = compiled("decoder", decoder)
    _refuse_other_branches(title, role_map)
    _refuse_convolutions(title, role_map)
    _refuse_fused(title, role_map)
    return Stacks(pattern, _count_layers(role_map, pattern))


def _refuse_other_branches(title: str, role_map: RoleMap) -> None:
    if not role_map.branches:
        raise ValueError("no residual branch found in params; expected rules.branch to name them.")
    for branch in role_map.branches:
        if branch.m not in _SCALED:
            raise ValueError(
                f"residual branch {branch.name!r} has m = {branch.m} layers; {title} knows "
                "attention with 4 (query, key, value, out) and feed-forward with 2."
            )


def _refuse_convolutions(title: str, role_map: RoleMap) -> None:
    for leaf in role_map.leaves:
        if leaf.role is Role.BRANCH and leaf.axes and leaf.length("DHW") > 1:
            raise ValueError(
                f"leaf {leaf.path!r} {list(leaf.shape)} is a convolution in a residual branch; "
                f"{title} is for Transformers, whose branches are attention and feed-forward."
            )


def _refuse_fused(title: str, role_map: RoleMap) -> None:
    """Refuses two layers that are no feed-forward branch, such as a fused attention's."""
    layers: dict[tuple[int, ...], dict[int, Leaf]] = {}
    for leaf in role_map.leaves:
        if leaf.role is Role.BRANCH and leaf.weight and leaf.m == 2:
            layers.setdefault(leaf.branches, {})[leaf.layer] = leaf
    for pair in layers.values():
        (_, given), (taken, _) = roles.fans(pair[1]), roles.fans(pair[2])
        if given != taken:
            raise ValueError(
                f"leaf {pair[1].path!r} gives {given} channels and {pair[2].path!r}, the second "
                f"layer of its branch, takes {taken}; {title}, which scales value and not query "
                "and key, expected a feed-forward branch, or attention with 4 weights."
            )


def _count_layers(role_map: RoleMap, pattern: re.Pattern[str]) -> dict[bool, int]:
    """``N`` of each stack that there is, by its feed-forward branches."""
    layers, decoder = {}, pattern.pattern
    for side in (False, True):
        kinds = [
            branch.m for branch in role_map.branches if bool(pattern.search(branch.name)) == side
        ]
        if not kinds and not (side and decoder != DECODER):
            continue
        attention, feed_forward = kinds.count(4), kinds.count(2)
        found = f"branches in which decoder={decoder!r} {'matches' if side else 'does not match'}"
        if not feed_forward:
            raise ValueError(f"no feed-forward branch found among the {len(kinds)} {found}.")
        if attention not in (0, feed_forward, 2 * feed_forward if side else 0):
            raise ValueError(
                f"{attention} of attention and {feed_forward} feed-forward found among the {found};"
                f" expected {'one or two' if side else 'one'} of attention for each feed-forward."
            )
        layers[side] = feed_forward
    return layers


__all__ = ["DECODER", "Stacks", "find_stacks", "is_value_path"]
