"""What a scheme's network must contain and a tree does not show.

Every part is named once, in the scheme's :class:`~nf_resnets.schemes.Anatomy`, and what training
comes to without it in the scheme's ``needs``. Here a tree is held against both.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np

from nf_resnets.roles import Role, RoleMap
from nf_resnets.schemes import Need, Scheme, SchemeWarning

# What a tree shows of a network: what to call it, and its role.
_SHOWN = {
    "scalar_biases": ("scalar biases", Role.SCALAR_BIAS),
    "channel_biases": ("channel biases", Role.CHANNEL_BIAS),
    "multiplier": ("multipliers", Role.MULTIPLIER),
    "alpha": ("alphas", Role.ALPHA),
    "conv_biases": ("bias vectors of the branches' layers", Role.BRANCH),
    "standardized": ("gains of standardised weights", Role.NORM),
    "norm": ("norms", Role.NORM),
}
_CONSTANTS = ("residual", "identity", "beta")  # of which a tree shows nothing
_SEVERITY = ("fails", "worse", "differs")


class Missing(NamedTuple):
    """A part that a scheme expects, and a sentence about it."""

    need: Need
    sentence: str


def check_parts(scheme: Scheme, role_map: RoleMap) -> None:
    """Refuses a network that would not train under the scheme, and warns of one that lacks a part.

    A norm in a branch is refused, and the lack of a part without which training fails.
    """
    if scheme.norm_free:
        _refuse_norms(scheme, role_map)
    for need, sentence in missing_parts(scheme, role_map):
        if need.without == "fails":
            raise ValueError(sentence)
        if need.without == "worse":
            warnings.warn(f"{scheme.title}: {sentence}", SchemeWarning, stacklevel=4)


def _refuse_norms(scheme: Scheme, role_map: RoleMap) -> None:
    """Refuses a branch that normalises, as the network's computation or the rules show."""
    normalized: dict[int, str | None] = {b.k: b.normalized for b in role_map.branches}
    leaves_weights = scheme.anatomy.alpha or scheme.anatomy.standardized
    if role_map.rules is not None:
        for leaf, ks in zip(role_map.leaves, role_map.beside, strict=True):
            if leaf.role is Role.NORM:
                # Rules of a user's own do not say whether data or weights are normalised.
                of_weights = leaf.path.endswith("/gain") if role_map.is_ours else leaves_weights
                normalized |= dict.fromkeys(ks, "weights" if of_weights else "data")
    for branch in role_map.branches:
        if normalized[branch.k] == "data":
            raise ValueError(
                f"residual branch {branch.name!r} contains a norm, and {scheme.title} is for "
                "branches without normalisation; expected the norm to be taken out of the network, "
                "or its leaves to be matched by keep= if it is meant."
            )
        if normalized[branch.k] == "weights" and not leaves_weights:
            raise ValueError(
                f"residual branch {branch.name!r} normalises its weights, and {scheme.title} "
                "scales weights, without effect there; expected plain weights, or a scheme that "
                "leaves them as they are, such as 'skipinit'."
            )


def missing_parts(scheme: Scheme, role_map: RoleMap) -> list[Missing]:
    """What the scheme expects of a network and the tree does not show, what fails first."""
    needs = {need.part: need for need in scheme.needs}
    depth = role_map.num_branches
    missing = []
    for part, (words, role) in _SHOWN.items():
        in_each = part not in ("norm", "standardized")  # branch
        if not getattr(scheme.anatomy, part) or (not depth and part in ("multiplier", "alpha")):
            continue
        count = _count(part, role, role_map)
        if count < (max(depth, 1) if in_each else 1):
            branches = f" for {depth} residual branches" if in_each and depth else ""
            need = needs.get(part, Need(part))
            missing.append(
                Missing(need, f"{count or 'no'} {words} found in params{branches}; {need.why}.")
            )
    # Our networks have the constants of their scheme, and the other parts tell whose they are. A
    # multiplier may be left out to see what it is for.
    is_of_scheme = role_map.is_ours and {each.need.part for each in missing} <= {"multiplier"}
    names = [name for name in _CONSTANTS if not _is_seen(scheme, name, role_map)]
    if depth and names and not is_of_scheme:
        need = min(
            (needs.get(name, Need(name)) for name in names),
            key=lambda need: _SEVERITY.index(need.without),
        )
        by_hand = role_map.rules is not None and not role_map.is_ours
        if by_hand and need.without == "fails":
            need = Need(need.part, "worse")  # nothing but the network could show them
        sentence = (
            f"the constants of {scheme.title}'s forward pass, {' and '.join(names)}, were not "
            f"seen; expected a network that multiplies by schemes.get({scheme.name!r})"
            ".constants(depth), and network= to show it."
        )
        missing.append(Missing(need, sentence))
    return sorted(missing, key=lambda each: _SEVERITY.index(each.need.without))


def _count(part: str, role: Role, role_map: RoleMap) -> int:
    """How many branches have the part, if each has one; or how many leaves there are."""
    leaves = [leaf for leaf in role_map.leaves if leaf.role is role]
    if part == "conv_biases":
        return len({k for leaf in leaves if not leaf.weight for k in leaf.branches})
    if part == "standardized" and role_map.rules is None:
        return sum(branch.normalized == "weights" for branch in role_map.branches)
    if part in ("standardized", "norm") and role_map.is_ours:
        return sum(leaf.path.endswith("/gain") == (part == "standardized") for leaf in leaves)
    return sum(leaf.count for leaf in leaves)


def _is_seen(scheme: Scheme, name: str, role_map: RoleMap) -> bool:
    """Whether the scheme has no such constant, or the network was seen to multiply by it."""
    constant: Any = getattr(scheme.anatomy, name)
    if not callable(constant) and constant == 1:
        return True
    if name == "beta" or role_map.rules is not None:  # the former stands within the branch
        return False
    paths = [
        (branch.skip_scale if name == "identity" else branch.branch_scale, branch.sum_scale)
        for branch in role_map.branches
    ]
    try:
        expected = getattr(scheme.constants(role_map.num_branches), name)
    except ValueError:  # they depend on where the shape changes
        return False
    seen = np.prod(np.asarray(paths, float), axis=1)  # not a number where one was not read
    return bool(np.allclose(seen, expected, rtol=1e-5))  # a few roundings of float32


__all__ = ["Missing", "check_parts", "missing_parts"]
