"""Adam for Transformers; the scheme says which leaves learn slowly and which do not decay."""

from __future__ import annotations

from typing import Any

import optax

from nf_resnets import optim


def adam(learning_rate: Any, *, b2: float = 0.98, **options: Any) -> optax.GradientTransformation:
    r"""Adam with Vaswani et al.'s ``b2``, in the parameter groups of a scheme.

    The slow leaves of Fixup learn at a tenth of the rate, as in its image networks. The paper gives
    no factor for its Transformer, and its code has none: ``scalar_factor=1.0``.

    The arguments are those of :func:`nf_resnets.optim.adamw`.

    Source: Vaswani et al., *Attention Is All You Need*, NeurIPS 2017, section 5.3; Zhang, Dauphin,
    Ma, ICLR 2019, section 4.3.
    """
    return optim.adamw(learning_rate, b2=b2, **options)


OPTIMIZERS = {**optim.OPTIMIZERS, "adamw": (adam, "adam")}
"""As :data:`nf_resnets.optim.OPTIMIZERS`, with Vaswani et al.'s ``b2``."""

__all__ = ["OPTIMIZERS", "adam"]
