"""Lower bounds on gradients at initialisation: Theorems 1 and 2 of the Fixup paper.

A ReLU network without normalization whose biases are 0 is positively homogeneous in the input of
each block and in certain sets of parameters: ``f(x; a u) = a f(x; u)`` for every ``a > 0``. So the
derivative of the loss in the direction of such a ``u`` itself is ``<dl/du, u> = l(z, y) - H(p)``,
exactly (equation 6), and by Cauchy and Schwarz ``||dl/du|| >= (l - H) / ||u||``: logits that blow
up make gradients blow up.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from nf_resnets import roles
from nf_resnets.analysis.observe import Network, slopes
from nf_resnets.analysis.signal import quotient
from nf_resnets.init.tree import all_zero, float_leaves, is_concrete
from nf_resnets.roles import Role, RoleMap, Rules
from nf_resnets.roles.assignment import is_bias


class Bound(NamedTuple):
    """Both sides of a lower bound on a gradient, and what lies between them.

    ``lower_bound <= gradient_norm`` is the theorem. ``directional`` is ``<dl/du, u>``: it equals
    ``lower_bound * norm`` where the network is homogeneous in ``u``, and shows where it is not.

    Attributes:
      gradient_norm: ``||dl/du||``.
      lower_bound: ``(l - H) / ||u||``; 0 where ``u``, and with it the logits and ``l - H``, is 0.
      directional: ``<dl/du, u>``.
      norm: ``||u||``.
    """

    gradient_norm: jax.Array
    lower_bound: jax.Array
    directional: jax.Array
    norm: jax.Array


def excess_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    r"""``l(z, y) - H(p)``, the cross-entropy loss less the entropy of the softmax, ``[B]``.

    Of logits ``z [B, c]`` it is computed as ``(p - y)^T z``, to which equation 6 reduces it, since
    for small logits ``l`` and ``H`` are both about ``ln c`` and would cancel.

    Example:
      >>> excess_loss(jnp.zeros((2, 10)), jnp.array([3, 7])).tolist()
      [0.0, 0.0]
    """
    z = logits.astype(jnp.float32)
    y = jax.nn.one_hot(labels, z.shape[-1])
    # The logits less their largest: sum(p - y) is 0, and large logits would lose digits.
    shifted = z - jax.lax.stop_gradient(z.max(axis=-1, keepdims=True))
    return ((jax.nn.softmax(z) - y) * shifted).sum(axis=-1)


def block_bounds(
    network: Network,
    params: Any,
    images: jax.Array,
    labels: jax.Array,
    *,
    rules: Rules | RoleMap | None = None,
    **answers: Any,
) -> Bound:
    r"""Theorem 1 at the input of every residual block, for every example of a batch.

    ``||dl / dx_{i-1}|| >= (l(z, y) - H(p)) / ||x_{i-1}||``, equation 2, in the L2 norm. One
    backward pass of the *sum* of the losses gives all gradients: in a network without normalization
    no example sees another.

    Args:
      network: ``network(params, images) -> logits [B, c]``.
      params: its parameters.
      images: a batch.
      labels: int32 ``[B]``.
      rules: the roles of ``params``; by default by the names of this library's models.
      **answers: as for :func:`nf_resnets.analysis.observe`.

    Returns:
      Arrays ``[L, B]``, the blocks in order from the input.

    Raises:
      ValueError: if a bias is not 0 or the network normalizes. Under ``jit`` the biases cannot be
        looked at; ``directional`` then differs from ``lower_bound * norm``.

    Source: Zhang, Dauphin, Ma, ICLR 2019, Theorem 1 and appendix A.1.
    """
    refuse_inhomogeneous(params, roles.assign(params, rules))

    def total(logits: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).sum()

    logits, activations, gradients = slopes(total, network, params, images, **answers)
    excess = excess_loss(logits, labels)

    def bound(x: jax.Array, slope: jax.Array) -> Bound:
        x, slope = (of.reshape(len(labels), -1).astype(jnp.float32) for of in (x, slope))
        norm = jnp.linalg.norm(x, axis=1)
        return Bound(
            jnp.linalg.norm(slope, axis=1), quotient(excess, norm), (slope * x).sum(axis=1), norm
        )

    pairs = zip(activations, gradients, strict=True)
    bounds = [bound(at.input, gradient.input) for at, gradient in pairs]
    return jax.tree.map(lambda *of: jnp.stack(of), *bounds)


def parameter_bounds(
    network: Network,
    params: Any,
    images: jax.Array,
    labels: jax.Array,
    *,
    rules: Rules | RoleMap | None = None,
) -> dict[str, Bound]:
    r"""Theorem 2 for every positively homogeneous set of a network, on a batch.

    ``||dl_avg / dtheta_ph|| >= 1 / (M ||theta_ph||) sum_m (l^(m) - H(p^(m))) = G(theta_ph)``,
    equation 3, in the L2 norm, with the loss averaged over the batch of ``M`` examples. The sets
    are those of figure 2: each weight of the stem, the head's, and each convolution on a skip path
    together with one of the branch beside it. The arguments are those of :func:`block_bounds`.

    Returns:
      For each set, by its weights' paths, a bound of scalars.

    Raises:
      ValueError: as :func:`block_bounds`.

    Source: Zhang, Dauphin, Ma, ICLR 2019, Theorem 2, definition 2, figure 2 and appendix A.2.

    Example:
      >>> params = {"head": {"kernel": jnp.array([[1.0, 0.0], [0.0, 2.0]])}}
      >>> network = lambda at, x: x @ at["head"]["kernel"]
      >>> bound = parameter_bounds(network, params, jnp.eye(2), jnp.array([0, 0]))["head/kernel"]
      >>> float(bound.lower_bound) <= float(bound.gradient_norm)
      True
    """
    role_map = roles.assign(params, rules)
    refuse_inhomogeneous(params, role_map)
    values, put = float_leaves(params)

    def average(at: Any) -> tuple[jax.Array, jax.Array]:
        logits = network(put(at), images)
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return loss, excess_loss(logits, labels).mean()

    gradient, excess = jax.grad(average, has_aux=True)(values)
    weights, slopes = (jax.tree.leaves(put(each)) for each in (values, gradient))
    bounds = {}
    for name, members in homogeneous_sets(role_map).items():
        theta, slope = ([of[at] for at in members] for of in (weights, slopes))
        norm = optax.tree.norm(theta)
        bounds[name] = Bound(
            gradient_norm=optax.tree.norm(slope),
            lower_bound=quotient(excess, norm),
            directional=optax.tree.vdot(slope, theta),
            norm=norm,
        )
    return bounds


def homogeneous_sets(role_map: RoleMap) -> dict[str, tuple[int, ...]]:
    """The positively homogeneous sets of figure 2, by name, as positions among the leaves."""
    numbered = [pair for pair in enumerate(role_map.leaves) if pair[1].weight]
    sets: dict[str, tuple[int, ...]] = {
        leaf.path: (at,)
        for role in (Role.STEM, Role.HEAD)
        for at, leaf in numbered
        if leaf.role is role
    }
    for at, shortcut in numbered:
        if shortcut.role is Role.SHORTCUT:
            (k,) = role_map.branches_of(shortcut, 1)
            layers = [pair for pair in numbered if pair[1].branches == (k,)]
            for other, layer in sorted(layers, key=lambda pair: pair[1].layer):
                sets[f"{shortcut.path} + {layer.path}"] = (at, other)
    return sets


def refuse_inhomogeneous(params: Any, role_map: RoleMap) -> None:
    """Refuses norms, embeddings, and biases that are not 0; traced ones cannot be looked at."""
    norms = [branch.name for branch in role_map.branches if branch.normalized]
    norms += [leaf.path for leaf in role_map.leaves if leaf.role in (Role.NORM, Role.EMBEDDING)]
    if norms:
        raise ValueError(
            f"a norm or an embedding found at {norms[0]!r}; expected a network that is positively "
            "homogeneous, without normalization or attention, as Theorems 1 and 2 assume."
        )
    for leaf, value in role_map.items(params):
        vector = leaf.role in roles.LAYER_ROLES or is_bias(leaf.path)
        bias = (vector and not leaf.weight) or leaf.role in (Role.SCALAR_BIAS, Role.CHANNEL_BIAS)
        if bias and is_concrete(value) and not all_zero(value):
            raise ValueError(
                f"leaf {leaf.path!r} is a bias that is not 0; expected all biases to be 0, as at "
                "initialisation, as Theorems 1 and 2 assume."
            )
