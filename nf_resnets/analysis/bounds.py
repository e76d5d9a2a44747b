"""Lower bounds on gradients at initialisation: Theorems 1 and 2 of the Fixup paper.

A ReLU network without normalisation whose biases are 0 is positively homogeneous in the input of
each block and in certain sets of parameters. So the derivative of the loss in the direction of such
a ``u`` itself is ``<dl/du, u> = l(z, y) - H(p)``, exactly (equation 6), and by Cauchy and Schwarz
``||dl/du|| >= (l - H) / ||u||``: logits that blow up make gradients blow up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from nf_resnets import roles
from nf_resnets.analysis.head import random_head
from nf_resnets.analysis.homogeneous import (
    HomogeneousSet,
    homogeneous_sets,
    refuse_inhomogeneous,
)
from nf_resnets.analysis.loss import check_labels, cross_entropies
from nf_resnets.analysis.observe import LogitsFn, ObservedFn, branches, no_perturbations
from nf_resnets.init.tree import float_leaves
from nf_resnets.roles import Rules


class Bound(NamedTuple):
    """Both sides of a lower bound on a gradient, and what lies between them.

    ``lower_bound <= gradient_norm`` is the theorem. ``directional`` is ``<dl/du, u>``: it equals
    ``lower_bound * norm`` where the network is homogeneous in ``u``, and shows where it is not.

    Attributes:
      gradient_norm: ``||dl/du||``.
      lower_bound: ``(l - H) / ||u||``; 0 where ``u`` is 0.
      directional: ``<dl/du, u>``.
      norm: ``||u||``.
    """

    gradient_norm: jax.Array
    lower_bound: jax.Array
    directional: jax.Array
    norm: jax.Array


def excess_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    r"""``l(z, y) - H(p)``, the cross-entropy loss less the entropy of the softmax, per example.

    It is computed as ``(p - y)^T z``, to which equation 6 reduces it, since for small logits ``l``
    and ``H`` are both about ``ln c`` and would cancel.

    Args:
      logits: ``z [B, c]``.
      labels: int32 ``[B]``.

    Returns:
      float32 ``[B]``.

    Raises:
      ValueError: if there is not one label for each example, or one is no class.

    Example:
      >>> excess_loss(jnp.zeros((2, 10)), jnp.array([3, 7])).tolist()
      [0.0, 0.0]
    """
    check_labels(logits, labels)
    z = logits.astype(jnp.float32)
    y = jax.nn.one_hot(jnp.asarray(labels), z.shape[-1])
    # The logits less their largest: sum(p - y) is 0, and large logits would lose digits.
    shifted = z - jax.lax.stop_gradient(z.max(axis=-1, keepdims=True))
    return ((jax.nn.softmax(z) - y) * shifted).sum(axis=-1)


def block_bounds(
    observed: ObservedFn,
    params: Any,
    images: jax.Array,
    labels: jax.Array,
    *,
    rules: Rules | None = None,
) -> Bound:
    r"""Theorem 1 at the input of every residual block, for every example of a batch.

    ``||dl / dx_{i-1}|| >= (l(z, y) - H(p)) / ||x_{i-1}||``, equation 2, in the L2 norm. One
    backward pass of the *sum* of the losses gives all gradients: in a network without normalisation
    no example sees another.

    Args:
      observed: the network (see :func:`nf_resnets.analysis.observe.observe`).
      params: its parameters.
      images: ``[B, H, W, C]``.
      labels: int32 ``[B]``.
      rules: what the paths of ``params`` mean; by default the names of this library's models.

    Returns:
      Arrays ``[L, B]``, the blocks in order from the input.

    Raises:
      ValueError: if a bias is not 0, the network normalises or a label is no class. Under ``jit``
        the biases cannot be looked at; ``directional`` then differs from ``lower_bound * norm``.

    Source: Zhang, Dauphin, Ma, ICLR 2019, Theorem 1 and appendix A.1.

    Example:
      >>> def observed(params, images, perturbations=None):
      ...     shift = 0.0 if perturbations is None else perturbations["block_1"]["input"]
      ...     x = images + shift
      ...     return x @ params["head"]["kernel"], {"block_1": {"input": x}}
      >>> params = {"head": {"kernel": jnp.array([[1.0, 0.0], [0.0, 2.0]])}}
      >>> found = jax.jit(block_bounds, static_argnums=0)(
      ...     observed, params, jnp.eye(2), jnp.array([0, 0]))
      >>> (found.lower_bound <= found.gradient_norm).tolist()
      [[True, True]]
    """
    refuse_inhomogeneous(params, roles.assign(params, rules))
    nothing = no_perturbations(observed, params, images)

    def total(perturbations: Any) -> tuple[jax.Array, Any]:
        logits, taps = observed(params, images, perturbations)
        loss = cross_entropies(logits, labels).sum()
        return loss, (logits, taps)

    gradients, (logits, taps) = jax.grad(total, has_aux=True)(nothing)
    excess = excess_loss(logits, labels)
    found = []
    for gradient, block in zip(branches(gradients), branches(taps, "input"), strict=True):
        x, slopes = (
            each["input"].reshape(len(labels), -1).astype(jnp.float32) for each in (block, gradient)
        )
        norm = jnp.linalg.norm(x, axis=1)
        found.append(
            Bound(
                gradient_norm=jnp.linalg.norm(slopes, axis=1),
                lower_bound=_quotient(excess, norm),
                directional=(slopes * x).sum(axis=1),
                norm=norm,
            )
        )
    return Bound(*(jnp.stack(values) for values in zip(*found, strict=True)))


def parameter_bounds(
    logits_fn: LogitsFn,
    params: Any,
    images: jax.Array,
    labels: jax.Array,
    *,
    rules: Rules | None = None,
    sets: Sequence[HomogeneousSet] | None = None,
) -> dict[str, Bound]:
    r"""Theorem 2 for every positively homogeneous set of a network, on a batch.

    ``||dl_avg / dtheta_ph|| >= 1 / (M ||theta_ph||) sum_m (l^(m) - H(p^(m))) = G(theta_ph)``,
    equation 3, in the L2 norm, with the loss averaged over the batch of ``M`` examples.

    The arguments are those of :func:`block_bounds`, but for the network's plain logits and the
    ``sets``, by default those of :func:`nf_resnets.analysis.homogeneous.homogeneous_sets`.

    Returns:
      For each set, by its name, a bound of scalars.

    Raises:
      ValueError: as :func:`block_bounds`.

    Source: Zhang, Dauphin, Ma, ICLR 2019, Theorem 2, figure 2 and appendix A.2.

    Example:
      >>> params = {"head": {"kernel": jnp.array([[1.0, 0.0], [0.0, 2.0]])}}
      >>> logits_fn = lambda at, x: x @ at["head"]["kernel"]
      >>> found = jax.jit(parameter_bounds, static_argnums=0)(
      ...     logits_fn, params, jnp.eye(2), jnp.array([0, 0]))
      >>> bound = found["head/kernel"]
      >>> float(bound.lower_bound) <= float(bound.gradient_norm)
      True
    """
    refuse_inhomogeneous(params, roles.assign(params, rules))
    values, put = float_leaves(params)

    def average(at: Any) -> tuple[jax.Array, jax.Array]:
        logits = logits_fn(put(at), images)
        loss = cross_entropies(logits, labels).mean()
        return loss, excess_loss(logits, labels).mean()

    gradient, excess = jax.grad(average, has_aux=True)(values)
    bounds = {}
    for each in homogeneous_sets(params, rules=rules) if sets is None else sets:
        weights, slopes = each.of(put(values)), each.of(put(gradient))
        norm = optax.tree.norm(weights)
        bounds[each.name] = Bound(
            gradient_norm=optax.tree.norm(slopes),
            lower_bound=_quotient(excess, norm),
            directional=optax.tree.vdot(slopes, weights),
            norm=norm,
        )
    return bounds


def _quotient(excess: jax.Array, norm: jax.Array) -> jax.Array:
    # Where u is 0 the logits are 0, and l - H with them.
    return jnp.where(norm == 0, 0.0, excess / jnp.where(norm == 0, 1.0, norm))


class HeadDraws(NamedTuple):
    """What equation 4 takes the expectation of, for each draw of the head.

    Attributes:
      excess: ``l - H`` averaged over the batch, ``G(theta_ph) ||theta_ph||``, ``[N]``.
      largest: ``max_i z_i`` averaged over the batch, ``[N]``.
    """

    excess: jax.Array
    largest: jax.Array


def draw_heads(
    logits_fn: LogitsFn,
    params: Any,
    images: jax.Array,
    labels: jax.Array,
    *,
    key: jax.Array,
    draws: int,
    rules: Rules | None = None,
) -> HeadDraws:
    r"""Both sides of equation 4 by Monte Carlo over draws of the head.

    ``E G(theta_ph) >= (E max_i z_i - ln c) / ||theta_ph||``: the mean of ``excess`` is at least
    that of ``largest`` less ``ln c``, for every p.h. set whose norm the head does not change.

    The ``draws`` are how many heads, ``N``; all else is as in :func:`parameter_bounds`.

    Source: Zhang, Dauphin, Ma, ICLR 2019, equations 4 and 10.

    Example:
      >>> params = {"head": {"kernel": jnp.zeros((2, 10))}}
      >>> logits_fn = lambda at, x: x @ at["head"]["kernel"]
      >>> draw = jax.tree_util.Partial(draw_heads, key=jax.random.key(0), draws=8)
      >>> found = jax.jit(draw, static_argnums=0)(logits_fn, params, jnp.eye(2), jnp.array([0, 1]))
      >>> float(found.excess.mean()) >= float(found.largest.mean()) - 2.3026  # ln 10
      True
    """
    heads = jax.random.split(key, draws)

    def one(head_key: jax.Array) -> HeadDraws:
        logits = logits_fn(random_head(params, head_key, rules=rules), images)
        return HeadDraws(excess_loss(logits, labels).mean(), logits.max(axis=-1).mean())

    return jax.lax.map(one, heads)


__all__ = [
    "Bound",
    "HeadDraws",
    "block_bounds",
    "draw_heads",
    "excess_loss",
    "parameter_bounds",
]
