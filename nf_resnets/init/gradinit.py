"""GradInit: weights scaled so that the first step helps most, with a gradient that is not large."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nf_resnets.init.data_dependent import check_apply, check_finite, check_labels
from nf_resnets.init.standard import standard
from nf_resnets.init.tree import check_count, check_positive, float_leaves
from nf_resnets.init.tuned import is_tuned, times, tunable
from nf_resnets.roles import RoleMap, Rules
from nf_resnets.schemes import Anatomy, Scheme

SCHEME_STEPS = 100
"""Steps of the registered scheme, a quarter of the authors' 390, to cost less."""


def gradinit(
    apply_fn: Callable[..., Any],
    params: Any,
    images: Any,
    labels: Any,
    *,
    steps: int = 390,
    learning_rate: float = 0.05,
    eta: float = 0.1,
    gamma: float = 1.0,
    least: float = 0.01,
    rules: Rules | RoleMap | None = None,
) -> Any:
    r"""Scales the weights so that the first step of SGD lowers the loss most, by algorithm 1.

    One scale ``s`` for each weight, from 1, minimises the loss after a step of length ``eta`` along
    the gradient, ``l(theta(s) - eta g / |g|) / eta``, as long as ``|g| <= gamma``; where ``|g|`` is
    larger, the step on ``s`` lowers ``|g|`` instead. Both steps are Adam's, each with its own
    moments, on slopes that are clipped at 1; ``g`` counts as a constant within the step of SGD, as
    in the authors' code. Biases, directions and scalars stay.

    ``g`` is that of two thirds of the batch, the loss that of the first and the last third: they
    overlap by half, as the authors' minibatches do, which they draw anew for every step. They take
    the last scales; here it is the last at which ``|g| <= gamma`` was found, if there are any.

    Args:
      apply_fn: Flax's ``model.apply``. The steps are compiled anew in every call.
      params: the tree under ``"params"``, already drawn. It is not changed.
      images: ``[B, H, W, C]``, 3 or more, or a dict or tuple of arrays of ``B`` examples.
      labels: int32 ``[B]``, or ``[B, T]`` for tokens; the loss is the mean cross-entropy.
      steps: the number of steps on the scales, 1 or more.
      learning_rate: of Adam; the authors have 0.05 for a ResNet-110 without BatchNorm, 0.01 for
        VGG-19.
      eta: the length of the step of SGD.
      gamma: the largest norm of the gradient.
      least: the smallest scale.
      rules: what the paths of the tree mean; by default the names of this library's models. A
        stacked leaf has one scale for each branch.

    Returns:
      A tree of the same structure, dtypes and shardings, each weight times a positive number.

    Raises:
      ValueError: if a number is out of its range, there are too few images or not as many labels,
        the tree has no weight, does not fit the rules, or a scale does not stay finite (under
        ``jit`` nothing is said).
      TypeError: if ``apply_fn`` is no function of variables and images.

    Source: Zhu, Ni, Xu, Kong, Huang, Goldstein, *GradInit: Learning to Initialize Neural Networks
    for Stable and Efficient Training*, NeurIPS 2021, and its code for CIFAR-10.

    Example:
      >>> def linear(variables, x):
      ...     return x @ variables["params"]["head"]["kernel"]
      >>> result = gradinit(linear, {"head": {"kernel": jnp.eye(3)}}, jnp.eye(3), jnp.arange(3),
      ...                   steps=1)
      >>> round(float(result["head"]["kernel"][0, 0]), 4)  # a larger one has a smaller loss
      1.05
    """
    check_count(steps=steps)
    check_positive(learning_rate=learning_rate, eta=eta, gamma=gamma, least=least)
    check_apply(apply_fn)
    role_map = tunable(params, images, rules)
    shape = jnp.shape(jax.tree.leaves(images)[0])
    if shape[0] < 3 or jnp.shape(labels)[:1] != shape[:1]:
        raise ValueError(
            f"images {list(shape)} and labels {list(jnp.shape(labels))} found; "
            "expected 3 images or more, and a label for each."
        )
    check_labels(jax.eval_shape(lambda: apply_fn({"params": params}, images)), labels)
    options = (steps, learning_rate, eta, gamma, least)
    values, put = float_leaves(params)
    find = jax.jit(partial(_find_scales, apply_fn, role_map, options, put))
    scales = find(values, jax.tree.map(jnp.asarray, images), jnp.asarray(labels))
    check_finite(scales, "tuned scales")
    return times(role_map, scales, params)


