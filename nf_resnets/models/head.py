"""The head of every image network: from the last feature map to the logits."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from nf_resnets.models.blocks import Layers
from nf_resnets.models.layers import STANDARDIZATIONS, Head, dropout


def head(network: Any, x: jax.Array, layers: Layers, keys: jax.Array | None) -> jax.Array:
    """Bias, mean over the image, a ReLU's gain, dropout, classification layer.

    Args:
      network: the network it is part of; its ``num_classes`` and ``dropout`` are used.
      x: the last feature map, ``[B, H, W, C]``.
      layers: the network's layers.
      keys: PRNG keys ``[B]``; needed for dropout only.

    Returns:
      Logits ``[B, num_classes]``, float32.
    """
    anatomy = layers.anatomy
    if anatomy.channel_biases:
        x = layers.center(x, "bias_head")
    x = x.mean(axis=(1, 2), dtype=jnp.float32)
    x = layers.shift(x, "bias_head")
    if anatomy.standardized and STANDARDIZATIONS[anatomy.standardized].head:
        x = x * STANDARDIZATIONS[anatomy.standardized].relu_gain
    if anatomy.dropout and layers.train:
        x = dropout(x, keys, network.dropout)
    return Head(network.num_classes, name="head")(x)


__all__ = ["head"]
