"""The parameter groups of a scheme: leaves that learn slowly, and leaves without weight decay."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from nf_resnets import roles, schemes
from nf_resnets.roles import Role, RoleMap, Rules
from nf_resnets.schemes import Scheme


def grouped(
    optimizer: optax.GradientTransformation,
    scheme: str | Scheme | None = None,
    rules: Rules | RoleMap | None = None,
    *,
    scalar_factor: Any = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Gives any optax optimizer the parameter groups of a scheme.

    The updates of the slow leaves are multiplied by ``scalar_factor``. The leaves without decay are
    passed to the optimizer as 0, to which any weight decay is proportional; an optimizer that reads
    the parameters for something else, as adaptive clipping does, stands before this one in
    ``optax.chain``. One that keeps them in its state (schedule-free, Prodigy, DoG) is refused if
    there are slow leaves, or the scheme has leaves without decay. The state keeps its dtypes. It
    works inside ``optax.masked`` and ``optax.multi_transform``.

    Args:
      optimizer: any of optax.
      scheme: the scheme of the network, a name or a value. Fixup's scalar biases and multipliers
        learn at a tenth of the rate (at the full rate some runs diverge), RescaleNet's multipliers
        at the full rate and without decay. By default the groups are Fixup's, which have no effect
        on a network without its scalars. ``dataclasses.replace`` of a scheme's ``scalars`` and
        ``undecayed`` makes other groups.
      rules: what the paths of the tree mean, or its map; by default the names of this library's
        models.
      scalar_factor: the factor on the rate of the slow leaves; by default the scheme's. It may be
        traced.

    Raises:
      ValueError: if no scheme has that name; from ``init``, if the tree does not fit the rules, no
        scheme is given and it has multipliers, but is not Fixup's, or the optimizer does not fit.

    Example:
      >>> params = {"head": {"kernel": jnp.ones((2, 2))}, "bias_head": jnp.ones(())}
      >>> optimizer = grouped(optax.adamw(0.5, weight_decay=0.0), "fixup")
      >>> updates, _ = optimizer.update(params, optimizer.init(params), params)
      >>> float(updates["head"]["kernel"][0, 0]), round(float(updates["bias_head"]), 6)
      (-0.5, -0.05)
    """
    chosen = schemes.get("fixup" if scheme is None else scheme)
    factor = chosen.scalar_factor if scalar_factor is None else scalar_factor
    optimizer = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> Any:
        labels = label_tree(params, rules, scheme=scheme)
        slow = isinstance(factor, jax.Array) or factor != 1
        if chosen.undecayed or (slow and "scalar" in jax.tree.leaves(labels)):
            refuse_kept_parameters(optimizer, params)
        return optimizer.init(params)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        labels = label_tree(updates, rules, scheme=scheme)
        if params is not None and chosen.undecayed:
            params = role_map_of(params, rules).map(
                lambda leaf, value: jnp.zeros_like(value) if leaf in chosen.undecayed else value,
                params,
            )
        updates, after = optimizer.update(updates, state, params, **extra)

        def scaled(label: str, value: Any) -> Any:
            return (factor * value).astype(value.dtype) if label == "scalar" else value

        # A float32 weight decay or momentum would make the velocity of bfloat16 weights float32.
        after = jax.tree.map(
            lambda new, old: new if new.dtype == old.dtype else new.astype(old.dtype), after, state
        )
        return jax.tree.map(scaled, labels, updates), after

    return optax.GradientTransformationExtraArgs(init, update)


def refuse_kept_parameters(optimizer: optax.GradientTransformation, params: Any) -> None:
    """Refuses an optimizer that compares parameters with its own, where either are scaled."""
    program = jax.make_jaxpr(optimizer.init)(params).jaxpr
    read = [program.outvars, *(equation.invars for equation in program.eqns)]
    if {id(value) for values in read for value in values} & {*map(id, program.invars)}:
        raise ValueError(
            "an optimizer found that keeps the parameters in its state; expected one that reads "
            "them for its weight decay only, since leaves have a rate or a decay of their own."
        )


def at_rates(
    rule: optax.GradientTransformation,
    learning_rate: Any,
    scheme: str | Scheme | None,
    scalar_factor: Any,
    rules: Rules | RoleMap | None,
) -> optax.GradientTransformation:
    """Multiplies the updates of a rule by minus the learning rate, those of slow leaves by less.

    Their factor meets the rate and not the update, as :func:`grouped` has it: the rows of sweeps
    are rounded so, and are made again bit for bit.
    """
    chosen = schemes.get("fixup" if scheme is None else scheme)
    factor = chosen.scalar_factor if scalar_factor is None else scalar_factor

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        scheduled = callable(learning_rate)
        rate = learning_rate(state.count) if scheduled else learning_rate
        rates = {"weight": -rate, "scalar": -(factor * rate)}

        def scaled(label: str, value: Any) -> Any:
            by = rates[label]
            return (jnp.asarray(by, value.dtype) if scheduled else by) * value

        labels = label_tree(updates, rules, scheme=scheme)
        after = optax.ScaleByScheduleState(optax.safe_increment(state.count))
        return jax.tree.map(scaled, labels, updates), after

    def init(params: Any) -> Any:
        return optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))

    return optax.chain(
        grouped(rule, scheme, rules, scalar_factor=1.0), optax.GradientTransformation(init, update)
    )


def role_map_of(params: Any, rules: Rules | RoleMap | None) -> RoleMap:
    """The roles of a tree, or of the part of one that ``optax.masked`` passes on."""

    def is_masked(leaf: Any) -> bool:
        return isinstance(leaf, optax.MaskedNode)

    part = any(map(is_masked, jax.tree.leaves(params, is_leaf=is_masked)))
    return roles.assign(params, rules, part=part or isinstance(rules, RoleMap))


def label_tree(
    params: Any, rules: Rules | RoleMap | None = None, *, scheme: str | Scheme | None = None
) -> Any:
    """Labels each leaf ``"scalar"`` or ``"weight"``, as ``optax.multi_transform`` takes it.

    The slow leaves are ``"scalar"``; the arguments and errors are those of :func:`grouped`.

    Example:
      >>> import jax.numpy as jnp
      >>> label_tree({"stem": {"kernel": jnp.ones((3, 3, 3, 16))}, "bias_stem": jnp.zeros(())})
      {'bias_stem': 'scalar', 'stem': {'kernel': 'weight'}}
    """
    slow = schemes.get("fixup" if scheme is None else scheme).scalars
    if not slow:  # whatever the leaves are
        return jax.tree.map(lambda _: "weight", params)
    role_map = role_map_of(params, rules)
    found = {leaf.role: leaf.path for leaf in role_map.leaves}
    other = found.get(Role.CHANNEL_BIAS)
    if Role.SCALAR_BIAS not in found:
        other = other or found.get(Role.MULTIPLIER)
    if scheme is None and other:
        raise ValueError(
            f"leaf {other!r} is not of a Fixup network, and no scheme is given; expected scheme= "
            "to say which leaves learn slowly (Fixup trains multipliers at a tenth of the rate, "
            "RescaleNet at the full rate)."
        )
    return role_map.labels(lambda leaf: "scalar" if leaf in slow else "weight")
