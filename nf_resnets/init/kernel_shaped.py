"""TAT and DKS as schemes: networks without shortcuts, or with weighted ones, and their weights."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Literal

from nf_resnets.init.orthogonal import delta_orthogonal
from nf_resnets.init.standard import standard
from nf_resnets.kernel_shaping import LEAKY_RELU, Shaping
from nf_resnets.schemes import Anatomy, Scheme

_REFERENCES = {
    "tat": "Zhang, Botev, Martens: Deep Learning without Shortcuts: Shaping the Kernel with "
    "Tailored Rectifiers, ICLR 2022",
    "dks": "Martens et al.: Rapid Training of Deep Neural Networks without Skip Connections or "
    "Normalization Layers Using Deep Kernel Shaping, 2021",
}


def kernel_shaped(
    method: Literal["tat", "dks"] = "tat", function: str = LEAKY_RELU, *, skip: float = 0.0
) -> Scheme:
    """A network whose activation is shaped by TAT or DKS, as a scheme.

    Sums are ``w * shortcut + sqrt(1 - w^2) * branch``; with ``w = 0`` there are no shortcuts. The
    weights are :func:`nf_resnets.init.delta_orthogonal`, biases 0, and what the activation is
    follows from the depth of the network (:mod:`nf_resnets.kernel_shaping`).

    Args:
      method: ``"tat"`` or ``"dks"``.
      function: ``"leaky_relu"`` (TAT alone), or "tanh", "softplus", "silu", "gelu".
      skip: ``w``. Above 0 it is for pre-activation networks, for zero-padded shortcuts would halve
        the second moment.

    Returns:
      The scheme, which a model takes as ``scheme=``.

    Raises:
      ValueError: if the method or the function is not one of those, or not ``0 <= skip < 1``.

    Example:
      >>> scheme = kernel_shaped("dks", "tanh", skip=0.6)
      >>> scheme.title, scheme.anatomy.residual
      ('DKS, tanh, w = 0.6', 0.8)
    """
    if not 0 <= skip < 1:
        raise ValueError(f"skip={skip!r} found; expected 0 <= skip < 1.")
    weighted = f", w = {skip:g}" if skip else ""
    named = "leaky ReLU" if function == LEAKY_RELU else function
    return Scheme(
        name="_".join([method, function, *([f"{skip:g}"] if skip else [])]),
        title=f"{method.upper()}, {named}{weighted}",
        init=partial(standard, draw=delta_orthogonal),
        anatomy=Anatomy(
            conv_biases=True,
            residual=(1 - skip**2) ** 0.5,
            identity=skip,
            activation=Shaping(method, function),
        ),
        reference=_REFERENCES[method],
        fits=frozenset({"pre_activation", *(() if skip else ("post_activation", "plain"))}),
        own_draw=True,
    )


TAT = dataclasses.replace(kernel_shaped("tat", LEAKY_RELU), name="tat")
DKS = dataclasses.replace(kernel_shaped("dks", "softplus"), name="dks")

__all__ = ["DKS", "TAT", "kernel_shaped"]
