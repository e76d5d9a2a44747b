"""Rules for networks built with the parts of :mod:`nf_resnets.models`."""

from __future__ import annotations

import dataclasses
from typing import Any

from nf_resnets import schemes
from nf_resnets.roles import Rules
from nf_resnets.schemes import Scheme

_VALUE = r"(?:/(?:raw_)?value)?$"  # NNX adds a key to a Param's path


def with_parts(rules: Rules, scheme: str | Scheme) -> Rules:
    r"""The same network built with the parts of ``nf_resnets.models``, such as ``ScalarBias``.

    Args:
      rules: those of its layers.
      scheme: its name, or itself; its anatomy says which parts there are.

    Returns:
      The rules with ``scalar_bias``, ``channel_bias``, ``multiplier``, ``alpha`` and, for the gains
      of standardised weights, ``norm``, as far as the scheme has them.

    Example:
      >>> with_parts(Rules(branch=r"Block_(\d+)/Conv_(\d+)/kernel"), "skipinit").alpha
      '(?:^|[/.])alpha(?:/(?:raw_)?value)?$'
    """
    anatomy = schemes.get(scheme).anatomy
    parts = {
        "scalar_bias": (anatomy.scalar_biases, "bias_scalar"),
        "channel_bias": (anatomy.channel_biases, "vector"),
        "multiplier": (anatomy.multiplier, "multiplier"),
        "alpha": (anatomy.alpha, "alpha"),
        "norm": (anatomy.standardized, "gain"),
    }
    found: dict[str, Any] = {
        role: rf"(?:^|[/.]){name}{_VALUE}" for role, (there, name) in parts.items() if there
    }
    if rules.norm is not None and "norm" in found:
        found["norm"] += f"|{rules.norm}"
    return dataclasses.replace(rules, **found)


__all__ = ["with_parts"]
