"""Adam as Transformers are trained with, with Fixup's slower group for scalars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optax

from nf_resnets.optim import SCALARS, label_tree
from nf_resnets.roles import Role, Rules


def adam(
    learning_rate: Any,
    *,
    b1: float = 0.9,
    b2: float = 0.98,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    scalar_factor: float = 0.1,
    scalars: tuple[Role, ...] = SCALARS,
    rules: Rules | None = None,
) -> optax.GradientTransformation:
    r"""Adam, the scalars at ``scalar_factor`` times the rate.

    ``m <- b1 m + (1 - b1) g``, ``v <- b2 v + (1 - b2) g^2``, ``theta <- theta - eta (m_hat /
    (sqrt(v_hat) + eps) + weight_decay theta)`` with ``m_hat = m / (1 - b1^t)`` and
    ``v_hat = v / (1 - b2^t)``, Kingma and Ba's algorithm 1. The decay is decoupled, as in fairseq,
    and holds for every parameter; ``eta`` is multiplied by ``scalar_factor`` for the roles in
    ``scalars``.

    Args:
      learning_rate: ``eta``, a number (it may be traced) or an optax schedule of the step.
      b1: the share of the mean gradient that is kept, in ``[0, 1)``.
      b2: the share of the mean square that is kept, in ``[0, 1)``; 0.98 by Vaswani et al.
      eps: what keeps the quotient finite.
      weight_decay: the coefficient of ``theta``.
      scalar_factor: what ``eta`` is multiplied by for Fixup's scalar biases and multipliers.
      scalars: the roles that the factor is for.
      rules: what the paths of the tree mean; by default the names of this library's models.

    Returns:
      An optax gradient transformation.

    Raises:
      ValueError: if a number lies outside its range.

    Source: Kingma, Ba, *Adam*, ICLR 2015; Vaswani et al., *Attention Is All You Need*, NeurIPS
    2017, section 5.3; Zhang, Dauphin, Ma, ICLR 2019, and its published code (0.1 for scalars).

    Example:
      >>> import jax.numpy as jnp
      >>> params = {"head": {"kernel": jnp.ones((2, 2))}, "bias_head": jnp.ones(())}
      >>> optimizer = adam(0.5)
      >>> updates, _ = optimizer.update(params, optimizer.init(params), params)
      >>> round(float(updates["head"]["kernel"][0, 0]), 4), round(float(updates["bias_head"]), 4)
      (-0.5, -0.05)
    """
    for name, value, high in (
        ("b1", b1, 1.0), ("b2", b2, 1.0), ("eps", eps, float("inf")),
        ("weight_decay", weight_decay, float("inf")),
        ("scalar_factor", scalar_factor, float("inf")),
    ):  # fmt: skip
        if not 0.0 <= value < high:
            raise ValueError(f"{name}={value:g} found; expected 0 <= {name} < {high:g}.")

    def rate(factor: float) -> Any:
        if callable(learning_rate):
            schedule: Callable[[Any], Any] = learning_rate
            return lambda count: factor * schedule(count)
        return factor * learning_rate

    return optax.chain(
        optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
        optax.add_decayed_weights(weight_decay),
        optax.multi_transform(
            {
                "weight": optax.scale_by_learning_rate(rate(1.0)),
                "scalar": optax.scale_by_learning_rate(rate(scalar_factor)),
            },
            lambda params: label_tree(params, rules, scalars=scalars),
        ),
    )


__all__ = ["adam"]
