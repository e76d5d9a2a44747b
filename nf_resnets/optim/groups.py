"""Parameter groups as label trees: which leaves learn slowly, and which have no weight decay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import optax

from nf_resnets import roles, schemes
from nf_resnets.roles import Group, Role, RoleMap, Rules
from nf_resnets.schemes import SCALARS, UNDECAYED, Scheme


def decay_mask(params: Any, rules: Rules | None = None, *, undecayed: Group = UNDECAYED) -> Any:
    """Tells for each leaf whether weight decay is for it.

    Args:
      params: a parameter tree.
      rules: what its paths mean; by default the names of this library's models.
      undecayed: the leaves that it is not for, such as ``schemes.get("rescalenet").undecayed``,
        which is the default.

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
    return roles.assign(params, rules).map(lambda leaf, _: leaf not in undecayed, params)


def label_tree(
    params: Any,
    rules: Rules | None = None,
    *,
    scheme: str | Scheme | None = None,
    scalars: Group | None = None,
) -> Any:
    """Labels each leaf ``"scalar"`` or ``"weight"``.

    Args:
      params: a parameter tree.
      rules: what its paths mean; by default the names of this library's models.
      scheme: the scheme that says which leaves are labelled ``"scalar"``. Without it they are
        Fixup's scalar biases and multipliers.
      scalars: those leaves, if not as the scheme has it; ``optim.SCALARS | Group((Role.ALPHA,))``
        adds SkipInit's.

    Returns:
      A tree of the same structure with a string for each leaf, as ``optax.multi_transform`` takes
      it.

    Raises:
      ValueError: if the tree does not fit the rules (see :func:`nf_resnets.roles.assign`), or
        neither ``scheme`` nor ``scalars`` is given and the tree is not Fixup's: it has RescaleNet's
        channel biases, or multipliers without scalar biases.

    Example:
      >>> import jax.numpy as jnp
      >>> label_tree({"stem": {"kernel": jnp.ones((3, 3, 3, 16))}, "bias_stem": jnp.zeros(())})
      {'bias_stem': 'scalar', 'stem': {'kernel': 'weight'}}
    """
    role_map = roles.assign(params, rules)
    if scalars is not None:
        group = scalars
    elif scheme is not None:
        group = schemes.get(scheme).scalars
    else:
        _refuse_others_than_fixup(role_map)
        group = SCALARS
    return role_map.labels(lambda leaf: "scalar" if leaf in group else "weight")


def _refuse_others_than_fixup(role_map: RoleMap) -> None:
    """Refuses to guess: Fixup and RescaleNet have multipliers, and train them at two rates."""
    found = {leaf.role: leaf.path for leaf in role_map.leaves}
    if Role.CHANNEL_BIAS in found:
        path, what, where = (
            found[Role.CHANNEL_BIAS],
            "channel bias",
            "as RescaleNet's networks have it",
        )
    elif Role.MULTIPLIER in found and Role.SCALAR_BIAS not in found:
        path, what, where = (
            found[Role.MULTIPLIER],
            "multiplier",
            "in a tree without Fixup's scalar biases",
        )
    else:
        return
    raise ValueError(
        f"leaf {path!r} is a {what}, {where}, and no scheme is given; expected scheme= or scalars= "
        "to say which leaves learn slowly (Fixup trains multipliers at a tenth of the rate, "
        "RescaleNet at the full rate)."
    )


def add_decay(
    weight_decay: Any,
    rules: Rules | None = None,
    *,
    scheme: str | Scheme | None = None,
    undecayed: Group | None = None,
) -> optax.GradientTransformation:
    """Adds ``weight_decay theta`` to the gradients of the leaves that a scheme decays.

    Args:
      weight_decay: the coefficient; it may be traced.
      rules: what the paths of the tree mean; by default the names of this library's models.
      scheme: the scheme that says which leaves have none. Without it all have it.
      undecayed: those leaves, if not as the scheme has it.

    Raises:
      ValueError: if no scheme has that name.
    """
    if undecayed is None:
        undecayed = Group() if scheme is None else schemes.get(scheme).undecayed
    spared = undecayed

    def mask(params: Any) -> Any:
        return decay_mask(params, rules, undecayed=spared)

    return optax.add_decayed_weights(weight_decay, mask=mask if spared else None)


def scale_by_rates(
    learning_rate: Any,
    rules: Rules | None = None,
    *,
    scheme: str | Scheme | None = None,
    scalars: Group | None = None,
    scalar_factor: Any = None,
) -> optax.GradientTransformation:
    """Multiplies updates by minus the learning rate, those of a scheme's slow leaves by less.

    Args:
      learning_rate: a number (it may be traced) or an optax schedule of the step.
      rules: what the paths of the tree mean; by default the names of this library's models.
      scheme: the scheme that says which leaves are slow, and how slow. Without it they are Fixup's.
      scalars: the slow leaves, if not as the scheme has it.
      scalar_factor: what the rate is multiplied by for them, if not as the scheme has it; it may be
        traced.

    Raises:
      ValueError: if no scheme has that name, or ``scalar_factor`` is not finite and at least 0;
        from ``init``, what :func:`label_tree` says.
      TypeError: if ``scalar_factor`` is no number.
    """
    if scalar_factor is None:
        factor: Any = schemes.get("fixup" if scheme is None else scheme).scalar_factor
    else:
        factor = checked("scalar_factor", scalar_factor)

    def rate(factor: Any) -> Any:
        if callable(learning_rate):
            schedule: Callable[[Any], Any] = learning_rate
            return lambda count: factor * schedule(count)
        return factor * learning_rate

    return optax.multi_transform(
        {
            "weight": optax.scale_by_learning_rate(rate(1.0)),
            "scalar": optax.scale_by_learning_rate(rate(factor)),
        },
        lambda params: label_tree(params, rules, scheme=scheme, scalars=scalars),
    )


def checked(name: str, value: Any, high: float = float("inf")) -> Any:
    """A number of an optimizer, at least 0 and below ``high``; a traced one is taken as it is.

    Raises:
      ValueError: if it is out of range.
      TypeError: if it is no number.
    """
    if isinstance(value, jax.core.Tracer):
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}={value!r} found; expected a number.") from None
    if not 0 <= number < high:
        raise ValueError(f"{name}={number:g} found; expected 0 <= {name} < {high:g}.")
    return value


__all__ = [
    "SCALARS",
    "UNDECAYED",
    "add_decay",
    "checked",
    "decay_mask",
    "label_tree",
    "scale_by_rates",
]
