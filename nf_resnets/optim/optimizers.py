"""SGD, AdamW, Lion and Muon in the parameter groups of a scheme."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import optax
from jax.sharding import NamedSharding
from optax import contrib

from nf_resnets import roles
from nf_resnets.optim.groups import at_rates, role_map_of
from nf_resnets.parametrization import TRANSFORMS, Kind
from nf_resnets.roles import Leaf, RoleMap, Rules
from nf_resnets.schemes import Scheme

Name = Literal["sgd", "adamw", "lion", "muon"]
"""The optimizers that commands have as ``--optimizer``."""

NAMES: tuple[Name, ...] = get_args(Name)


def sgd(learning_rate: Any, *, momentum: Any = 0.9, nesterov: bool = False, weight_decay: Any = 0.0,
        scheme: str | Scheme | None = None, scalar_factor: Any = None,
        rules: Rules | RoleMap | None = None) -> optax.GradientTransformation:  # fmt: skip
    r"""SGD with heavy-ball momentum and L2, in the parameter groups of a scheme.

    The update is ``v <- momentum v + (g + weight_decay theta)``, ``theta <- theta - eta v``. The L2
    term goes through the momentum, as in Fixup's published code. With Nesterov's momentum it is
    ``theta <- theta - eta (g + weight_decay theta + momentum v)`` with the new ``v``.

    Args:
      learning_rate: ``eta``, a number (it may be traced) or an optax schedule of the step.
      momentum: the fraction of the last velocity that is kept, in ``[0, 1)``.
      nesterov: whether to use Nesterov's momentum, as in Wide ResNets' published code.
      weight_decay: the coefficient of ``theta`` in the gradient; it may be traced.
      scheme: whose groups apply; see :func:`nf_resnets.optim.grouped`, also for the errors.
      scalar_factor: the factor on ``eta`` for the slow leaves; by default the scheme's.
      rules: what the paths of the tree mean, or its map.

    Source: Zhang, Dauphin, Ma, ICLR 2019, and its published code (0.1 for scalars).

    Example:
      >>> import jax.numpy as jnp
      >>> params = {"head": {"kernel": jnp.ones((2, 2))}, "bias_head": jnp.ones(())}
      >>> optimizer = sgd(0.5)
      >>> updates, _ = optimizer.update(params, optimizer.init(params), params)
      >>> float(updates["head"]["kernel"][0, 0]), round(float(updates["bias_head"]), 6)
      (-0.5, -0.05)
    """
    decay, trace = optax.add_decayed_weights(weight_decay), optax.trace(momentum, nesterov)
    return at_rates(optax.chain(decay, trace), learning_rate, scheme, scalar_factor, rules)


def adamw(learning_rate: Any, *, momentum: Any = 0.9, b2: float = 0.999, eps: float = 1e-8,
          weight_decay: Any = 0.0, scheme: str | Scheme | None = None, scalar_factor: Any = None,
          rules: Rules | RoleMap | None = None) -> optax.GradientTransformation:  # fmt: skip
    r"""AdamW, ``theta <- theta - eta (m / (sqrt(v) + eps) + weight_decay theta)``; as :func:`sgd`.

    ``momentum`` is Adam's ``beta_1``. Weight decay does not go through ``m`` and ``v``.

    Source: Loshchilov, Hutter, *Decoupled Weight Decay Regularization*, ICLR 2019; optax.
    """
    rule = optax.scale_by_adam(momentum, b2, eps)
    rule = optax.chain(rule, optax.add_decayed_weights(weight_decay))
    return at_rates(rule, learning_rate, scheme, scalar_factor, rules)


def lion(learning_rate: Any, *, momentum: Any = 0.9, b2: float = 0.99, weight_decay: Any = 0.0,
         scheme: str | Scheme | None = None, scalar_factor: Any = None,
         rules: Rules | RoleMap | None = None) -> optax.GradientTransformation:  # fmt: skip
    """Lion, whose update is the sign of ``momentum m + (1 - momentum) g``; as :func:`adamw`.

    Source: Chen et al., *Symbolic Discovery of Optimization Algorithms*, NeurIPS 2023; optax.
    """
    rule = optax.scale_by_lion(momentum, b2)
    rule = optax.chain(rule, optax.add_decayed_weights(weight_decay))
    return at_rates(rule, learning_rate, scheme, scalar_factor, rules)


def muon(learning_rate: Any, *, momentum: Any = 0.95, b2: float = 0.999, eps: float = 1e-8,
         weight_decay: Any = 0.0, scheme: str | Scheme | None = None, scalar_factor: Any = None,
         rules: Rules | RoleMap | None = None) -> optax.GradientTransformation:  # fmt: skip
    r"""Muon for the weights of branches and shortcuts, :func:`adamw` for all other leaves.

    Each matrix's momentum is made nearly orthogonal by five Newton-Schulz steps and multiplied by
    ``sqrt(max(1, outputs / inputs))``. A convolution ``[H, W, C_in, C_out]`` is the matrix
    ``[H W C_in, C_out]``; a dense layer to several axes of outputs, as of attention's heads, has
    one of all of them; of stacked kernels each is a matrix by itself. Stem, embeddings, head,
    vectors and scalars are AdamW's, as Muon's author has it.

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

    def by_tree(params: Any) -> optax.GradientTransformation:
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

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        return _placed(by_tree(updates).update, updates, state)

    rule = optax.GradientTransformation(lambda params: by_tree(params).init(params), update)
    rule = optax.chain(rule, optax.add_decayed_weights(weight_decay))
    return at_rates(rule, learning_rate, scheme, scalar_factor, rules)


def _placed(update: Callable[..., Any], updates: Any, state: Any) -> tuple[Any, Any]:
    """Lets the compiler place what is reshaped where the axes of a mesh are explicit."""
    meshes = [jax.typeof(leaf).sharding.mesh for leaf in jax.tree.leaves(updates)]
    mesh = next((each for each in meshes if not each.empty), None)
    if mesh is None:
        return update(updates, state)
    shardings = jax.tree.map(
        lambda leaf: NamedSharding(mesh, jax.typeof(leaf).sharding.spec), (updates, state)
    )
    return jax.sharding.auto_axes(update, out_sharding=shardings)(updates, state)


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
    if not is_orthogonalized(leaf):
        return update
    return update * max(1.0, leaf.length("O") / leaf.length("DHWI")) ** 0.5


OPTIMIZERS: dict[str, tuple[Callable[..., optax.GradientTransformation], Kind]] = {
    "sgd": (sgd, "sgd"),
    "adamw": (adamw, "adam"),
    "lion": (lion, "adam"),
    "muon": (muon, "muon"),
}
"""The optimizers by name, and the kind of their updates for ``optim.parametrized``."""
