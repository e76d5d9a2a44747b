"""The cross-entropy that the analyses differentiate."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from nf_resnets.init.data_dependent import check_labels


def cross_entropies(logits: jax.Array, labels: Any) -> jax.Array:
    """The loss of every example, ``[B]`` for logits ``[B, c]``; refuses wrong labels."""
    check_labels(logits, labels)
    return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(labels))


__all__ = ["cross_entropies"]