def _find_scales(
    apply_fn: Callable[..., Any],
    role_map: RoleMap,
    options: tuple[int, float, float, float, float],
    put: Callable[..., Any],
    values: list[jax.Array],
    images: Any,
    labels: jax.Array,
) -> dict[str, jax.Array]:
    """The steps: what each weight is to be multiplied by, by its path."""
    import optax

    steps, learning_rate, eta, gamma, least = options
    params = put(values)
    third = labels.shape[0] // 3
    before = jnp.arange(2 * third)
    after = jnp.concatenate([jnp.arange(third), jnp.arange(2 * third, 3 * third)])

    def loss(at: Any, examples: jax.Array) -> jax.Array:
        of = jax.tree.map(lambda each: each[examples], images)
        logits = apply_fn({"params": put(at)}, of).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels[examples]).mean()

    def scaled_leaves(scales: Any) -> list[jax.Array]:
        return float_leaves(times(role_map, scales, params))[0]

    def norm_and_gradient(scales: Any) -> tuple[jax.Array, Any]:
        gradient = jax.grad(loss)(scaled_leaves(scales), before)
        return optax.tree.norm(gradient), gradient

    adam = optax.chain(optax.clip(1.0), optax.adam(learning_rate))

    def descend(slopes: Any, scales: Any, state: Any) -> tuple[Any, Any]:
        updates, state = adam.update(slopes, state)
        scales = optax.apply_updates(scales, updates)
        return jax.tree.map(lambda s: jnp.maximum(s, least), scales), state

    def constrain(scales: Any, states: tuple[Any, Any], *_: Any) -> tuple[Any, tuple[Any, Any]]:
        slopes = jax.grad(lambda s: norm_and_gradient(s)[0])(scales)
        scales, state = descend(slopes, scales, states[0])
        return scales, (state, states[1])

    def improve(
        scales: Any, states: tuple[Any, Any], norm: jax.Array, gradient: Any
    ) -> tuple[Any, tuple[Any, Any]]:
        length = eta / jnp.where(norm == 0, 1.0, norm)

        def loss_after(scales: Any) -> jax.Array:
            at = scaled_leaves(scales)
            return loss(jax.tree.map(lambda p, g: p - length * g, at, gradient), after) / eta

        scales, state = descend(jax.grad(loss_after)(scales), scales, states[1])
        return scales, (states[0], state)

    def step(_: Any, carry: Any) -> Any:
        scales, states, last, held = carry
        norm, gradient = norm_and_gradient(scales)
        # The last scales that hold the constraint, or the last of all if none has.
        within = norm <= gamma
        last = jax.tree.map(lambda s, old: jnp.where(within | ~held, s, old), scales, last)
        scales, states = lax.cond(norm > gamma, constrain, improve, scales, states, norm, gradient)
        return scales, states, last, within | held

    ones = {
        leaf.path: jnp.ones(value.shape[:1] if leaf.stacked else ())
        for leaf, value in role_map.items(params)
        if is_tuned(leaf)
    }
    state = adam.init(ones)
    # Once more than there are steps, to look at the scales after the last.
    _, _, last, _ = lax.fori_loop(0, steps + 1, step, (ones, (state, state), ones, jnp.bool_(0)))
    return last


def _calibrate(apply_fn: Callable[..., Any], params: Any, batch: Any) -> Any:
    """:func:`gradinit` as the scheme has it: labels of ``jax.random.key(0)``, fewer steps."""
    classes = jax.eval_shape(apply_fn, {"params": params}, batch).shape[-1]
    labels = jax.random.randint(jax.random.key(0), batch.shape[:1], 0, classes)
    return gradinit(apply_fn, params, batch, labels, steps=SCHEME_STEPS)


SCHEME = Scheme(
    name="gradinit",
    title="GradInit",
    init=standard,
    anatomy=Anatomy(conv_biases=True),
    reference="Zhu et al.: GradInit, NeurIPS 2021",
    fits=frozenset({"pre_activation", "post_activation", "plain"}),
    calibrate=_calibrate,
)

__all__ = ["SCHEME", "SCHEME_STEPS", "gradinit"]
