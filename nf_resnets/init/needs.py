"""What a tree lacks of what its scheme's network must contain, and what an initialiser says to it.

Every part is named once, in the scheme's :class:`~nf_resnets.schemes.Anatomy`, and what training
comes to without it in the scheme's ``needs``. Here a tree is held against both.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from nf_resnets.init.blocks import places
from nf_resnets.init.norms import is_gain, refuse_norms
from nf_resnets.init.zeros import refuse_two_zeros
from nf_resnets.roles import Role, RoleMap
from nf_resnets.schemes import BranchConstants, Need, Scheme, SchemeWarning

CONSTANTS = ("residual", "identity", "beta")
"""The constants of the forward pass, of which a tree shows nothing."""

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


@dataclasses.dataclass(frozen=True)
class Lack:
    """A part that a scheme expects and a tree does not show.

    Attributes:
      part: the field of :class:`~nf_resnets.schemes.Anatomy`.
      without: what becomes of training, as in :class:`~nf_resnets.schemes.Need`.
      sentence: what was found and what was expected.
    """

    part: str
    without: Literal["fails", "worse", "differs"]
    sentence: str


_SILENT = contextvars.ContextVar("silent", default=False)


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Within it nothing is checked: for who asks what an initialiser does, not whether it may."""
    token = _SILENT.set(True)
    try:
        yield
    finally:
        _SILENT.reset(token)


def check(
    scheme: Scheme,
    role_map: RoleMap,
    *,
    constants: BranchConstants | None = None,
) -> None:
    """Refuses a network that would not train under the scheme, and warns of one that lacks a part.

    Args:
      scheme: whose initialiser asks.
      role_map: the roles of the tree.
      constants: those of the forward pass, if they were given.

    Raises:
      ValueError: if a norm was left in a branch, or a part is missing without which training fails.
    """
    if _SILENT.get():
        return
    if scheme.norm_free:
        refuse_norms(scheme, role_map, places(role_map))
    for lack in lacks(scheme, role_map, constants=constants):
        if lack.without == "fails":
            raise ValueError(lack.sentence)
        if lack.without == "worse":
            warnings.warn(f"{scheme.title}: {lack.sentence}", SchemeWarning, stacklevel=3)


def alive(scheme: Scheme, role_map: RoleMap, params: Any) -> Any:
    """Returns the tree that an initialiser has made, if no branch of it holds two zero factors.

    Raises:
      ValueError: if one does.
    """
    if not _SILENT.get():
        refuse_two_zeros(scheme, params, role_map, places(role_map))
    return params


def lacks(
    scheme: Scheme,
    role_map: RoleMap,
    *,
    constants: BranchConstants | None = None,
) -> tuple[Lack, ...]:
    """What the scheme expects of a network and the tree does not show, what fails first.

    Args:
      scheme: the scheme.
      role_map: the roles of the tree.
      constants: those of the forward pass, if they were given.

    Raises:
      ValueError: if the constants given are not the scheme's.
    """
    needs = {need.part: need for need in scheme.needs}
    depth = role_map.num_branches
    found = []
    for part, (words, role) in _SHOWN.items():
        if not getattr(scheme.anatomy, part) or (not depth and part in ("multiplier", "alpha")):
            continue
        count, expected = _count(part, role_map), max(depth, 1) if part in _IN_EACH else 1
        if count >= expected:
            continue
        number = f"no {words}" if not count else f"{count} {words}"
        branches = f" for {depth} residual branches" if part in _IN_EACH and depth else ""
        need = needs.get(part, Need(part))
        found.append(
            Lack(
                part,
                need.without,
                f"{number} found in params{branches} (rules.{role.value} names them); {need.why}.",
            )
        )
    missing = {lack.part for lack in found}
    if constants is not None:
        _check_constants(scheme, depth, constants)
    elif depth and not _is_ours(role_map, missing):
        names = [name for name in CONSTANTS if _is_set(scheme, name)]
        without = [needs.get(name, Need(name)).without for name in names]
        if names:
            least: Literal["fails", "differs"] = "fails" if "fails" in without else "differs"
            found.append(Lack(names[0], least, _unseen(scheme, names, least, role_map)))
    return tuple(sorted(found, key=lambda lack: ("fails", "worse", "differs").index(lack.without)))


def _count(part: str, role_map: RoleMap) -> int:
    """How many branches have the part, if each has one; or how many leaves there are."""
    role = _SHOWN[part][1]
    leaves = [leaf for leaf in role_map.leaves if leaf.role is role]
    if part == "conv_biases":
        return len({k for leaf in leaves if not leaf.weight for k in leaf.branches})
    if part in ("standardized", "norm"):
        return sum(is_gain(leaf) == (part == "standardized") for leaf in leaves)
    return sum(leaf.shape[0] if leaf.stacked else 1 for leaf in leaves)


def _is_set(scheme: Scheme, constant: str) -> bool:
    value = getattr(scheme.anatomy, constant)
    return callable(value) or value != 1


def _is_ours(role_map: RoleMap, missing: set[str]) -> bool:
    """Whether a tree is that of this library's network for the scheme, which has its constants."""
    if not role_map.is_ours:
        return False
    # A multiplier may be left out to see what it is for; the other parts tell the networks apart.
    return not missing - {"multiplier"}


def _unseen(scheme: Scheme, names: list[str], without: str, role_map: RoleMap) -> str:
    places = {
        "residual": "residual on every branch",
        "identity": "identity on every skip path",
        "beta": "beta, by which every branch's input is divided",
    }
    said = " and ".join(places[name] for name in names)
    result = "without them the signal explodes" if without == "fails" else "they belong to it"
    if role_map.is_ours:
        asked = f"expected a network made with scheme={scheme.name!r}, which has them"
    else:
        asked = (
            f"multiply by those of schemes.get({scheme.name!r}).constants(depth) in the network"
            + (", and say so by passing them as constants=" if without == "fails" else "")
        )
    return (
        f"params cannot show the constants of {scheme.title}'s forward pass, {said}; {result}: "
        f"{asked}."
    )


def _check_constants(scheme: Scheme, depth: int, constants: Any) -> None:
    expected = scheme.constants(depth)
    try:
        given = BranchConstants(*constants)
    except TypeError:
        raise ValueError(
            f"constants is a {type(constants).__name__}; expected those of "
            f"schemes.get({scheme.name!r}).constants({depth})."
        ) from None
    for name, one, other in zip(CONSTANTS, given, expected, strict=True):
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


__all__ = ["CONSTANTS", "Lack", "alive", "check", "lacks", "silenced"]
