"""One leaf of a tree: its role, its place in a branch, its axes and fans."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp


class Role(enum.StrEnum):
    """What a leaf is for; a scheme decides by role what becomes of it."""

    EMBEDDING = "embedding"
    STEM = "stem"
    BRANCH = "branch"
    SHORTCUT = "shortcut"
    HEAD = "head"
    SCALAR_BIAS = "scalar_bias"
    CHANNEL_BIAS = "channel_bias"
    MULTIPLIER = "multiplier"
    ALPHA = "alpha"
    NORM = "norm"
    KEEP = "keep"


LAYER_ROLES = (Role.EMBEDDING, Role.STEM, Role.BRANCH, Role.SHORTCUT, Role.HEAD)
"""The roles whose leaves are layers, drawn by the standard initialisations."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One leaf of a tree and what it is.

    Attributes:
      path: the leaf's keys joined by ``/``.
      role: what it is for.
      shape: its shape, with the leading axes if it is stacked.
      stacked: how many leading axes run over branches: 1 under a scan, 2 under ``remat_scan``.
      weight: whether it is a weight, with at least two axes beside the stacked ones. A leaf with a
        layer's role that is no weight is that layer's bias vector.
      branches: the branches it belongs to, numbered ``k = 1..L`` from the input; one for an
        ordinary leaf, ``count`` of them for a stacked one, none outside.
      layer: its place ``1..m`` among the layers of the branch, 0 outside branches.
      m: how many layers its branch has, 0 outside branches.
      axes: what each axis of a weight is, the stacked one included: ``"HWIO"``, ``"NIOO"`` (see
        ``Rules.axes``); ``""`` of what is no weight, and of a weight that ``roles.read`` keeps.
      groups: how many groups a convolution splits its channels into, of which each gives
        ``C_out / groups`` outputs; as many as channels if it is depthwise. ``roles.read`` knows it;
        rules say that a kernel is depthwise by its axes, ``"HWIN"``.
      leaves_branch: whether what the layer gives reaches the outputs by another way than its
        branch's sum, too, as to WaveNet's skip outputs; ``roles.read`` knows it.
    """

    path: str
    role: Role
    shape: tuple[int, ...] = ()
    stacked: int = 0
    weight: bool = False
    branches: tuple[int, ...] = ()
    layer: int = 0
    m: int = 0
    axes: str = ""
    groups: int = 1
    leaves_branch: bool = False

    @property
    def own_shape(self) -> tuple[int, ...]:
        """The shape without the axes over branches."""
        return self.shape[self.stacked :]

    @property
    def count(self) -> int:
        """How many arrays it holds: as many as are stacked, or one."""
        return math.prod(self.shape[: self.stacked])

    def length(self, letters: str) -> int:
        """The product of the lengths of the axes with one of these letters."""
        pairs = zip(self.shape, self.axes, strict=True)
        return math.prod(n for n, axis in pairs if axis in letters)


@dataclasses.dataclass(frozen=True)
class Group:
    """A choice among the leaves of a tree, by what they are for.

    Attributes:
      roles: the roles whose leaves are in it.
      bias_vectors: the roles of layers whose bias vectors are in it, and not their weights;
        ``Role.KEEP`` for the vectors and scalars that no rule names.

    Example:
      >>> group = Group((Role.MULTIPLIER,), bias_vectors=(Role.HEAD,))
      >>> kernel = Leaf("head/kernel", Role.HEAD, (64, 10), weight=True)
      >>> bias = Leaf("head/bias", Role.HEAD, (10,))
      >>> kernel in group, bias in group, bias in group | Group((Role.HEAD,))
      (False, True, True)
    """

    roles: tuple[Role, ...] = ()
    bias_vectors: tuple[Role, ...] = ()

    def __contains__(self, leaf: Leaf) -> bool:
        vector = leaf.role in (*LAYER_ROLES, Role.KEEP) and not leaf.weight
        bias = vector and leaf.role in self.bias_vectors
        return bias or leaf.role in self.roles

    def __or__(self, other: Group) -> Group:
        """The leaves of one or of the other."""
        return Group(self.roles + other.roles, self.bias_vectors + other.bias_vectors)

    def __bool__(self) -> bool:
        return bool(self.roles or self.bias_vectors)


@dataclasses.dataclass(frozen=True)
class Branch:
    """One residual branch: its number ``k = 1..L``, a name to call it by, its ``m`` layers.

    What rules cannot tell, ``roles.read`` does: whether its data or its weights are normalized (by
    leaves that are not kept), and the constants on the skip path, on the branch and on their sum,
    None where one is no number.
    """

    k: int
    name: str
    m: int
    normalized: Literal["data", "weights"] | None = None
    skip_scale: float | None = 1.0
    branch_scale: float | None = 1.0
    sum_scale: float | None = 1.0


def path_name(path: tuple[Any, ...]) -> str:
    """Joins the keys of a pytree path by ``/``."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def is_numeric(leaf: Any) -> bool:
    """Whether a leaf is an array of numbers, and no function, rate or PRNG key."""
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return False
    return not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def is_float(value: Any) -> bool:
    """Whether a value is an array of floating-point numbers, real or complex."""
    return hasattr(value, "dtype") and bool(jnp.issubdtype(value.dtype, jnp.inexact))


def fans(leaf: Leaf) -> tuple[int, int]:
    """Returns ``(fan_in, fan_out)`` of a weight, whatever its layout and however it is stacked.

    ``fan_in = H W C_in`` is the number of inputs to one output unit, ``fan_out = H W C_out /
    groups`` of the outputs that an input goes to; of a depthwise kernel both are ``H W``.

    Raises:
      ValueError: if its axes are not known.

    Example:
      >>> fans(Leaf("conv", Role.STEM, (3, 3, 16, 32), weight=True, axes="HWIO"))
      (144, 288)
      >>> fans(Leaf("conv", Role.STEM, (3, 3, 4, 32), weight=True, axes="HWIO", groups=8))
      (36, 36)
      >>> fans(Leaf("query", Role.BRANCH, (7, 512, 8, 64), stacked=1, weight=True, axes="NIOO"))
      (512, 512)
    """
    axes_of(leaf)  # refuses a weight whose axes are not known
    taps = leaf.length("DHW")
    return taps * leaf.length("I"), taps * leaf.length("O") // leaf.groups


def axes_of(leaf: Leaf) -> str:
    """The axes of a weight, a letter for each (see ``Rules.axes``).

    Raises:
      ValueError: if they are not known, as those of a weight that ``roles.read`` keeps.
    """
    if leaf.weight and not leaf.axes:
        raise ValueError(
            f"the axes of leaf {leaf.path!r} {list(leaf.shape)} are not known; expected a weight "
            "that is not kept."
        )
    return leaf.axes
