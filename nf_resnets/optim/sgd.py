"""SGD with momentum and L2; the scheme says which leaves learn slowly and which do not decay."""

from __future__ import annotations

from typing import Any

import optax

from nf_resnets.optim.groups import checked, grouped, scale_by_rates
from nf_resnets.roles import Group, RoleMap, Rules
from nf_resnets.schemes import Scheme


def sgd(
    learning_rate: Any,
    *,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: Any = 0.0,
    scheme: str | Scheme | None = None,
    scalars: Group | None = None,
    scalar_factor: Any = None,
    undecayed: Group | None = None,
    rules: Rules | RoleMap | None = None,
) -> optax.GradientTransformation:
    r"""SGD with heavy-ball momentum and L2, in the parameter groups of a scheme.

    The update is ``v <- momentum v + (g + weight_decay theta)``, ``theta <- theta - eta v``. The L2
    term goes through the momentum, as in Fixup's published code. With Nesterov's momentum it is
    ``theta <- theta - eta (g + weight_decay theta + momentum v)`` with the new ``v``.

    Args:
      learning_rate: ``eta``, a number (it may be traced) or an optax schedule of the step.
      momentum: the fraction of the last velocity that is kept, in ``[0, 1)``.
      nesterov: whether to use Nesterov's momentum, as in Wide ResNets' published code.
      weight_decay: the coefficient of ``theta`` in the gradient; it may be traced.
      scheme: whose groups apply; see :func:`grouped`, as for the following arguments.
      scalars: the slow leaves.
      scalar_factor: the factor on ``eta`` for them.
      undecayed: the leaves without L2 term.
      rules: what the paths of the tree mean, or its map.

    Returns:
      An optax gradient transformation.

    Raises:
      ValueError, TypeError: if a number lies outside its range or is none, and as ``grouped``.

    Source: Zhang, Dauphin, Ma, ICLR 2019, and its published code (0.1 for scalars).

    Example:
      >>> import jax.numpy as jnp
      >>> params = {"head": {"kernel": jnp.ones((2, 2))}, "bias_head": jnp.ones(())}
      >>> optimizer = sgd(0.5)
      >>> updates, _ = optimizer.update(params, optimizer.init(params), params)
      >>> float(updates["head"]["kernel"][0, 0]), round(float(updates["bias_head"]), 6)
      (-0.5, -0.05)
    """
    if not callable(learning_rate):
        checked("learning_rate", learning_rate)
    checked("momentum", momentum, 1.0)
    checked("weight_decay", weight_decay)
    rule = optax.chain(
        optax.add_decayed_weights(weight_decay),
        optax.trace(decay=momentum, nesterov=nesterov),
    )
    return optax.chain(
        grouped(rule, scheme, rules, scalars=scalars, scalar_factor=1.0, undecayed=undecayed),
        scale_by_rates(learning_rate, scheme, rules, scalars, scalar_factor),
    )


__all__ = ["sgd"]
