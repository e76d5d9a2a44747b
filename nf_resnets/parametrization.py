r"""How rates, weight decay, epsilon and initial size scale with a network's width and depth.

Rates are tuned on a base network. With ``r_in`` and ``r_out`` as the ratios of a layer's inputs and
outputs to the base's, ``l = L / L_base``, and branches multiplied by ``l**-a``, the factors of a
leaf (those of ``l`` in the branches only) are:

==============  =====================================  =========================================
factor of       SGD                                    AdamW, Lion
==============  =====================================  =========================================
learning rate   ``r_out / r_in  l**(2a - 1)``          ``1 / r_in  l**(a - 1)``
weight decay    one over that                          ``r_in``
epsilon         \-                                     ``1 / r_out  l**-a``
std, see below  ``r_in**-1/2``                         ``r_in**-1/2``
==============  =====================================  =========================================

A vector has ``r_in = 1``. The factors of width are table 3 of Yang et al., in which the readout's
multiplier ``1 / r_in`` is a part of its weights, so that no network needs one; but a table that is
embedding and readout needs it, in front of the logits, from the network itself. The factor of the
std is the head's, and that of each weight whose outputs stay as many while its inputs grow, as
where the inner width of the branches grows alone. Those of depth for
AdamW are table 1 of Dey et al.; for SGD they follow from the same count: ``L`` branches times
``l**-a`` change their sum by a fixed amount if each of their weights moves by ``l**(a - 1)``, and
SGD's gradients are ``l**-a``. With ``a = 1/2`` SGD's rate does not depend on depth, as in Bordelon
et al. Muon's update has a fixed spectral norm, which takes care of the width.

Sources: Yang et al., *Tensor Programs V*, 2021, and github.com/microsoft/mup; Bordelon et al.,
*Depthwise Hyperparameter Transfer in Residual Networks*, ICLR 2024; Yang et al., *Tensor Programs
VI*, ICLR 2024; Dey et al., *Don't be lazy: CompleteP enables compute-efficient deep transformers*,
2025, and github.com/EleutherAI/nanoGPT-mup (branch completep).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

import numpy as np

from nf_resnets.roles import Role, Sizes

Kind = Literal["sgd", "adam", "muon"]
"""Optimizers by their update: a multiple of the gradient; numbers of one size (AdamW, Lion); an
orthogonal matrix."""

TRANSFORMS = (Role.BRANCH, Role.SHORTCUT)
"""The roles whose weights Muon orthogonalises: all but the first and the last layer's."""


class Factors(NamedTuple):
    """What the numbers of one leaf are multiplied by; 1 for those of the base network."""

    learning_rate: float = 1.0
    weight_decay: float = 1.0
    eps: float = 1.0
    std: float = 1.0


@dataclasses.dataclass(frozen=True)
class Parametrization:
    """How training at one size follows from training at another.

    Example:
      >>> COMPLETEP.factors(Sizes(inputs=4.0, outputs=4.0, depth=8.0), "adam")
      Factors(learning_rate=0.25, weight_decay=4.0, eps=0.03125, std=1.0)
    """

    name: str
    title: str  # what plots and tables call it
    factors: Callable[[Sizes, Kind], Factors] = dataclasses.field(repr=False)
    reference: str = dataclasses.field(repr=False)
    exponent: float = 0.0  # a: branches are multiplied by (L / L_base)**-a


@dataclasses.dataclass(frozen=True)
class DepthPower:
    """The constants ``(L / L_base)**-a`` of the branches; see ``Anatomy.residual``."""

    exponent: float
    base_depth: int = 1

    def __call__(self, transitions: tuple[bool, ...]) -> np.ndarray:
        """One number for each branch, float32 ``[L]``."""
        depth = len(transitions)
        return np.full(depth, (max(depth, 1) / self.base_depth) ** -self.exponent, np.float32)


def scaled(sizes: Sizes, kind: Kind, *, exponent: float | None = None) -> Factors:
    """The factors of the table above; without ``exponent`` those of the width alone."""
    r_in, r_out, depth, c = sizes.inputs, sizes.outputs, sizes.depth, sizes.multiplier
    # Without a rule for the depth, branches are as the base's, and so are their rates.
    a, l = (0.0, 1.0) if exponent is None else (exponent, depth)
    is_readout = sizes.role is Role.HEAD or (sizes.weight and r_out == 1)
    std = r_in**-0.5 if is_readout else 1.0
    # Weights that the network multiplies by c are 1 / c of those of the table.
    if kind == "sgd":
        rate = r_out / r_in * l ** (2 * a - 1) / c**2
        return Factors(rate, 1 / rate, 1.0, std)
    if kind == "muon" and sizes.weight and sizes.role in TRANSFORMS:
        return Factors(l ** (a - 1), 1.0, 1.0, std)
    return Factors(l ** (a - 1) / r_in / c, r_in * c, c * l**-a / r_out, std)


def unscaled(sizes: Sizes, kind: Kind) -> Factors:
    """One rate for all leaves, widths and depths."""
    return Factors()


STANDARD = Parametrization("standard", "standard", unscaled, "one rate for all widths and depths")
MUP = Parametrization("mup", "μP", scaled, "Yang et al.: Tensor Programs V, 2021, table 3")
DEPTH_MUP = Parametrization(
    "depth_mup",
    "depth-μP",
    partial(scaled, exponent=0.5),
    "Yang et al.: Tensor Programs VI; Bordelon et al.: Depthwise Transfer; both ICLR 2024",
    exponent=0.5,
)
COMPLETEP = Parametrization(
    "completep",
    "CompleteP",
    partial(scaled, exponent=1.0),
    "Dey et al.: Don't be lazy: CompleteP enables compute-efficient deep transformers, 2025",
    exponent=1.0,
)

__all__ = [
    "COMPLETEP", "DEPTH_MUP", "MUP", "STANDARD", "TRANSFORMS", "DepthPower", "Factors", "Kind",
    "Parametrization", "scaled", "unscaled",
]  # fmt: skip
