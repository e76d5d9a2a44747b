"""SGD with momentum and L2, with Fixup's slower group for scalars."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax

from nf_resnets.optim.groups import SCALARS, decay_mask, label_tree
from nf_resnets.roles import Role, Rules


def sgd(
    learning_rate: Any,
    *,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: Any = 0.0,
    scalar_factor: float = 0.1,
    scalars: tuple[Role, ...] = SCALARS,
    undecayed: tuple[Role, ...] = (),
    rules: Rules | None = None,
) -> optax.GradientTransformation:
    r"""SGD with heavy-ball momentum and L2, the scalars at ``scalar_factor`` times the rate.

    ``v <- momentum v + (g + weight_decay theta)``, ``theta <- theta - eta v``: the L2 term goes
    through the momentum, as in Fixup's published code, and holds for every parameter whose role is
    not in ``undecayed``; with Nesterov's momentum ``theta <- theta - eta (g + weight_decay theta +
    momentum v)``, ``v`` being the new one; ``eta`` is multiplied by ``scalar_factor`` for the roles
    in ``scalars``.

    Args:
      learning_rate: ``eta``, a number (it may be traced) or an optax schedule of the step.
      momentum: the share of the last velocity that is kept, in ``[0, 1)``.
      nesterov: whether it is Nesterov's, as in Wide ResNets' published code.
      weight_decay: the coefficient of ``theta`` in the gradient; it may be traced.
      scalar_factor: what ``eta`` is multiplied by for Fixup's scalar biases and multipliers; users
        who left it at 1 saw divergence in the middle of training.
      scalars: the roles that the factor is for; ``(*SCALARS, Role.ALPHA)`` adds SkipInit's alpha,
        which its paper trains at the full rate.
      undecayed: the roles without weight decay (see :func:`nf_resnets.optim.decay_mask`); none, as
        in Fixup's code, or :data:`nf_resnets.optim.UNDECAYED`, as RescaleNet asks for.
      rules: what the paths of the tree mean; by default the names of this library's models.

    Returns:
      An optax gradient transformation.

    Raises:
      ValueError: if a number lies outside its range.
      TypeError: if what should be a number is not one.

    Source: Zhang, Dauphin, Ma, ICLR 2019, and its published code (0.1 for scalars).

    Example:
      >>> import jax.numpy as jnp
      >>> params = {"head": {"kernel": jnp.ones((2, 2))}, "bias_head": jnp.ones(())}
      >>> optimizer = sgd(0.5)
      >>> updates, _ = optimizer.update(params, optimizer.init(params), params)
      >>> float(updates["head"]["kernel"][0, 0]), round(float(updates["bias_head"]), 6)
      (-0.5, -0.05)
    """
    for name, value, low, high in (
        ("learning_rate", learning_rate, 0.0, float("inf")),
        ("momentum", momentum, 0.0, 1.0),
        ("weight_decay", weight_decay, 0.0, float("inf")),
        ("scalar_factor", scalar_factor, 0.0, float("inf")),
    ):
        if isinstance(value, jax.core.Tracer) or (name == "learning_rate" and callable(value)):
            continue
        number = _number(name, value)
        if not low <= number < high:
            raise ValueError(f"{name}={number:g} found; expected {low:g} <= {name} < {high:g}.")

    def rate(factor: float) -> Any:
        if callable(learning_rate):
            schedule: Callable[[Any], Any] = learning_rate
            return lambda count: factor * schedule(count)
        return factor * learning_rate

    def mask(params: Any) -> Any:
        return decay_mask(params, rules, undecayed=undecayed)

    transformation = optax.chain(
        optax.add_decayed_weights(weight_decay, mask=mask if undecayed else None),
        optax.trace(decay=momentum, nesterov=nesterov),
        optax.multi_transform(
            {
                "weight": optax.scale_by_learning_rate(rate(1.0)),
                "scalar": optax.scale_by_learning_rate(rate(scalar_factor)),
            },
            lambda params: label_tree(params, rules, scalars=scalars),
        ),
    )

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        # A float32 weight decay or momentum would make the velocity of bfloat16 weights float32.
        updates, new_state = transformation.update(updates, state, params)
        return updates, jax.tree.map(lambda new, old: new.astype(old.dtype), new_state, state)

    return optax.GradientTransformation(transformation.init, update)


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}={value!r} found; expected a number.") from None


__all__ = ["sgd"]
