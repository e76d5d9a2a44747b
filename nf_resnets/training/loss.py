"""The loss of a batch of images, with smoothed and with mixed labels, and what is right in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from nf_resnets.training.apply import ApplyFn
from nf_resnets.training.step import LossFn


def image_loss(apply_fn: ApplyFn, *, label_smoothing: float = 0.0) -> LossFn:
    """Makes the mean of :func:`cross_entropy` over a batch of images, for ``replica_step``.

    The batch has ``image`` float32 [b, H, W, C] and ``label`` int32 [b], for networks with dropout
    ``keys`` [b], a PRNG key for each image, and where images are mixed what :func:`cross_entropy`
    takes. The metric is ``accuracy``, of a mixed image the weight of the label that is predicted.
    """

    def loss(params: Any, batch_stats: Any, batch: dict[str, jax.Array]) -> Any:
        logits, batch_stats = apply_fn(params, batch_stats, batch["image"], batch.get("keys"))
        losses = cross_entropy(logits, batch, label_smoothing=label_smoothing)
        right = _mixed(batch, lambda name: correct(logits, batch[name]))
        return losses.mean(), ({"accuracy": right.mean()}, batch_stats)

    return loss


def _mixed(batch: dict[str, Any], of: Callable[[str], jax.Array]) -> jax.Array:
    """A function of the labels, of examples that were mixed of two the weighed mean."""
    if "fraction" not in batch:
        return of("label")
    fraction = batch["fraction"]
    return fraction * of("label") + (1 - fraction) * of("other_label")


def cross_entropy(
    logits: jax.Array, batch: dict[str, Any], *, label_smoothing: float = 0.0
) -> jax.Array:
    r"""The cross-entropy of each example.

    With ``p = softmax(z)`` and ``epsilon = label_smoothing``, the loss of one label ``y`` is

        CE(y) = -(1 - epsilon) log p_y - (epsilon / c) sum_j log p_j,

    the cross-entropy to the label with probability ``1 - epsilon`` and to a class drawn uniformly
    from all ``c`` with ``epsilon``. An example that was mixed of two has the loss
    ``fraction CE(y) + (1 - fraction) CE(y')``.

    Args:
      logits: ``z``, ``[b, c]``; the loss is computed in float32.
      batch: ``label`` int32 [b]; of a mixed batch (:func:`nf_resnets.data.training_batch`) also
        ``other_label`` int32 [b] and ``fraction`` float32 [b], the fraction of the first image.
      label_smoothing: ``epsilon`` in ``[0, 1)``.

    Returns:
      float32 [b].

    Raises:
      ValueError: if labels are not one integer for each example.

    Source: Szegedy et al., *Rethinking the Inception Architecture*, CVPR 2016, section 7; Zhang,
    Cisse, Dauphin, Lopez-Paz, *mixup*, ICLR 2018, section 2.

    Example:
      >>> logits, batch = jnp.array([[2.0, 0.0]]), {"label": jnp.array([0])}
      >>> round(float(cross_entropy(logits, batch, label_smoothing=0.1)[0]), 4)
      0.2269
    """
    logits = logits.astype(jnp.float32)

    def of(name: str) -> jax.Array:
        labels = jnp.asarray(batch[name])
        expected = logits.shape[:-1]
        # One label alone would be broadcast to all examples.
        if labels.shape != expected or not jnp.issubdtype(labels.dtype, jnp.integer):
            raise ValueError(
                f"{name} of shape {list(labels.shape)} and dtype {labels.dtype} found; expected "
                f"one integer for each example, of shape {list(expected)}."
            )
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        if not label_smoothing:
            return losses
        uniform = -jax.nn.log_softmax(logits).mean(axis=-1)
        return (1 - label_smoothing) * losses + label_smoothing * uniform

    return _mixed(batch, of)


def correct(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Whether each prediction is right, float32 [b]; NaN where the label is no class.

    Of logits ``[b, c]`` that are NaN the prediction is wrong: so the accuracy tells the two apart.
    """
    right = jnp.argmax(logits.astype(jnp.float32), axis=-1) == labels
    right &= ~jnp.isnan(logits).any(axis=-1)  # argmax would take the first NaN for the largest
    is_class = (labels >= 0) & (labels < logits.shape[-1])
    return jnp.where(is_class, right.astype(jnp.float32), jnp.nan)
