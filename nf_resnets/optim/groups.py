"""Parameter groups as label trees: which leaves learn slowly, and which have no weight decay."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from nf_resnets import roles, schemes
from nf_resnets.roles import Group, Role, RoleMap, Rules
from nf_resnets.schemes import SCALARS, UNDECAYED, Scheme


def grouped(
    optimizer: optax.GradientTransformation,
    scheme: str | Scheme | None = None,
    rules: Rules | RoleMap | None = None,
    *,
    scalars: Group | None = None,
    scalar_factor: Any = None,
    undecayed: Group | None = None,
) -> optax.GradientTransformationExtraArgs:
    r"""Gives any optax optimizer the parameter groups of a scheme.

    The updates of the slow leaves are multiplied by ``scalar_factor``. The leaves without decay are
    passed to the optimizer as 0, which any weight decay is proportional to; an optimizer that reads
    the parameters for something else, as adaptive clipping does, stands before this one in
    ``optax.chain``. The state keeps its dtypes. It works inside ``optax.masked`` and
    ``optax.multi_transform``.

    Args:
      optimizer: any of optax.
      scheme: the scheme of the network, which defines the groups. Fixup's scalar biases and
        multipliers learn at a tenth of the rate (at the full rate some runs diverge), RescaleNet's
        multipliers at the full rate and without decay. Without ``scheme`` the groups are Fixup's,
        which have no effect on a network without its scalars.
      rules: what the paths of the tree mean, or its map; by default the names of this library's
        models.
      scalars: the slow leaves; by default the scheme's. ``optim.SCALARS |
        roles.Group((Role.ALPHA,))`` adds SkipInit's alpha, which its paper trains at the full rate.
      scalar_factor: the factor on the rate of the slow leaves; by default the scheme's. It may be
        traced.
      undecayed: the leaves without weight decay (see :func:`decay_mask`); by default the scheme's.
        ``optim.UNDECAYED`` is RescaleNet's choice.

    Returns:
      An optax gradient transformation.

    Raises:
      ValueError: if no scheme has that name or ``scalar_factor`` is below 0; from ``init``, if the
        tree does not fit the rules, or no scheme is given and it has multipliers, but is not
        Fixup's.
      TypeError: if a group is none; from ``init``, if a leaf has no gradient.

    Example:
      >>> params = {"head": {"kernel": jnp.ones((2, 2))}, "bias_head": jnp.ones(())}
      >>> optimizer = grouped(optax.adamw(0.5, weight_decay=0.0), "fixup")
      >>> updates, _ = optimizer.update(params, optimizer.init(params), params)
      >>> float(updates["head"]["kernel"][0, 0]), round(float(updates["bias_head"]), 6)
      (-0.5, -0.05)
    """
    if scalar_factor is None:
        scalar_factor = schemes.get("fixup" if scheme is None else scheme).scalar_factor
    checked("scalar_factor", scalar_factor)
    if undecayed is None:
        undecayed = Group() if scheme is None else schemes.get(scheme).undecayed
    _refuse_no_group(scalars=scalars, undecayed=undecayed)
    optimizer = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> Any:
        refuse_untrainable(params)
        label_tree(params, rules, scheme=scheme, scalars=scalars)
        return optimizer.init(params)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        tree = updates if params is None else params
        labels = label_tree(tree, rules, scheme=scheme, scalars=scalars)
        if params is not None and undecayed:
            decays = decay_mask(params, rules, undecayed=undecayed)
            params = jax.tree.map(
                lambda value, decay: value if decay else jnp.zeros_like(value), params, decays
            )
        updates, after = optimizer.update(updates, state, params, **extra)
        updates = jax.tree.map(
            lambda update, label: (
                (scalar_factor * update).astype(update.dtype) if label == "scalar" else update
            ),
            updates,
            labels,
        )
        # A float32 weight decay or momentum would make the velocity of bfloat16 weights float32.
        return updates, jax.tree.map(lambda new, old: new.astype(old.dtype), after, state)

    return optax.GradientTransformationExtraArgs(init, update)


def scale_by_rates(
    learning_rate: Any,
    scheme: str | Scheme | None,
    rules: Rules | RoleMap | None,
    scalars: Group | None,
    scalar_factor: Any,
) -> optax.GradientTransformation:
    """Multiplies updates by minus the learning rate, those of slow leaves by less.

    The factor meets the rate and not the update, as :func:`grouped` has it: the rows of sweeps are
    rounded so, and are made again bit for bit. The arguments are those of ``grouped``.
    """
    if scalar_factor is None:
        scalar_factor = schemes.get("fixup" if scheme is None else scheme).scalar_factor
    checked("scalar_factor", scalar_factor)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        scheduled = callable(learning_rate)
        rate = learning_rate(state.count) if scheduled else learning_rate
        rates = {"weight": -rate, "scalar": -(scalar_factor * rate)}

        def scaled(value: Any, label: str) -> Any:
            by = rates[label]
            return (jnp.asarray(by, value.dtype) if scheduled else by) * value

        labels = label_tree(updates, rules, scheme=scheme, scalars=scalars)
        after = optax.ScaleByScheduleState(optax.safe_increment(state.count))
        return jax.tree.map(scaled, updates, labels), after

    return optax.GradientTransformation(
        lambda params: optax.ScaleByScheduleState(jnp.zeros((), jnp.int32)), update
    )


def role_map_of(params: Any, rules: Rules | RoleMap | None) -> RoleMap:
    """The roles of a tree, or of the part of one that ``optax.masked`` passes on."""

    def is_masked(leaf: Any) -> bool:
        return isinstance(leaf, optax.MaskedNode)

    part = any(map(is_masked, jax.tree.leaves(params, is_leaf=is_masked)))
    return roles.assign(params, rules, part=part or isinstance(rules, RoleMap))


def decay_mask(
    params: Any, rules: Rules | RoleMap | None = None, *, undecayed: Group = UNDECAYED
) -> Any:
    """Tells for each leaf whether it decays, as ``optax.add_decayed_weights`` takes it.

    Args:
      params: a parameter tree.
      rules: what its paths mean; by default the names of this library's models.
      undecayed: the leaves without weight decay; by default RescaleNet's, and vectors and scalars
        that no rule names, which may be biases.

    Returns:
      A tree of the same structure with a bool for each leaf.

    Raises:
      ValueError: if the tree does not fit the rules (see :func:`nf_resnets.roles.assign`).
      TypeError: if ``undecayed`` is no group.

    Source: Shao et al., *Is Normalization Indispensable for Training Deep Neural Networks?*,
    NeurIPS 2020, section 4, and its published code.

    Example:
      >>> import jax.numpy as jnp
      >>> decay_mask({"head": {"kernel": jnp.ones((16, 10)), "bias": jnp.zeros(10)}})
      {'head': {'bias': False, 'kernel': True}}
    """
    _refuse_no_group(undecayed=undecayed)
    return role_map_of(params, rules).map(lambda leaf, _: leaf not in undecayed, params)


def label_tree(
    params: Any,
    rules: Rules | RoleMap | None = None,
    *,
    scheme: str | Scheme | None = None,
    scalars: Group | None = None,
) -> Any:
    """Labels each leaf ``"scalar"`` or ``"weight"``, as ``optax.multi_transform`` takes it.

    Args:
      params: a parameter tree.
      rules: as for :func:`decay_mask`.
      scheme: the scheme that says which leaves are labelled ``"scalar"``. Without it they are
        Fixup's scalar biases and multipliers.
      scalars: those leaves, if not as the scheme has it; ``optim.SCALARS | Group((Role.ALPHA,))``
        adds SkipInit's.

    Returns:
      A tree of the same structure with a string for each leaf.

    Raises:
      ValueError: if the tree does not fit the rules (see :func:`nf_resnets.roles.assign`), or
        neither ``scheme`` nor ``scalars`` is given and the tree is not Fixup's: it has RescaleNet's
        channel biases, or multipliers without scalar biases.
      TypeError: if ``scalars`` is no group.

    Example:
      >>> import jax.numpy as jnp
      >>> label_tree({"stem": {"kernel": jnp.ones((3, 3, 3, 16))}, "bias_stem": jnp.zeros(())})
      {'bias_stem': 'scalar', 'stem': {'kernel': 'weight'}}
    """
    _refuse_no_group(scalars=scalars)
    if scalars == Group():  # whatever the leaves are
        return jax.tree.map(lambda _: "weight", params)
    role_map = role_map_of(params, rules)
    if scalars is None:
        if scheme is None:
            _refuse_others_than_fixup(role_map)
        scalars = SCALARS if scheme is None else schemes.get(scheme).scalars
    slow = scalars
    return role_map.labels(lambda leaf: "scalar" if leaf in slow else "weight")


def _refuse_no_group(**groups: Any) -> None:
    """Refuses a tuple of roles, in which no leaf is."""
    for name, group in groups.items():
        if group is not None and not isinstance(group, Group):
            raise TypeError(
                f"{name} is a {type(group).__name__}; expected an optim.Group, such as "
                "Group((Role.ALPHA,))."
            )


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


def refuse_untrainable(params: Any) -> None:
    """Refuses leaves that have no gradient: functions, and counters, which would decay.

    A whole Equinox module has such leaves, and so has all of an NNX network's state.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not hasattr(leaf, "dtype") and not isinstance(leaf, int | float):
            found = type(leaf).__name__
        elif jnp.issubdtype(jnp.result_type(leaf), jnp.inexact):
            continue
        else:
            found = f"{jnp.result_type(leaf)}"
        raise TypeError(
            f"leaf {roles.path_name(path)!r} of params is a {found}; expected floating-point "
            "arrays alone, as equinox.filter(network, equinox.is_inexact_array) or "
            "nnx.state(network, nnx.Param) gives them."
        )


def checked(name: str, value: Any, high: float = float("inf")) -> None:
    """Refuses a number of an optimizer that is below 0 or not below ``high``; not a traced one."""
    if isinstance(value, jax.core.Tracer):
        return
    try:
        if isinstance(value, str):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}={value!r} found; expected a number.") from None
    if not 0 <= number < high:
        raise ValueError(f"{name}={number:g} found; expected 0 <= {name} < {high:g}.")


__all__ = [
    "SCALARS", "UNDECAYED", "checked", "decay_mask", "grouped", "label_tree", "refuse_untrainable",
    "role_map_of", "scale_by_rates",
]  # fmt: skip
