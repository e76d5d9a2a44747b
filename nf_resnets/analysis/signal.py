"""Signal propagation: how large the two paths of every residual block are, forward and backward.

The quantities that the papers argue with: the second moment of skip, branch and their sum, which
part of the sum is the branch's, how much of it is the same for all images (the channels' means),
and how large the gradient is that reaches each block's input.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nf_resnets import random
from nf_resnets.analysis.loss import cross_entropies
from nf_resnets.analysis.observe import ObservedFn, branches, no_perturbations, taps_of


class Moments(NamedTuple):
    """Moments of an activation of every block, float32 ``[L]`` each.

    Attributes:
      second: its mean square over images, positions and channels, the ``Var`` of the closed forms.
      squared_mean: the mean over channels of the squared mean over images and positions.
      variance: the mean over channels of the variance over images and positions;
        ``second = squared_mean + variance``.
    """

    second: jax.Array
    squared_mean: jax.Array
    variance: jax.Array


class Signal(NamedTuple):
    """The moments of what every residual block gets, adds and gives, ``k = 1..L``.

    Attributes:
      input: of ``x_{k-1}``, as it enters the block.
      skip: of the skip path as it enters the sum.
      branch: of the residual branch as it enters the sum.
      sum: of the two together, before a ReLU or a norm that follows.
    """

    input: Moments
    skip: Moments
    branch: Moments
    sum: Moments

    @property
    def share(self) -> jax.Array:
        """The branch's share of the sum, ``Var branch / Var sum``, ``[L]``; 0 where both are 0."""
        return _quotient(self.branch.second, self.sum.second)

    @property
    def skip_share(self) -> jax.Array:
        """The skip path's share of the sum, ``Var skip / Var sum``, ``[L]``."""
        return _quotient(self.skip.second, self.sum.second)


def signal(observed: ObservedFn, params: Any, images: jax.Array, *, interior: int = 0) -> Signal:
    """Measures every residual block of a network on a batch.

    Args:
      observed: the network (see :func:`nf_resnets.analysis.observe.observe`).
      params: its parameters.
      images: ``[B, H, W, C]``.
      interior: how many positions on each side of every activation are left out. A zero-padded
        3x3 convolution sees 4 pixels of 9 at a corner, and all 9 further in.

    Returns:
      Arrays ``[L]``, the blocks in order from the input.

    Raises:
      ValueError: if ``interior`` leaves nothing of an activation, or the network taps none.

    Example:
      >>> from nf_resnets import models
      >>> from nf_resnets.analysis.observe import observe
      >>> images = jnp.ones((2, 8, 8, 3))
      >>> model = models.WideResNet(depth=10, scheme="fixup", stem_channels=4)
      >>> params = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
      >>> jax.eval_shape(lambda at: signal(observe(model), at, images).share, params).shape
      (3,)
    """
    _, taps = taps_of(observed, params, images)
    return signal_of(taps, interior=interior)


def signal_of(taps: Any, *, interior: int = 0) -> Signal:
    """As :func:`signal`, from the taps that ``observed`` returned.

    Example:
      >>> x = jnp.array([1.0, -1.0]).reshape(2, 1, 1, 1)
      >>> found = signal_of({"block_1": {"input": x, "skip": x, "branch": 0.5 * x, "sum": 1.5 * x}})
      >>> found.share.tolist()
      [0.1111]
    """
    found = [
        Signal(*(moments(cropped(block[name], interior)) for name in Signal._fields))
        for block in branches(taps, *Signal._fields)
    ]
    return jax.tree.map(lambda *values: jnp.stack(values), *found)


def moments(x: jax.Array) -> Moments:
    """The moments of one activation, ``[B, ..., C]`` to scalars.

    Example:
      >>> [float(m) for m in moments(jnp.array([[3.0, 1.0], [1.0, 1.0]]))]
      [3.0, 2.5, 0.5]
    """
    rows = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
    mean = rows.mean(axis=0)
    # The two-pass variance, for E[x^2] - E[x]^2 cancels where the mean is large.
    variance = jnp.square(rows - mean.reshape(1, -1)).mean()
    squared_mean = jnp.square(mean).mean()
    return Moments(jnp.square(rows).mean(), squared_mean, variance)


def cropped(x: jax.Array, interior: int) -> jax.Array:
    """Takes ``interior`` positions off each side of an image, ``[..., H, W, C]``.

    Raises:
      ValueError: if ``interior`` is negative, nothing is left, or ``x`` is no image.

    Example:
      >>> cropped(jnp.ones((1, 8, 8, 3)), 2).shape
      (1, 4, 4, 3)
    """
    if interior == 0:
        return x
    if x.ndim < 4 or interior < 0 or min(x.shape[-3:-1]) <= 2 * interior:
        raise ValueError(
            f"interior={interior} found for an activation of shape {list(x.shape)}; expected "
            "images [B, H, W, C] with H and W above 2 * interior."
        )
    inside = slice(interior, -interior)
    return x[..., inside, inside, :]


def gradient_norms(
    observed: ObservedFn,
    params: Any,
    images: jax.Array,
    *,
    labels: jax.Array | None = None,
    key: jax.Array | None = None,
) -> jax.Array:
    r"""``||dl / dx_{k-1}||`` at every block's input, the L2 norm over the whole batch.

    ``l`` is the mean cross-entropy of the labels; or, with a key, ``<u, logits> / B`` for a random
    cotangent ``u ~ N(0, 1)``. A head of zeros, as Fixup's, lets no gradient through: see
    :func:`nf_resnets.analysis.head.random_head`.

    Args:
      observed: the network (see :func:`nf_resnets.analysis.observe.observe`).
      params: its parameters.
      images: ``[B, H, W, C]``.
      labels: int32 ``[B]``.
      key: a JAX PRNG key; give this or the labels.

    Returns:
      float32 ``[L]``, the blocks in order from the input.

    Raises:
      ValueError: if labels and key are both given, or neither is, or a label is no class.
      TypeError: if ``key`` is not a PRNG key.

    Example:
      >>> def observed(params, images, perturbations=None):
      ...     x = images if perturbations is None else images + perturbations["block_1"]["input"]
      ...     return x @ params, {"block_1": {"input": x}}
      >>> gradient_norms(observed, jnp.eye(2), jnp.zeros((1, 2)), labels=jnp.array([0])).tolist()
      [0.7071]
    """
    if (labels is None) == (key is None):
        given = "neither" if key is None else "both"
        raise ValueError(f"{given} of labels= and key= found; expected one of them.")

    def loss(perturbations: Any) -> jax.Array:
        logits, _ = observed(params, images, perturbations)
        if labels is not None:
            return cross_entropies(logits, labels).mean()
        assert key is not None
        return (random.normal(key, logits.shape, logits.dtype) * logits).sum() / logits.shape[0]

    gradients = branches(jax.grad(loss)(no_perturbations(observed, params, images)))
    return jnp.stack(
        [jnp.linalg.norm(block["input"].astype(jnp.float32).ravel()) for block in gradients]
    )


def _quotient(part: jax.Array, whole: jax.Array) -> jax.Array:
    # Of what is NaN the quotient is.
    return jnp.where(whole == 0, 0.0, part / jnp.where(whole == 0, 1.0, whole))


__all__ = ["Moments", "Signal", "cropped", "gradient_norms", "moments", "signal", "signal_of"]
