"""What a scheme is, and the registry through which models and experiments find one by name.

A scheme is a value with two halves: an *initialisation*, a pure function of a parameter tree, and
an *anatomy*, what a network must contain for it. The first half is used by whoever calls
``init``, the second by the models; this module lies below both, so that neither imports the other.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable
from typing import Any, Literal


@dataclasses.dataclass(frozen=True)
class Anatomy:
    r"""What a residual network must contain for a scheme.

    A block computes ``y = identity * shortcut(x) + residual * scalar * F(x)``, where the learnable
    ``scalar`` is the multiplier, or ``alpha``, or absent; a post-activation block takes the ReLU of
    that.

    Attributes:
      scalar_biases: a learnable scalar before every convolution and activation of a branch, before
        the activation outside the branches, and before the head.
      multiplier: a learnable scalar on every branch, initialised to 1.
      alpha: SkipInit's learnable scalar on every branch.
      conv_biases: a bias vector in every convolution: stem, branches, shortcuts.
      norm: the normalisation after the convolutions (before the activations, in pre-activation
        networks), if any.
      residual: a constant on every branch.
      identity: a constant on every shortcut.

    Raises:
      ValueError: if a branch is to have two scalars, or the norm is none of the three.
    """

    scalar_biases: bool = False
    multiplier: bool = False
    alpha: bool = False
    conv_biases: bool = False
    norm: Literal["batch", "group"] | None = None
    residual: float = 1.0
    identity: float = 1.0

    def __post_init__(self) -> None:
        if self.multiplier and self.alpha:
            raise ValueError(
                "Anatomy(multiplier=True, alpha=True) found; expected at most one learnable scalar "
                "on a branch."
            )
        if self.norm not in (None, "batch", "group"):
            raise ValueError(
                f"Anatomy(norm={self.norm!r}) found; expected None, 'batch' or 'group'."
            )


@dataclasses.dataclass(frozen=True)
class Scheme:
    """A way to start the training of a residual network.

    Attributes:
      name: how models, experiments and command lines call it.
      title: how plots and tables call it.
      init: ``init(params, depth, *, key=None, rules=None) -> params``; with ``key`` it draws the
        weights afresh, without it changes the weights given as little as the scheme allows.
      anatomy: what a network must contain for it.
      reference: where it was published.
    """

    name: str
    title: str
    init: Callable[..., Any] = dataclasses.field(repr=False)
    anatomy: Anatomy
    reference: str = dataclasses.field(repr=False)


_REGISTRY: dict[str, Scheme] = {}


def register(scheme: Scheme) -> Scheme:
    """Makes a scheme known by its name, and returns it.

    Raises:
      ValueError: if another scheme has that name.
    """
    known = _REGISTRY.get(scheme.name)
    if known is not None and known != scheme:
        raise ValueError(
            f"a scheme named {scheme.name!r} is registered already; choose a new name."
        )
    _REGISTRY[scheme.name] = scheme
    return scheme


def get(scheme: str | Scheme) -> Scheme:
    """Returns the scheme of that name; a scheme itself is returned as it is.

    Raises:
      ValueError: if no scheme has that name; the message lists those there are.

    Example:
      >>> import nf_resnets
      >>> get("fixup").anatomy.multiplier
      True
    """
    if isinstance(scheme, Scheme):
        return scheme
    if isinstance(scheme, str) and scheme in _REGISTRY:
        return _REGISTRY[scheme]
    close = difflib.get_close_matches(str(scheme), _REGISTRY, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"scheme={scheme!r} found; expected one of {', '.join(_REGISTRY)}{hint}.")


def names() -> tuple[str, ...]:
    """The names of all registered schemes, in the order of their registration."""
    return tuple(_REGISTRY)


__all__ = ["Anatomy", "Scheme", "get", "names", "register"]
