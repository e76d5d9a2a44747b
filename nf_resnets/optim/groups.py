"""Parameter groups as label trees: which leaves are weights, which are Fixup's scalars."""

from __future__ import annotations

from typing import Any

from nf_resnets import roles
from nf_resnets.roles import LAYER_ROLES, Leaf, Role, Rules

SCALARS = (Role.SCALAR_BIAS, Role.MULTIPLIER)
"""The roles that train at a tenth of the learning rate, as Fixup's paper has it. Its published code
takes every parameter with "bias" in its name, and so the head's vector of biases, too."""

UNDECAYED = (
    Role.SCALAR_BIAS,
    Role.CHANNEL_BIAS,
    Role.MULTIPLIER,
    Role.ALPHA,
    Role.NORM,
)
"""The roles that RescaleNet's recipe keeps from weight decay, for :func:`nf_resnets.optim.sgd`:
biases and multipliers; the bias vectors of layers go with them."""


def decay_mask(
    params: Any, rules: Rules | None = None, *, undecayed: tuple[Role, ...] = UNDECAYED
) -> Any:
    """Tells for each leaf whether weight decay is for it.

    Args:
      params: a parameter tree.
      rules: what its paths mean; by default the names of this library's models.
      undecayed: the roles that it is not for. If there are any, it is not for the bias vectors of
        layers either.

    Returns:
      A tree of the same structure with a bool for each leaf, as ``optax.add_decayed_weights`` takes
      it.

    Raises:
      ValueError: if the tree does not fit the rules (see :func:`nf_resnets.roles.assign`).

    Source: Shao et al., *Is Normalization Indispensable for Training Deep Neural Networks?*,
    NeurIPS 2020, section 4, and its published code.

    Example:
      >>> import jax.numpy as jnp
      >>> decay_mask({"head": {"kernel": jnp.ones((16, 10)), "bias": jnp.zeros(10)}})
      {'head': {'bias': False, 'kernel': True}}
    """

    def decayed(leaf: Leaf, _: Any) -> bool:
        bias = leaf.role in LAYER_ROLES and not leaf.weight
        return leaf.role not in undecayed and not (undecayed and bias)

    return roles.assign(params, rules).map(decayed, params)


def label_tree(
    params: Any, rules: Rules | None = None, *, scalars: tuple[Role, ...] = SCALARS
) -> Any:
    """Labels each leaf ``"scalar"`` or ``"weight"``.

    Args:
      params: a parameter tree.
      rules: what its paths mean; by default the names of this library's models.
      scalars: the roles labelled ``"scalar"``; ``(*SCALARS, Role.ALPHA)`` adds SkipInit's.

    Returns:
      A tree of the same structure with a string for each leaf, as ``optax.multi_transform`` takes
      it.

    Raises:
      ValueError: if the tree does not fit the rules (see :func:`nf_resnets.roles.assign`).

    Example:
      >>> import jax.numpy as jnp
      >>> label_tree({"stem": {"kernel": jnp.ones((3, 3, 3, 16))}, "bias_stem": jnp.zeros(())})
      {'bias_stem': 'scalar', 'stem': {'kernel': 'weight'}}
    """

    def label(leaf: Leaf) -> str:
        return "scalar" if leaf.role in scalars else "weight"

    return roles.assign(params, rules).labels(label)


__all__ = ["SCALARS", "UNDECAYED", "decay_mask", "label_tree"]
