"""ReZero: SkipInit's scalar at 0 in a network that has no biases beside it."""

from __future__ import annotations

from nf_resnets.init.skipinit import skipinit
from nf_resnets.schemes import Anatomy, Scheme

SCHEME = Scheme(
    name="rezero",
    title="ReZero",
    init=skipinit,
    anatomy=Anatomy(alpha=True),
    reference="Bachlechner et al.: ReZero is All You Need, UAI 2021, equation 1",
    fits=frozenset({"pre_activation", "post_activation", "transformer"}),
)

__all__ = ["SCHEME"]
