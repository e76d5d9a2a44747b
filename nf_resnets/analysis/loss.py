"""The cross-entropy that the analyses differentiate, and the labels that it takes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nf_resnets.init.tree import is_concrete


def cross_entropies(logits: jax.Array, labels: Any) -> jax.Array:
    """The loss of every example, ``[B]`` for logits ``[B, c]``; refuses wrong labels."""
    check_labels(logits, labels)
    return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(labels))


def check_labels(logits: Any, labels: Any) -> None:
    """Refuses labels that are not one class for each example; traced values are not looked at.

    Raises:
      ValueError: if they are of another shape or dtype, as one-hot labels are, or out of range.
    """
    shape, count = list(logits.shape[:-1]), logits.shape[-1]
    found = labels if hasattr(labels, "dtype") else np.asarray(labels)
    expected = f"expected one integer from 0 to {count - 1} for each example, of shape {shape}."
    if list(found.shape) != shape or not jnp.issubdtype(found.dtype, jnp.integer):
        raise ValueError(
            f"labels of shape {list(found.shape)} and dtype {found.dtype} found; {expected}"
        )
    if is_concrete(found):
        wrong = np.asarray(found)[(np.asarray(found) < 0) | (np.asarray(found) >= count)]
        if wrong.size:
            raise ValueError(f"labels has the value {wrong.flat[0]}; {expected}")


__all__ = ["check_labels", "cross_entropies"]
