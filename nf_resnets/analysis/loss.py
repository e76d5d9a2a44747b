"""The cross-entropy that the analyses differentiate."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax


def cross_entropies(logits: jax.Array, labels: Any) -> jax.Array:
    """The loss of every example, ``[B]`` for logits ``[B, c]``; refuses wrong labels."""
    check_labels(logits, labels)
    return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(labels))


def check_labels(logits: Any, labels: Any) -> None:
    """Refuses labels that are not one class for each example; traced values are not looked at."""
    shape, count = list(logits.shape[:-1]), logits.shape[-1]
    wrong = list(np.shape(labels)) != shape
    if not wrong and not isinstance(labels, jax.core.Tracer):
        array = np.asarray(labels)
        wrong = array.dtype.kind not in "iu" or bool(((array < 0) | (array >= count)).any())
    if wrong:
        raise ValueError(
            f"labels of shape {list(np.shape(labels))} found; expected one integer from 0 to "
            f"{count - 1} for each example, of shape {shape}."
        )


__all__ = ["check_labels", "cross_entropies"]
