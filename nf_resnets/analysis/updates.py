"""How far one step of gradient descent moves a network as a function: section 3 of the Fixup paper.

Fixup's goal is that ``||Delta f(x)|| / eta`` does not depend on the depth as ``eta -> 0``.
Everywhere the network is ``network(params, inputs) -> logits``, inputs are a batch, labels are
int32 ``[B]``, and the loss is the cross-entropy averaged over the batch.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from nf_resnets.analysis.observe import Network
from nf_resnets.init.tree import float_leaves


def loss_gradient(network: Network, params: Any, inputs: Any, labels: jax.Array) -> Any:
    """The gradient of the loss, a tree like ``params``, None for leaves that are no float arrays.

    Here and below the parameters may be an Equinox module or have integers among them; those of
    half precision count as float32.

    Example:
      >>> network = lambda params, x: x @ params
      >>> loss_gradient(network, jnp.zeros((2, 2)), jnp.ones((1, 2)), jnp.array([1])).tolist()
      [[0.5, -0.5], [0.5, -0.5]]
    """
    values, put = float_leaves(params)
    gradient = jax.grad(lambda at: _mean_loss(network(put(at), inputs), labels))(values)
    return put(gradient, rest=False)


def first_order_update(network: Network, params: Any, inputs: Any, labels: jax.Array) -> jax.Array:
    r"""The limit of ``Delta f / eta``, ``[B, c]``: ``-J J^T dl/dz`` with ``J = df/dtheta``.

    ``J^T`` is a backward pass. ``J`` is the transpose of that, a backward pass through a backward
    pass: the convolutions of our networks have no forward mode on a CPU.
    """
    values, put = float_leaves(params)
    logits, backward = jax.vjp(lambda at: network(put(at), inputs), values)
    slope = jax.grad(lambda z: _mean_loss(z, labels))(logits)
    # J^T is linear, so where its own derivative is taken does not matter.
    gradient, transposed = jax.vjp(lambda z: backward(z)[0], slope)
    (moved,) = transposed(gradient)
    return -moved


def update_size(
    network: Network,
    params: Any,
    inputs: Any,
    labels: jax.Array,
    learning_rate: jax.Array | float | None = None,
) -> jax.Array:
    r"""``||Delta f(x)|| / eta`` for every example, in the L2 norm over the classes.

    ``Delta f(x) = f(x; theta - eta dl/dtheta) - f(x; theta)``; with ``learning_rate=None`` it is
    the limit ``eta -> 0``, to first order. In float32 an ``eta`` that is too small drowns the
    change in the rounding of the logits.

    With Fixup's zero head only the head moves in the first step; draw it at random
    (:func:`nf_resnets.analysis.random_head`) to see the residual branches.

    Returns:
      float32 ``[B]``; of a Transformer's tokens ``[B, T]``.

    Source: Zhang, Dauphin, Ma, ICLR 2019, section 3.

    Example:
      >>> network = lambda params, x: x @ params
      >>> update_size(network, jnp.zeros((2, 2)), jnp.ones((1, 2)), jnp.array([1])).tolist()
      [1.4142]
    """
    if learning_rate is None:
        return jnp.linalg.norm(first_order_update(network, params, inputs, labels), axis=-1)
    gradient = jax.tree.leaves(loss_gradient(network, params, inputs, labels))
    values, put = float_leaves(params)
    moved = [p - learning_rate * g for p, g in zip(values, gradient, strict=True)]
    change = network(put(moved), inputs) - network(put(values), inputs)
    return jnp.linalg.norm(change, axis=-1) / learning_rate


def _mean_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
