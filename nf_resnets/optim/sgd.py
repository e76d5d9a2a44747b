"""SGD with momentum and L2; the scheme says which leaves learn slowly and which do not decay."""

from __future__ import annotations

from typing import Any

import optax

from nf_resnets.optim.groups import add_decay, checked, keep_dtypes, scale_by_rates
from nf_resnets.roles import Group, Rules
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
    rules: Rules | None = None,
) -> optax.GradientTransformation:
    r"""SGD with heavy-ball momentum and L2, in the parameter groups of a scheme.

    The update is ``v <- momentum v + (g + weight_decay theta)``, ``theta <- theta - eta v``. The L2
    term goes through the momentum, as in Fixup's published code. With Nesterov's momentum it is
    ``theta <- theta - eta (g + weight_decay theta + momentum v)`` with the new ``v``.

    There are two groups: leaves in ``scalars`` learn at ``scalar_factor`` times ``eta``, and leaves
    in ``undecayed`` have no L2 term.

    Args:
      learning_rate: ``eta``, a number (it may be traced) or an optax schedule of the step.
      momentum: the fraction of the last velocity that is kept, in ``[0, 1)``.
      nesterov: whether to use Nesterov's momentum, as in Wide ResNets' published code.
      weight_decay: the coefficient of ``theta`` in the gradient; it may be traced.
      scheme: the scheme of the network, which defines the groups. Fixup's scalar biases and
        multipliers learn at a tenth of the rate (at the full rate some runs diverge), RescaleNet's
        multipliers at the full rate and without decay. Without ``scheme`` the groups are Fixup's,
        which have no effect on a network without its scalars.
      scalars: the slow leaves; by default the scheme's. ``optim.SCALARS |
        roles.Group((Role.ALPHA,))`` adds SkipInit's alpha, which its paper trains at the full rate.
      scalar_factor: the factor on ``eta`` for the slow leaves; by default the scheme's. It may be
        traced.
      undecayed: the leaves without weight decay (see :func:`nf_resnets.optim.decay_mask`); by
        default the scheme's. ``optim.UNDECAYED`` is RescaleNet's choice.
      rules: what the paths of the tree mean; by default the names of this library's models.

    Returns:
      An optax gradient transformation.

    Raises:
      ValueError: if a number lies outside its range, or no scheme has that name; from ``init``, if
        no scheme is given and the tree has multipliers, but is not Fixup's.
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
    if not callable(learning_rate):
        checked("learning_rate", learning_rate)
    checked("momentum", momentum, 1.0)
    checked("weight_decay", weight_decay)
    return keep_dtypes(
        add_decay(weight_decay, rules, scheme=scheme, undecayed=undecayed),
        optax.trace(decay=momentum, nesterov=nesterov),
        scale_by_rates(
            learning_rate, rules, scheme=scheme, scalars=scalars, scalar_factor=scalar_factor
        ),
    )


__all__ = ["sgd"]
