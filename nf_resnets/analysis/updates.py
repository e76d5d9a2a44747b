"""How far one step of gradient descent moves a network as a function: section 3 of the Fixup paper.

Fixup's goal is that ``||Delta f(x)|| / eta`` does not depend on the depth as ``eta -> 0``. The
change is measured twice: exactly, at a small ``eta``, and to first order, without one.

Everywhere ``logits_fn`` is the network, ``params`` its parameters, ``images`` are ``[B, H, W, C]``,
``labels`` int32 ``[B]``, and the loss is the cross-entropy averaged over the batch. Labels of
another shape, or that are no class, raise a ``ValueError``; traced ones cannot be looked at.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from nf_resnets.analysis.loss import cross_entropies
from nf_resnets.analysis.observe import LogitsFn
from nf_resnets.init.tree import float_leaves


def loss_gradient(logits_fn: LogitsFn, params: Any, images: jax.Array, labels: jax.Array) -> Any:
    """The gradient of the loss, a tree like ``params``, None for leaves that are no float arrays.

    Here and below the parameters may be an Equinox module or have integers among them; those of
    half precision count as float32.

    Example:
      >>> logits_fn = lambda params, x: x @ params
      >>> loss_gradient(logits_fn, jnp.zeros((2, 2)), jnp.ones((1, 2)), jnp.array([1])).tolist()
      [[0.5, -0.5], [0.5, -0.5]]
    """
    values, put = float_leaves(params)

    def loss(at: Any) -> jax.Array:
        logits = logits_fn(put(at), images)
        return cross_entropies(logits, labels).mean()

    return put(jax.grad(loss)(values), rest=False)


def update(
    logits_fn: LogitsFn,
    params: Any,
    images: jax.Array,
    labels: jax.Array,
    learning_rate: jax.Array | float,
) -> jax.Array:
    r"""The change of the logits by one step of gradient descent.

    ``Delta f(x) = f(x; theta - eta dl/dtheta) - f(x; theta)`` for the images of the loss.

    In float32 an ``eta`` that is too small drowns it in the rounding of the logits; see
    :func:`small_rate`.

    Returns:
      ``Delta f [B, c]``.

    Source: Zhang, Dauphin, Ma, ICLR 2019, section 3.

    Example:
      >>> logits_fn = lambda params, x: x @ params
      >>> update(logits_fn, jnp.zeros((2, 2)), jnp.ones((1, 2)), jnp.array([1]), 0.5).tolist()
      [[-0.5, 0.5]]
    """
    gradient = jax.tree.leaves(loss_gradient(logits_fn, params, images, labels))
    values, put = float_leaves(params)
    moved = [p - learning_rate * g for p, g in zip(values, gradient, strict=True)]
    return logits_fn(put(moved), images) - logits_fn(put(values), images)


def first_order_update(
    logits_fn: LogitsFn, params: Any, images: jax.Array, labels: jax.Array
) -> jax.Array:
    r"""The limit of ``Delta f / eta`` as ``eta -> 0``: ``-J J^T dl/dz`` with ``J = df/dtheta``.

    ``J^T`` is a backward pass. ``J`` is the transpose of that, a backward pass through a backward
    pass: the convolutions of our networks have no forward mode on a CPU.

    Returns:
      An array ``[B, c]``.

    Example:
      >>> matrix = jnp.array([[1.0, 2.0], [3.0, 4.0]])  # z = x matrix, so Delta z = -x x^T dl/dz
      >>> found = first_order_update(
      ...     lambda params, x: x @ params, matrix, jnp.ones((1, 2)), jnp.array([1]))
      >>> bool(jnp.allclose(found, -2 * (jax.nn.softmax(jnp.array([[4.0, 6.0]])) - jnp.eye(2)[1:])))
      True
    """
    values, put = float_leaves(params)
    logits, backward = jax.vjp(lambda at: logits_fn(put(at), images), values)
    slope = jax.grad(lambda z: cross_entropies(z, labels).mean())(logits)
    # J^T is linear, so where its own derivative is taken does not matter.
    gradient, transposed = jax.vjp(lambda z: backward(z)[0], slope)
    (moved,) = transposed(gradient)
    return -moved


def small_rate(logits_fn: LogitsFn, params: Any, images: jax.Array, labels: jax.Array) -> jax.Array:
    r"""A learning rate at which :func:`update` is near its first order in float32.

    The rounding of the logits leaves a relative error of ``eps ||f|| / ||Delta f||``, the second
    order one of about ``||Delta f|| / ||f||``, times the number of layers for a deep network. Both
    are ``sqrt(eps) = 3.5e-4`` for a change of ``sqrt(eps) ||f||``. Logits that are all zero, as at
    the start of Fixup, round nothing: the parameters then move by ``sqrt(eps)`` of their norm.

    Returns:
      ``eta``, float32 ``[]``.

    Example:
      >>> rate = jax.jit(small_rate, static_argnums=0)(
      ...     lambda params, x: x @ params, jnp.eye(2), jnp.ones((1, 2)), jnp.array([1]))
      >>> 1e-5 < float(rate) < 1e-2
      True
    """
    gradient = optax.tree.norm(loss_gradient(logits_fn, params, images, labels))
    change = jnp.linalg.norm(first_order_update(logits_fn, params, images, labels))
    values, put = float_leaves(params)
    size = jnp.linalg.norm(logits_fn(put(values), images))
    by_logits = size / jnp.where(change == 0, 1.0, change)
    by_params = optax.tree.norm(values) / jnp.where(gradient == 0, 1.0, gradient)
    root = jnp.sqrt(jnp.finfo(jnp.float32).eps)
    return root * jnp.where((size == 0) | (change == 0), by_params, by_logits)


def update_size(
    logits_fn: LogitsFn,
    params: Any,
    images: jax.Array,
    labels: jax.Array,
    learning_rate: jax.Array | float | None = None,
) -> jax.Array:
    r"""``||Delta f(x)|| / eta`` for every example, in the L2 norm over the classes.

    With Fixup's zero head only the head moves in the first step; draw it at random
    (:func:`nf_resnets.analysis.random_head`) to see the residual branches.

    With ``learning_rate=None`` it is the limit ``eta -> 0``, to first order.

    Returns:
      float32 ``[B]``; of a Transformer's tokens ``[B, T]``.

    Example:
      >>> logits_fn = lambda params, x: x @ params
      >>> update_size(logits_fn, jnp.zeros((2, 2)), jnp.ones((1, 2)), jnp.array([1])).tolist()
      [1.4142]
    """
    if learning_rate is None:
        return jnp.linalg.norm(first_order_update(logits_fn, params, images, labels), axis=-1)
    change = update(logits_fn, params, images, labels, learning_rate)
    return jnp.linalg.norm(change, axis=-1) / learning_rate


__all__ = ["first_order_update", "loss_gradient", "small_rate", "update", "update_size"]
