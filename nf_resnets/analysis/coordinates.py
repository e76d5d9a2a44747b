"""The coordinate check: how large activations are, and by how much a few steps change them.

Under a parametrisation that transfers, neither depends on width or depth; under another one some
activation changes by more and more, or not at all, as the network grows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nf_resnets.analysis.observe import Network, observe
from nf_resnets.init.tree import float_leaves


class Coordinates(NamedTuple):
    """Root mean squares of the activations of one network, ``n = L + 2`` of them.

    These are the input of the first residual branch, the sum of skip and branch of each one in
    order, and the logits.

    Attributes:
      size: of the activations after ``0..steps`` steps, float32 ``[steps + 1, n]``.
      change: of their difference to those before the first step, float32 ``[steps + 1, n]``.
    """

    size: jax.Array
    change: jax.Array


PLACES = {"first input": 0, "last sum": -2, "logits": -1}
"""Where rows look, and the place in the arrays."""


def coordinates(
    network: Network,
    params: Any,
    inputs: Any,
    labels: jax.Array,
    optimizer: optax.GradientTransformation,
    *,
    steps: int = 10,
    **answers: Any,
) -> Coordinates:
    """Trains for a few steps on one batch, and measures the activations of that batch.

    Args:
      network: ``network(params, *inputs) -> logits``, of any library.
      params: its parameters, as they are initialised. Leaves that are no float arrays stay as they
        are; those of half precision count as float32.
      inputs: a batch ``[B, H, W, C]``, or a tuple of what the network takes.
      labels: int32 ``[B]``, or ``[B, T]`` for a Transformer's tokens.
      optimizer: any of optax, with parameters in its ``update``; see
        :func:`nf_resnets.optim.parametrized`.
      steps: how many.
      **answers: as for :func:`nf_resnets.analysis.observe`.

    Source: Yang et al., *Tensor Programs V*, 2021, appendix D.1, and github.com/microsoft/mup; for
    the depth Dey et al., 2025, figure 7.

    Example:
      >>> network = lambda w, x: x + jnp.maximum(x @ w, 0) @ w
      >>> batch = jnp.ones((1, 2)), jnp.array([0])
      >>> check = coordinates(network, jnp.eye(2), *batch, optax.sgd(0.1), steps=1)
      >>> check.size.shape, check.change[0].tolist()
      ((2, 3), [0.0, 0.0, 0.0])
    """
    values, put = float_leaves(params)
    start_from = put(values, rest=False)  # what moves, at the paths that rules know
    batch = inputs if isinstance(inputs, tuple) else (inputs,)

    def whole(moved: Any) -> Any:
        return put(jax.tree.leaves(moved))

    def activations(params: Any) -> list[jax.Array]:
        logits, blocks = observe(network, whole(params), *batch, **answers)
        return [blocks[0].input, *(block.sum for block in blocks), logits]

    def loss(params: Any) -> jax.Array:
        logits = network(whole(params), *batch)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    start = activations(start_from)

    def measured(params: Any) -> Coordinates:
        now = activations(params)
        changes = [after - before for after, before in zip(now, start, strict=True)]
        return Coordinates(*(jnp.stack([rms(each) for each in of]) for of in (now, changes)))

    def step(carry: Any, _: None) -> tuple[Any, Coordinates]:
        params, state = carry
        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), measured(params)

    _, later = jax.lax.scan(step, (start_from, optimizer.init(start_from)), None, length=steps)
    return jax.tree.map(
        lambda one, rest: jnp.concatenate([one[None], rest]), measured(start_from), later
    )


def rms(x: jax.Array) -> jax.Array:
    """The root of the mean square, float32 ``[]``."""
    return jnp.sqrt(jnp.mean(jnp.square(x.astype(jnp.float32))))


def growth(sizes: Iterable[float], values: Iterable[Any]) -> float:
    """The least-squares ``p`` of ``value ~ size**p``: 0 where a check is flat, NaN of one size.

    NaN, too, where a value is 0 or not finite: a check of such a network has no slope.

    Example:
      >>> round(growth([1, 2, 4], [3.0, 6.0, 12.0]), 6), growth([1, 2, 4], [3.0, np.inf, 12.0])
      (1.0, nan)
    """
    x, y = (np.log(np.array([*of], np.float64)).tolist() for of in (sizes, values))
    if len({*x}) < 2 or not np.isfinite(x + y).all():
        return math.nan
    return statistics.linear_regression(x, y).slope  # its 0 is exact: no table has a -0.00


def coordinate_rows(
    checks: Mapping[float, Coordinates], steps: Iterable[int] = (1, 3, 10)
) -> list[dict[str, Any]]:
    """Rows for ``plotting.coordinates_figure``: a line for each size, place and number of steps.

    Args:
      checks: the coordinates of a network of each width or depth.
      steps: after how many steps; those that were not made are left out.

    Example:
      >>> of_one_step = Coordinates(size=np.ones((2, 3)), change=np.array([[0, 0, 0], [5, 6, 7]]))
      >>> coordinate_rows({8: of_one_step}, steps=[1, 3])[-1]
      {'place': 'logits', 'steps': 1, 'size': 8, 'activation': 1.0, 'change': 7.0}
    """
    return [
        {
            "place": place,
            "steps": step,
            "size": size,
            "activation": float(of.size[step, index]),
            "change": float(of.change[step, index]),
        }
        for size, of in checks.items()
        for place, index in PLACES.items()
        for step in steps
        if step < len(of.size)
    ]
