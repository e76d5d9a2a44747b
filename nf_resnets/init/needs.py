"""What a tree lacks of what its scheme's network must contain, and what an initialiser says to it.

Every part is named once, in the scheme's :class:`~nf_resnets.schemes.Anatomy`, and what training
comes to without it in the scheme's ``needs``. Here a tree is held against both.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from typing import Any, Literal

import numpy as np

from nf_resnets.init.tree import is_concrete, zero_rows
from nf_resnets.roles import Leaf, Role, RoleMap
from nf_resnets.schemes import BranchConstants, Need, Scheme, SchemeWarning

# What a tree shows of a network: the part of the anatomy, what to call it, the rule that names it.
_SHOWN = {
    "scalar_biases": ("scalar biases", Role.SCALAR_BIAS),
    "channel_biases": ("channel biases", Role.CHANNEL_BIAS),
    "multiplier": ("multipliers", Role.MULTIPLIER),
    "alpha": ("alphas", Role.ALPHA),
    "conv_biases": ("bias vectors of the branches' layers", Role.BRANCH),
    "standardized": ("gains of standardised weights", Role.NORM),
    "norm": ("norms", Role.NORM),
}
# The parts that stand in every branch.
_IN_EACH = ("scalar_biases", "channel_biases", "multiplier", "alpha", "conv_biases")
# The constants of the forward pass, of which a tree shows nothing.
_CONSTANTS = {
    "residual": "residual on every branch",
    "identity": "identity on every skip path",
    "beta": "beta, by which every branch's input is divided",
}
_SEVERITY = ("fails", "worse", "differs")


@dataclasses.dataclass(frozen=True)
class MissingPart:
    """A part that a scheme expects and a tree does not show.

    Attributes:
      part: the field of :class:`~nf_resnets.schemes.Anatomy`.
      without: what becomes of training, as in :class:`~nf_resnets.schemes.Need`.
      sentence: what was found and what was expected.
    """

    part: str
    without: Literal["fails", "worse", "differs"]
    sentence: str


def check_parts(
    scheme: Scheme, role_map: RoleMap, *, constants: BranchConstants | None = None
) -> None:
    """Refuses a network that would not train under the scheme, and warns of one that lacks a part.

    A norm in a branch is refused, and the lack of a part without which training fails.
    ``constants`` are those of the forward pass, if they were given.
    """
    if scheme.norm_free:
        _refuse_norms(scheme, role_map)
        _warn_of_vectors(scheme, role_map)
    for missing in missing_parts(scheme, role_map, constants=constants):
        if missing.without == "fails":
            raise ValueError(missing.sentence)
        if missing.without == "worse":
            warnings.warn(f"{scheme.title}: {missing.sentence}", SchemeWarning, stacklevel=3)


def _refuse_norms(scheme: Scheme, role_map: RoleMap) -> None:
    """Refuses a branch that normalises, as the network's computation or our names show."""
    scales_weights = not (scheme.anatomy.alpha or scheme.anatomy.standardized)
    normalized = {branch.k: branch.normalized for branch in role_map.branches}
    if role_map.is_ours:
        normalized |= {
            k: "weights" if _is_gain(leaf) else "data"
            for leaf, ks in zip(role_map.leaves, role_map.beside, strict=True)
            for k in ks
            if leaf.role is Role.NORM
        }
    for branch in role_map.branches:
        if normalized[branch.k] == "data":
            raise ValueError(
                f"residual branch {branch.name!r} contains a norm, and {scheme.title} is for "
                "branches without normalisation; expected the norm to be taken out of the network, "
                "or its leaves to be matched by keep= if it is meant."
            )
        if normalized[branch.k] == "weights" and scales_weights:
            raise ValueError(
                f"residual branch {branch.name!r} normalises its weights, and {scheme.title} "
                "scales weights, without effect there; expected plain weights, or a scheme that "
                "leaves them as they are, such as 'skipinit'."
            )


def _warn_of_vectors(scheme: Scheme, role_map: RoleMap) -> None:
    """Warns of vectors in a branch that no rule names: biases that are not 0, norms left there."""
    if role_map.rules is None or role_map.is_ours:
        return
    kept = re.compile(role_map.rules.keep or "(?!)")
    unnamed = [
        (leaf, branches)
        for leaf, branches in zip(role_map.leaves, role_map.beside, strict=True)
        if branches and leaf.role is Role.KEEP and not leaf.weight
        if leaf.own_shape and not kept.search(leaf.path)
    ]
    if unnamed:
        leaf, branches = unnamed[0]
        others = f" and {len(unnamed) - 1} more" if unnamed[1:] else ""
        warnings.warn(
            f"{scheme.title}: no rule says what the vector {leaf.path!r} {list(leaf.shape)}"
            f"{others} in residual branch {role_map.branches[branches[0] - 1].name!r} is; expected "
            "rules.branch to match it if it is the bias vector of a layer, rules.norm or "
            "rules.keep if it is to stay.",
            SchemeWarning,
            stacklevel=4,
        )


def _is_gain(leaf: Leaf) -> bool:
    """Whether a leaf of our own networks is the gain of standardised weights."""
    return leaf.path.endswith("/gain")


