"""AdamW, Lion and Muon in the parameter groups of a scheme."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import optax
from optax import contrib

from nf_resnets import roles
from nf_resnets.optim.groups import checked, grouped, role_map_of, scale_by_rates
from nf_resnets.optim.sgd import sgd
from nf_resnets.parametrization import TRANSFORMS, Kind
from nf_resnets.roles import Group, Leaf, RoleMap, Rules
from nf_resnets.schemes import Scheme

Name = Literal["sgd", "adamw", "lion", "muon"]
"""The optimizers that commands have as ``--optimizer``."""

NAMES: tuple[Name, ...] = get_args(Name)


def adamw(learning_rate: Any, *, momentum: Any = 0.9, b2: float = 0.999, eps: float = 1e-8,
          weight_decay: Any = 0.0, scheme: str | Scheme | None = None, scalars: Group | None = None,
          scalar_factor: Any = None, undecayed: Group | None = None,
          rules: Rules | RoleMap | None = None) -> optax.GradientTransformation:  # fmt: skip
    r"""AdamW, ``theta <- theta - eta (m / (sqrt(v) + eps) + weight_decay theta)``.

    Args:
      learning_rate: ``eta``, a number (it may be traced) or an optax schedule of the step.
      momentum: the fraction of the mean gradient ``m`` that is kept, Adam's ``beta_1``.
      b2: that of the mean square ``v``.
      eps: see above.
      weight_decay: see above; unlike SGD's it does not go through ``m`` and ``v``.
      scheme: whose groups apply; see :func:`nf_resnets.optim.grouped`.
      scalars: see there.
      scalar_factor: see there.
      undecayed: see there.
      rules: see there.

    Returns:
      An optax gradient transformation.

    Raises:
      ValueError, TypeError: as ``sgd``.

    Source: Loshchilov, Hutter, *Decoupled Weight Decay Regularization*, ICLR 2019; optax.

    Example:
      >>> import jax.numpy as jnp
      >>> params = {"head": {"kernel": jnp.ones((2, 2))}, "bias_head": jnp.ones(())}
      >>> optimizer = adamw(0.5)
      >>> updates, _ = optimizer.update(params, optimizer.init(params), params)
      >>> float(updates["head"]["kernel"][0, 0]), round(float(updates["bias_head"]), 6)
      (-0.5, -0.05)
    """
    checked("b2", b2, 1.0)
    checked("eps", eps)
    rule = optax.scale_by_adam(momentum, b2, eps)
    groups = (scheme, scalars, scalar_factor, undecayed, rules)
    return _decoupled(rule, learning_rate, momentum, weight_decay, *groups)


def lion(learning_rate: Any, *, momentum: Any = 0.9, b2: float = 0.99, weight_decay: Any = 0.0,
         scheme: str | Scheme | None = None, scalars: Group | None = None,
         scalar_factor: Any = None, undecayed: Group | None = None,
         rules: Rules | RoleMap | None = None) -> optax.GradientTransformation:  # fmt: skip
    """Lion, whose update is the sign of ``momentum m + (1 - momentum) g``; as :func:`adamw`.

    Source: Chen et al., *Symbolic Discovery of Optimization Algorithms*, NeurIPS 2023; optax.

    Example:
      >>> import jax.numpy as jnp
      >>> params = {"head": {"kernel": jnp.ones((2, 2))}, "bias_head": jnp.ones(())}
      >>> optimizer = lion(0.5)
      >>> updates, _ = optimizer.update(params, optimizer.init(params), params)
      >>> float(updates["head"]["kernel"][0, 0]), round(float(updates["bias_head"]), 6)
      (-0.5, -0.05)
    """
    checked("b2", b2, 1.0)
    rule = optax.scale_by_lion(momentum, b2)
    groups = (scheme, scalars, scalar_factor, undecayed, rules)
    return _decoupled(rule, learning_rate, momentum, weight_decay, *groups)


def muon(learning_rate: Any, *, momentum: Any = 0.95, b2: float = 0.999, eps: float = 1e-8,
         weight_decay: Any = 0.0, scheme: str | Scheme | None = None, scalars: Group | None = None,
         scalar_factor: Any = None, undecayed: Group | None = None,
         rules: Rules | RoleMap | None = None) -> optax.GradientTransformation:  # fmt: skip
    r"""Muon for the weights of branches and shortcuts, AdamW for all other leaves.

    Each matrix's momentum is made nearly orthogonal by five Newton-Schulz steps and multiplied by
    ``sqrt(max(1, outputs / inputs))``. A convolution ``[H, W, C_in, C_out]`` is the matrix
    ``[H W C_in, C_out]``; a dense layer to several axes of outputs, as of attention's heads, has
    one of all of them; of stacked kernels each is a matrix by itself. Stem, embeddings, head,
    vectors and scalars are AdamW's, as Muon's author has it.

    Args:
      learning_rate: ``eta`` of both.
      momentum: the fraction that is kept, of both.
      b2: of AdamW; see there.
      eps: of AdamW; see there.
      weight_decay: see :func:`adamw`.
      scheme: whose groups apply; see :func:`nf_resnets.optim.grouped`.
      scalars: see there.
      scalar_factor: see there.
      undecayed: see there.
      rules: see there.

    Returns:
      An optax gradient transformation.

    Raises:
      ValueError, TypeError: as :func:`adamw`.

    Source: Jordan et al., *Muon: An optimizer for hidden layers in neural networks*, 2024; optax.

    Example:
      >>> import jax.numpy as jnp
      >>> params = {"block_1": {"dense_1": jnp.eye(2)}, "head": {"kernel": jnp.ones((2, 2))}}
      >>> optimizer = muon(1.0, rules=Rules(branch=r"block_(\d+)/dense_(\d)", head="^head/"))
      >>> updates, _ = jax.jit(optimizer.update)(params, optimizer.init(params), params)
      >>> updates["head"]["kernel"].round(3).tolist()  # AdamW's
      [[-1.0, -1.0], [-1.0, -1.0]]
      >>> updates["block_1"]["dense_1"].round(0).tolist()
      [[-1.0, -0.0], [-0.0, -1.0]]
    """
    checked("b2", b2, 1.0)
    checked("eps", eps)

    def rule(params: Any) -> optax.GradientTransformation:
        role_map = role_map_of(params, rules)
        matrices = role_map.map(lambda leaf, _: _matrix(leaf), params)
        labels = role_map.labels(lambda leaf: "muon" if is_orthogonalized(leaf) else "adam")
        # Functions, for optax would call an Equinox module that can be called.
        orthogonal = contrib.scale_by_muon(
            beta=momentum, weight_dimension_numbers=lambda _: matrices
        )
        parts = {"muon": orthogonal, "adam": optax.scale_by_adam(momentum, b2, eps)}
        shapes = optax.stateless(lambda updates, _: role_map.map(_scaled, updates))
        return optax.chain(optax.partition(parts, lambda _: labels), shapes)

    by_tree = optax.GradientTransformation(
        lambda params: rule(params).init(params),
        lambda updates, state, params=None: rule(params).update(updates, state, params),
    )
    groups = (scheme, scalars, scalar_factor, undecayed, rules)
    return _decoupled(by_tree, learning_rate, momentum, weight_decay, *groups)


def is_orthogonalized(leaf: Leaf) -> bool:
    """Whether Muon orthogonalises a leaf's update."""
    return leaf.weight and leaf.role in TRANSFORMS


