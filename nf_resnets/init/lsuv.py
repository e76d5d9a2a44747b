"""LSUV: orthogonal weights, each layer then divided by the deviation of its output on a batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nf_resnets.calibration import UNIT_VARIANCE
from nf_resnets.init.data_dependent import by_path, check_finite, check_paths, measuring
from nf_resnets.init.orthogonal import orthogonal
from nf_resnets.init.standard import standard
from nf_resnets.init.tree import check_count, check_positive, is_concrete, scaled
from nf_resnets.schemes import Anatomy, Scheme


def lsuv(
    apply_fn: Callable[..., Any],
    params: Any,
    batch: Any,
    *,
    tolerance: float = 0.1,
    max_passes: int = 10,
) -> Any:
    r"""Scales every layer so that its output has variance 1 on a batch, algorithm 1 of the paper.

    ``W <- W / std(W x)`` for one layer after another, each on the outputs of those before it that
    are scaled already: one pass of the batch scales them all. Passes follow until none finds a
    deviation that differs from 1 by ``tolerance``, or ``max_passes`` have been made; in float32 the
    second finds nothing left to do. The deviation is that of the output without its bias vector,
    over all images, positions and channels. A layer whose output is constant stays as it is.

    Args:
      apply_fn: Flax's ``model.apply``.
      params: the tree under ``"params"``; the paper's weights are orthonormal
        (:func:`nf_resnets.init.orthogonal`). It is not changed.
      batch: images ``[B, H, W, C]``.
      tolerance: how far a standard deviation may be from 1.
      max_passes: the most passes there are, 1 or more.

    Returns:
      A tree of the same structure, dtypes and shardings, with other weights. Under ``jit`` nothing
      can be said of values, and no deviation is refused.

    Raises:
      ValueError: if the network has no layer to scale, or one that is not of
        :mod:`nf_resnets.models` or is applied twice, the batch has fewer than 2 images, a deviation
        is not finite, ``tolerance`` is not above 0 or ``max_passes`` is below 1.
      TypeError: if ``apply_fn`` is no function of variables and images.

    Source: Mishkin, Matas, *All you need is a good init*, ICLR 2016.

    Example:
      >>> from nf_resnets import models
      >>> images = jax.random.normal(jax.random.key(1), (2, 4, 4, 3))
      >>> model = models.WideResNet(depth=10, scheme="lsuv", stem_channels=2)
      >>> params = jax.jit(model.init)(jax.random.key(0), images)["params"]
      >>> params = lsuv(model.apply, params, images)
      >>> logits = jax.jit(model.apply)({"params": params}, images)
      >>> round(float(logits.std()), 4)
      1.0
    """
    import flax.linen as nn  # as the network has; the package's import does without

    check_positive(tolerance=tolerance)
    check_count(max_passes=max_passes)
    measure = measuring(apply_fn, batch, UNIT_VARIANCE)
    unmeasured: list[str] = []

    def one_pass(params: Any) -> tuple[Any, jax.Array]:
        with nn.intercept_methods(partial(_note_unmeasured, unmeasured)):
            factors = measure(params)
        if not factors:
            raise ValueError(
                "no layer with a weight to scale found in the network; expected one of "
                "nf_resnets.models, for images."
            )
        check_paths(factors, params)
        if unmeasured:
            raise ValueError(
                f"leaf {unmeasured[0]} is a weight whose layer does not measure its output; "
                "expected layers of nf_resnets.models, such as models.layers.Dense, alone."
            )
        deviations = {path: 1 / factor for path, factor in factors.items()}
        check_finite(deviations, "standard deviations")
        off = jnp.stack([jnp.abs(std - 1).max() for std in deviations.values()]).max()

        def divided(path: str, weight: Any) -> Any:
            return scaled(weight, factors[path]) if path in factors else weight

        return by_path(params, divided), off

    params, off = one_pass(params)
    if not is_concrete(off):
        return _loop(one_pass, params, off, tolerance, max_passes)
    passes = 1
    while off >= tolerance and passes < max_passes:
        params, off = one_pass(params)
        passes += 1
    return params


def _note_unmeasured(noted: list[str], call: Any, args: Any, kwargs: Any, context: Any) -> Any:
    """Notes the weights whose layers, called here, do not measure their outputs.

    A layer sees its own parameters, without the axis over the blocks that the tree has.
    """
    out, layer = call(*args, **kwargs), context.module
    if context.method_name == "__call__":
        for name, leaf in layer.variables.get("params", {}).items():
            own = getattr(leaf, "shape", ())
            if sum(length > 1 for length in own) > 1 and not layer.has_variable(
                UNIT_VARIANCE, name
            ):
                noted.append(f"{'/'.join((*layer.path, name))!r} {list(own)}")
    return out


def _loop(one_pass: Any, params: Any, off: jax.Array, tolerance: float, max_passes: int) -> Any:
    """The passes after the first, of traced values."""

    def unfinished(state: tuple[Any, jax.Array, int]) -> jax.Array:
        _, off, passes = state
        return (off >= tolerance) & (passes < max_passes)

    def again(state: tuple[Any, jax.Array, int]) -> tuple[Any, jax.Array, int]:
        params, _, passes = state
        return *one_pass(params), passes + 1

    return lax.while_loop(unfinished, again, (params, off, 1))[0]


SCHEME = Scheme(
    name="lsuv",
    title="LSUV",
    init=partial(standard, draw=orthogonal),
    anatomy=Anatomy(conv_biases=True),
    reference="Mishkin, Matas: All you need is a good init, ICLR 2016",
    fits=frozenset({"pre_activation", "post_activation", "plain"}),
    calibrate=lsuv,
    own_draw=True,
)

__all__ = ["SCHEME", "lsuv"]