def check_zeros(scheme: Scheme, role_map: RoleMap, params: Any) -> Any:
    """Returns the tree that an initialiser has made, if no branch of it ends in two zero factors.

    The product of two zeros has no gradient with regard to either: a last layer that Fixup sets to
    0 and a multiplier of 0, a scalar of 0 behind a layer of zeros. Of traced values nothing can be
    said, and :func:`nf_resnets.roles.verify` sees more.
    """
    first: dict[int, str] = {}
    for (leaf, value), branches in zip(role_map.items(params), role_map.beside, strict=True):
        last = leaf.role is Role.BRANCH and leaf.weight and leaf.layer == leaf.m
        ends = last or leaf.role in (Role.ALPHA, Role.MULTIPLIER)
        # A scalar beside several branches belongs to one of them.
        if not ends or not is_concrete(value) or leaf.count != len(branches):
            continue
        zero = zero_rows(value, stacked=leaf.stacked)
        for k in (k for k, is_zero in zip(branches, zero, strict=True) if is_zero):
            if k in first:
                raise ValueError(
                    f"leaves {first[k]!r} and {leaf.path!r} of residual branch "
                    f"{role_map.branches[k - 1].name!r} are both zero after {scheme.title}, so "
                    "that neither ever gets a gradient; expected one zero factor in a branch at "
                    "most."
                )
            first[k] = leaf.path
    return params


def missing_parts(
    scheme: Scheme, role_map: RoleMap, *, constants: BranchConstants | None = None
) -> tuple[MissingPart, ...]:
    """What the scheme expects of a network and the tree does not show, what fails first."""
    needs = {need.part: need for need in scheme.needs}
    depth = role_map.num_branches
    found = []
    for part, (words, role) in _SHOWN.items():
        if not getattr(scheme.anatomy, part) or (not depth and part in ("multiplier", "alpha")):
            continue
        count, expected = _count(part, role_map), max(depth, 1) if part in _IN_EACH else 1
        if count >= expected:
            continue
        branches = f" for {depth} residual branches" if part in _IN_EACH and depth else ""
        need = needs.get(part, Need(part))
        sentence = (
            f"{count or 'no'} {words} found in params{branches} (rules.{role.value} names them); "
            f"{need.why}."
        )
        found.append(MissingPart(part, need.without, sentence))
    # A multiplier may be left out to see what it is for; the other parts tell our networks apart.
    ours = role_map.is_ours and not {missing.part for missing in found} - {"multiplier"}
    names = [name for name in _CONSTANTS if _is_set(getattr(scheme.anatomy, name))]
    if role_map.rules is None and depth:
        names = [name for name in names if not _is_seen(scheme, name, role_map)]
    if constants is not None:
        _check_constants(scheme, depth, constants)
    elif depth and names and not ours:
        fails = any(needs.get(name, Need(name)).without == "fails" for name in names)
        sentence = _unseen(scheme, names, role_map, fails=fails)
        found.append(MissingPart(names[0], "fails" if fails else "differs", sentence))
    return tuple(sorted(found, key=lambda missing: _SEVERITY.index(missing.without)))


def _count(part: str, role_map: RoleMap) -> int:
    """How many branches have the part, if each has one; or how many leaves there are."""
    leaves = [leaf for leaf in role_map.leaves if leaf.role is _SHOWN[part][1]]
    if part == "conv_biases":
        return len({k for leaf in leaves if not leaf.weight for k in leaf.branches})
    if part == "standardized" and role_map.rules is None:
        return sum(branch.normalized == "weights" for branch in role_map.branches)
    if part in ("standardized", "norm") and role_map.is_ours:
        return sum(_is_gain(leaf) == (part == "standardized") for leaf in leaves)
    return sum(leaf.count for leaf in leaves)


def _is_set(constant: Any) -> bool:
    return callable(constant) or constant != 1


def _is_seen(scheme: Scheme, name: str, role_map: RoleMap) -> bool:
    """Whether the network was seen to multiply by a constant of the scheme's."""
    if name == "beta":  # stands within the branch
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


def _unseen(scheme: Scheme, names: list[str], role_map: RoleMap, *, fails: bool) -> str:
    """What to say of constants that the tree cannot show."""
    if role_map.is_ours:
        asked = f"expected a network made with scheme={scheme.name!r}, which has them"
    else:
        asked = (
            f"multiply by those of schemes.get({scheme.name!r}).constants(depth) in the network"
            + (", and say so by passing them as constants=" if fails else "")
        )
    found = "params cannot show" if role_map.rules else "the network was not seen to multiply by"
    return (
        f"{found} the constants of {scheme.title}'s forward pass, "
        f"{' and '.join(_CONSTANTS[name] for name in names)}; "
        f"{'without them the signal explodes' if fails else 'they belong to it'}: {asked}."
    )


def _check_constants(scheme: Scheme, depth: int, constants: Any) -> None:
    """Refuses constants that are not the scheme's."""
    expected = scheme.constants(depth)
    try:
        given = BranchConstants(*constants)
    except TypeError:
        raise ValueError(
            f"constants is a {type(constants).__name__}; expected those of "
            f"schemes.get({scheme.name!r}).constants({depth})."
        ) from None
    for name, one, other in zip(_CONSTANTS, given, expected, strict=True):
        values = np.ones(depth) if one is None else np.asarray(one, np.float64)
        if values.shape != (depth,):
            raise ValueError(
                f"constants.{name} has shape {list(values.shape)}; expected one for each of "
                f"{depth} residual branches."
            )
        # Whoever computes them in float32 is off by a few roundings.
        wrong = np.flatnonzero(~np.isclose(values, other, rtol=1e-5))
        if wrong.size:
            k = int(wrong[0])
            raise ValueError(
                f"constants.{name}[{k}]={values[k]:.6g} found; expected {other[k]:.6g}, by which "
                f"{scheme.title} multiplies in branch {k + 1} of {depth}."
            )


__all__ = ["MissingPart", "check_parts", "check_zeros", "missing_parts"]
