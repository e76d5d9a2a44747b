"""The largest curvature of a loss, and the largest learning rate at which descent stays stable."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import optax
from jax import lax

from nf_resnets.init.tree import float_leaves


class Eigenvalue(NamedTuple):
    """An eigenvalue and how far off it can be.

    Attributes:
      value: float32 ``[]``.
      residual: ``||H v - value v||`` for Lanczos' unit vector ``v``, float32 ``[]``: an eigenvalue
        of ``H`` lies within it.
    """

    value: jax.Array
    residual: jax.Array


def lanczos(
    product: Callable[[jax.Array], jax.Array], size: int, *, key: jax.Array, steps: int
) -> Eigenvalue:
    r"""The largest eigenvalue of a symmetric matrix ``[size, size]``, by its products with vectors.

    Lanczos' method from a random start: ``H Q = Q T + beta_k q_{k+1} e_k^T``, ``T`` tridiagonal.
    Its largest eigenpair ``(theta, s)`` gives the value ``theta`` and the residual
    ``|beta_k s_k|``. Every new vector is made orthogonal to all earlier ones twice, since in
    float32 the short recurrence alone loses orthogonality and finds eigenvalues more than once.
    Largest means with the sign, not of magnitudes.

    Source: Lanczos 1950; Golub, Van Loan, *Matrix Computations*, section 10.1 to 10.3.
    """
    steps = min(steps, size)
    start = jax.random.normal(key, (size,))
    start = start / jnp.linalg.norm(start)

    def step(k: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        basis, diagonal, off_diagonal, scale = carry
        q = basis[k]
        image = product(q)
        alpha = jnp.vdot(q, image)
        scale = jnp.maximum(scale, jnp.linalg.norm(image))
        rest = image
        for _ in range(2):
            rest = rest - basis.T @ (basis @ rest)
        beta = jnp.linalg.norm(rest)
        # Once the vectors span an invariant space, what is left is rounding: no direction.
        ended = beta <= 10 * jnp.finfo(beta.dtype).eps * scale
        beta = jnp.where(ended, 0.0, beta)
        following = jnp.where(ended, jnp.zeros_like(rest), rest / jnp.where(ended, 1.0, beta))
        # After such an end q is 0. A copy of the start's Rayleigh quotient is in nobody's way: it
        # is never larger than the largest eigenvalue of T, which it is a diagonal entry of.
        alpha = jnp.where(jnp.vdot(q, q) > 0.5, alpha, diagonal[0])
        basis = basis.at[k + 1].set(following)
        return basis, diagonal.at[k].set(alpha), off_diagonal.at[k].set(beta), scale

    basis = jnp.zeros((steps + 1, size)).at[0].set(start)
    carry = (basis, jnp.zeros(steps), jnp.zeros(steps), jnp.zeros(()))
    _, diagonal, off_diagonal, _ = lax.fori_loop(0, steps, step, carry)
    off = jnp.diag(off_diagonal[:-1], 1)
    values, vectors = jnp.linalg.eigh(jnp.diag(diagonal) + off + off.T)
    return Eigenvalue(values[-1], jnp.abs(off_diagonal[-1] * vectors[-1, -1]))


def largest_curvature(
    loss: Callable[[Any], jax.Array], params: Any, *, key: jax.Array, steps: int = 20
) -> Eigenvalue:
    r"""The largest eigenvalue of a loss's Hessian.

    Near a minimum gradient descent is stable up to the rate ``2 / lambda_max``, with heavy-ball
    momentum ``mu`` up to ``2 (1 + mu) / lambda_max``.

    Args:
      loss: ``loss(params) -> []``, differentiable backwards twice.
      params: where the Hessian is taken. Leaves that are no float arrays stay as they are; those of
        half precision count as float32.
      key: a JAX PRNG key for Lanczos' start.
      steps: products with the Hessian, each about four times a forward pass and its gradient.

    Example:
      >>> found = largest_curvature(
      ...     lambda p: (p["a"]**2).sum() + 3 * (p["b"]**2).sum(),
      ...     {"a": jnp.ones(3), "b": jnp.ones(())}, key=jax.random.key(0))
      >>> round(float(found.value), 3)
      6.0
    """
    values, put = float_leaves(params)
    flat, unravel = jax.flatten_util.ravel_pytree(values)

    def gradient(at: Any) -> Any:
        return jax.grad(lambda leaves: loss(put(leaves)))(at)

    def product(vector: jax.Array) -> jax.Array:
        # Both derivatives backwards: our convolutions have no forward mode on a CPU.
        tangent = unravel(vector)
        image = jax.grad(lambda at: optax.tree.vdot(gradient(at), tangent))(values)
        return jax.flatten_util.ravel_pytree(image)[0]

    return lanczos(product, flat.size, key=key, steps=steps)


class StableRate(NamedTuple):
    """Two learning rates that the largest stable one lies between.

    Attributes:
      stable: the largest rate that was tried and found stable.
      unstable: the smallest rate that was tried and found unstable.
    """

    stable: float
    unstable: float


def descend(
    loss: Callable[[Any, jax.Array], jax.Array],
    params: Any,
    learning_rate: jax.Array,
    *,
    steps: int,
    momentum: float = 0.0,
) -> jax.Array:
    r"""The losses of gradient descent with momentum, before each step and after the last.

    ``v <- mu v + grad``, ``theta <- theta - eta v``, from ``v = 0``.

    Args:
      loss: ``loss(params, t) -> []``; the step's number ``t``, int32 ``[]``, chooses the minibatch.
      params: where the descent starts. Leaves that are no float arrays stay as they are; those of
        half precision count as float32.
      learning_rate: ``eta``, ``[]``.
      steps: how many.
      momentum: ``mu``.

    Returns:
      float32 ``[steps + 1]``.
    """
    values, put = float_leaves(params)

    def loss_at(values: Any, t: jax.Array) -> jax.Array:
        return loss(put(values), t)

    def step(carry: tuple[Any, Any], t: jax.Array) -> tuple[tuple[Any, Any], jax.Array]:
        at, velocity = carry
        value, gradient = jax.value_and_grad(loss_at)(at, t)
        velocity = jax.tree.map(lambda v, g: momentum * v + g, velocity, gradient)
        at = jax.tree.map(lambda p, v: p - learning_rate * v, at, velocity)
        return (at, velocity), value

    start = (values, jax.tree.map(jnp.zeros_like, values))
    (last, _), losses = lax.scan(step, start, jnp.arange(steps))
    return jnp.append(losses, loss_at(last, jnp.asarray(steps)))


def largest_stable_rate(
    losses_at: Callable[[jax.Array], jax.Array],
    low: float,
    high: float,
    *,
    resolution: float = 0.1,
    limit: float | None = None,
) -> StableRate:
    r"""The largest stable learning rate, by bisection of its logarithm.

    A rate is stable if all losses are finite and the mean of their last quarter is at most
    ``limit``. What is found is one border between stable and unstable rates; there may be others.
    A border that shows in ``t`` steps is off by a relative error of order ``1 / t``, since just
    beyond it the loss grows slowly.

    Args:
      losses_at: ``losses_at(rate) -> [T]``, the losses of a run of training (see :func:`descend`).
      low: a rate that is stable.
      high: a rate that is not.
      resolution: how far apart, in log2, the two rates returned are at most.
      limit: the loss that a stable run ends below; by default the run's own first loss.

    Raises:
      ValueError: if ``low`` is unstable or ``high`` stable.

    Example:
      >>> loss = lambda p, t: 2 * p**2  # curvature 4: stable up to 2 / 4
      >>> run = jax.jit(lambda rate: descend(loss, jnp.ones(()), rate, steps=200))
      >>> found = largest_stable_rate(run, 0.1, 10.0, resolution=0.001)
      >>> found.stable < 0.5 < found.unstable
      True
    """

    def stable(rate: float) -> bool:
        losses = jax.device_get(losses_at(jnp.float32(rate)))
        last = losses[-max(len(losses) // 4, 1) :]
        bound = float(losses[0]) if limit is None else limit
        return bool(jnp.isfinite(losses).all()) and float(last.mean()) <= bound

    if not stable(low):
        raise ValueError(f"low={low} found, which is unstable; expected a smaller rate.")
    if stable(high):
        raise ValueError(f"high={high} found, which is stable; expected a larger rate.")
    while math.log2(high / low) > resolution:
        middle = math.sqrt(low * high)
        if stable(middle):
            low = middle
        else:
            high = middle
    return StableRate(low, high)