def _matrix(leaf: Leaf) -> Any:
    """Which axes of a weight are a matrix's rows and columns; nothing for a leaf of AdamW."""
    if not is_orthogonalized(leaf):
        return optax.MaskedNode()
    axes = roles.axes_of(leaf)
    rows, columns = (
        tuple(place for place, axis in enumerate(axes) if axis in letters)
        for letters in ("DHWI", "O")
    )
    return contrib.MuonDimensionNumbers(rows, columns)


def _scaled(leaf: Leaf, update: jax.Array) -> jax.Array:
    """Multiplies an orthogonal update by ``sqrt(max(1, outputs / inputs))``."""
    if not is_orthogonalized(leaf):
        return update
    fan_in, fan_out = leaf.length("DHWI"), leaf.length("O")
    return update * max(1.0, fan_out / fan_in) ** 0.5


def _decoupled(
    rule: optax.GradientTransformation,
    learning_rate: Any,
    momentum: Any,
    weight_decay: Any,
    scheme: str | Scheme | None,
    scalars: Group | None,
    scalar_factor: Any,
    undecayed: Group | None,
    rules: Rules | RoleMap | None,
) -> optax.GradientTransformation:
    """A rule for updates, then weight decay, then the rates of the groups."""
    if not callable(learning_rate):
        checked("learning_rate", learning_rate)
    checked("momentum", momentum, 1.0)
    checked("weight_decay", weight_decay)
    decayed = optax.chain(rule, optax.add_decayed_weights(weight_decay))
    return optax.chain(
        grouped(decayed, scheme, rules, scalars=scalars, scalar_factor=1.0, undecayed=undecayed),
        scale_by_rates(learning_rate, scheme, rules, scalars, scalar_factor),
    )


OPTIMIZERS: dict[str, tuple[Callable[..., optax.GradientTransformation], Kind]] = {
    "sgd": (sgd, "sgd"),
    "adamw": (adamw, "adam"),
    "lion": (lion, "adam"),
    "muon": (muon, "muon"),
}
"""The optimizers by name, and the kind of their updates for ``optim.parametrized``."""

__all__ = ["NAMES", "OPTIMIZERS", "Name", "adamw", "lion", "muon"]
