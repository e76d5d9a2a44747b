"""Adam for Transformers; the scheme says which leaves learn slowly and which do not decay."""

from __future__ import annotations

from typing import Any

import optax

from nf_resnets import optim
from nf_resnets.optim.groups import checked
from nf_resnets.roles import Group, Rules
from nf_resnets.schemes import Scheme


def adam(
    learning_rate: Any,
    *,
    b1: float = 0.9,
    b2: float = 0.98,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    scheme: str | Scheme | None = None,
    scalars: Group | None = None,
    scalar_factor: Any = None,
    undecayed: Group | None = None,
    rules: Rules | None = None,
) -> optax.GradientTransformation:
    r"""Adam, in the parameter groups of a scheme.

    ``m <- b1 m + (1 - b1) g``, ``v <- b2 v + (1 - b2) g^2``, ``theta <- theta - eta (m_hat /
    (sqrt(v_hat) + eps) + weight_decay theta)`` with ``m_hat = m / (1 - b1^t)`` and
    ``v_hat = v / (1 - b2^t)``, Kingma and Ba's algorithm 1. The decay is decoupled, as in fairseq,
    and holds for every parameter that is not in ``undecayed``; ``eta`` is multiplied by
    ``scalar_factor`` for the leaves in ``scalars``.

    Args:
      learning_rate: ``eta``, a number (it may be traced) or an optax schedule of the step.
      b1: the fraction of the mean gradient that is kept, in ``[0, 1)``.
      b2: the fraction of the mean square that is kept, in ``[0, 1)``; 0.98 by Vaswani et al.
      eps: added to the denominator, so that it is never 0.
      weight_decay: the coefficient of ``theta``.
      scheme: the scheme of the network, which defines the groups, as in
        :func:`nf_resnets.optim.sgd`. Without it they are Fixup's.
      scalars: the slow leaves; by default the scheme's.
      scalar_factor: the factor on ``eta`` for the slow leaves; by default the scheme's. The tenth
        for Fixup's scalars is that of its image networks. The paper does not give one for its
        Transformer, and the published code of the Transformer has no slow leaves:
        ``scalar_factor=1.0``.
      undecayed: the leaves without weight decay; by default the scheme's.
      rules: what the paths of the tree mean; by default the names of this library's models.

    Returns:
      An optax gradient transformation.

    Raises:
      ValueError: if a number lies outside its range, or no scheme has that name.

    Source: Kingma, Ba, *Adam*, ICLR 2015; Vaswani et al., *Attention Is All You Need*, NeurIPS
    2017, section 5.3; Zhang, Dauphin, Ma, ICLR 2019, section 4.3.

    Example:
      >>> import jax.numpy as jnp
      >>> params = {"head": {"kernel": jnp.ones((2, 2))}, "bias_head": jnp.ones(())}
      >>> optimizer = adam(0.5)
      >>> updates, _ = optimizer.update(params, optimizer.init(params), params)
      >>> round(float(updates["head"]["kernel"][0, 0]), 4), round(float(updates["bias_head"]), 4)
      (-0.5, -0.05)
    """
    checked("b1", b1, 1.0)
    return optim.adamw(
        learning_rate, momentum=b1, b2=b2, eps=eps, weight_decay=weight_decay, scheme=scheme,
        scalars=scalars, scalar_factor=scalar_factor, undecayed=undecayed, rules=rules,
    )  # fmt: skip


OPTIMIZERS = {**optim.OPTIMIZERS, "adamw": (adam, "adam")}
"""As :data:`nf_resnets.optim.OPTIMIZERS`, with Vaswani et al.'s ``b2``."""

__all__ = ["OPTIMIZERS", "adam"]
