"""LSUV: orthogonal weights, each layer then divided by the deviation of its output on a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nf_resnets import roles
from nf_resnets.init.measured import Place, measured_pass
from nf_resnets.init.standard import orthogonal, standard
from nf_resnets.init.tree import check_positive, is_concrete, scaled
from nf_resnets.roles import LAYER_ROLES, Leaf, RoleMap, Rules
from nf_resnets.roles.running import evaluate
from nf_resnets.schemes import Anatomy, Scheme


def lsuv(
    params: Any,
    *,
    network: Callable[..., Any],
    inputs: tuple[Any, ...],
    tolerance: float = 0.1,
    max_passes: int = 10,
    rules: Rules | RoleMap | None = None,
) -> Any:
    r"""Scales every layer so that its output has variance 1 on a batch, algorithm 1 of the paper.

    ``W <- W / std(W x)`` for one layer after another, each on the outputs of those before it that
    are scaled already: one pass of the batch scales them all. Passes follow until none finds a
    deviation that differs from 1 by ``tolerance``, or ``max_passes`` have been made; in float32 the
    second finds nothing left to do. The deviation is that of the output without its bias vector,
    over all examples, positions and channels. A layer whose output is constant stays as it is.

    Args:
      params: an initialised tree; the paper's weights are orthonormal
        (:func:`nf_resnets.init.orthogonal`). It is not changed.
      network: ``network(params, *inputs)``, its forward pass, of any library.
      inputs: a batch, such as ``(images,)``.
      tolerance: how far a standard deviation may be from 1.
      max_passes: the most passes there are, 1 or more.
      rules: the roles of the leaves, by default those of this library's models.

    Returns:
      A tree of the same structure, dtypes and shardings, with other weights.

    Raises:
      ValueError: if a layer is in no step or in several.

    Source: Mishkin, Matas, *All you need is a good init*, ICLR 2016.

    Example:
      >>> from nf_resnets import models
      >>> images = jax.random.normal(jax.random.key(1), (2, 4, 4, 3))
      >>> model = models.WideResNet(depth=10, scheme="lsuv", stem_channels=2)
      >>> params = jax.jit(model.init)(jax.random.key(0), images)["params"]
      >>> network = jax.jit(lambda params, images: model.apply({"params": params}, images))
      >>> params = lsuv(params, network=network, inputs=(images,))
      >>> round(float(network(params, images).std()), 4)
      1.0
    """
    check_positive(tolerance=tolerance)
    role_map = roles.assign(params, rules)
    layers = (leaf for leaf in role_map.leaves if leaf.role in LAYER_ROLES[1:] and leaf.weight)
    weights = {leaf.path for leaf in layers}
    measure = measured_pass(network, params, inputs, weights, _with_unit_variance)

    def one_pass(params: Any) -> tuple[Any, jax.Array]:
        factors = measure(params, inputs)
        off = jnp.stack([jnp.abs(1 / each - 1).max() for each in factors.values()]).max()

        def rescale(leaf: Leaf, value: Any) -> Any:
            return scaled(value, factors[leaf.path]) if leaf.path in factors else value

        return role_map.map(rescale, params), off

    def unfinished(state: tuple[Any, Any, int]) -> Any:
        _, off, passes = state
        return (off >= tolerance) & (passes < max_passes)

    def again(state: tuple[Any, Any, int]) -> tuple[Any, Any, int]:
        params, _, passes = state
        return *one_pass(params), passes + 1

    state = again((params, None, 0))
    if not is_concrete(state[1]):
        return lax.while_loop(unfinished, again, state)[0]
    while unfinished(state):
        state = again(state)
    return state[0]


def _with_unit_variance(equation: Any, args: Any, place: Place) -> tuple[jax.Array, jax.Array]:
    (y,) = evaluate(equation, args)
    variance = y.astype(jnp.promote_types(y.dtype, jnp.float32)).var()
    # Of an output that is constant nothing can be said: its weight stays as it is. (What is not
    # finite must not pass for constant.)
    factor = jnp.where(variance == 0, 1.0, lax.rsqrt(jnp.maximum(variance, 1e-30)))
    return y * factor.astype(y.dtype), factor


SCHEMES = (
    Scheme(
        name="lsuv",
        title="LSUV",
        init=partial(standard, draw=orthogonal),
        anatomy=Anatomy(conv_biases=True),
        reference="Mishkin, Matas: All you need is a good init, ICLR 2016",
        fits=frozenset({"pre_activation", "post_activation", "plain"}),
        calibrate=lsuv,
        own_draw=True,
    ),
)
