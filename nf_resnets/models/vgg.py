"""VGG-11 to VGG-19: deep networks for ImageNet without shortcuts."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import schemes
from nf_resnets.models.blocks import Layers
from nf_resnets.models.layers import Dense, checked_images, dropout, lecun_fan_in, max_pool, relu

CONFIGURATIONS = {
    11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4),
}  # fmt: skip
"""Convolutions before each of the five max-pools, by the number of layers: the published
configurations A, B, D and E."""

_MULTIPLES = (1, 2, 4, 8, 8)  # channels before each max-pool, over those of the first layer


class VGG(nn.Module):
    r"""The network of Simonyan and Zisserman: 3x3 convolutions, five max-pools, dense layers.

    The layers are ``features_1``, ``features_2``, ..., each with a ReLU; the last feature map is
    averaged to ``7 x 7`` positions and flattened (row, column, channel); then ``classifier_1``,
    ``classifier_2``, each with a ReLU, and the head. There is no residual branch, ``L = 0``.

    RescaleNet's anatomy gives each layer but the first a bias for each channel before it, that of
    ``classifier_1`` standing before the mean; plain networks have a bias vector in every layer; a
    norm follows the convolutions only, and the dense layers keep their bias vectors.

    Attributes:
      depth: the number of weight layers with two dense layers before the head: 11, 13, 16 or 19.
      scheme: as of :class:`nf_resnets.models.CifarResNet`, and so are ``bn_groups`` and ``dtype``.
      num_classes: ``c``.
      stem_channels: channels of the first layer, of which all others are multiples.
      classifier: the widths of the dense layers before the head; ``()`` leaves the head alone.
      pool_size: positions on each side to which the last feature map is averaged; with 1 and no
        ``classifier`` it is the network that is used on small images.
      dropout: the rate of dropout after each dense layer's ReLU; 0 by default, 0.5 as published.

    Raises:
      ValueError: if ``depth`` is not one of those above, no scheme for networks without shortcuts
        has that name, or an image has less than 32 pixels on a side, of which five max-pools leave
        nothing.

    Source: Simonyan, Zisserman, *Very Deep Convolutional Networks*, ICLR 2015, table 1.

    Example:
      >>> images, model = jnp.zeros((2, 224, 224, 3)), VGG(depth=16, scheme="plain")
      >>> jax.eval_shape(model.init_with_output, jax.random.key(0), images)[0].shape
      (2, 1000)
    """

    depth: int = 16
    scheme: str | schemes.Scheme = "plain"
    num_classes: int = 1000
    stem_channels: int = 64
    classifier: tuple[int, ...] = (4096, 4096)
    pool_size: int = 7
    dropout: float = 0.0
    bn_groups: int = 1
    dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        if self.depth not in CONFIGURATIONS:
            *others, last = map(str, CONFIGURATIONS)
            raise ValueError(f"depth={self.depth!r} found; VGG has {', '.join(others)} or {last}.")
        schemes.fitting(self.scheme, "plain")
        super().__post_init__()

    @property
    def num_branches(self) -> int:
        """``L = 0``: there are no residual branches."""
        return 0

    @nn.compact
    def __call__(
        self, images: jax.Array, train: bool = False, keys: jax.Array | None = None
    ) -> jax.Array:
        """Images ``[B, H, W, C]`` (and dropout's keys ``[B]``) to logits ``[B, num_classes]``."""
        if min(checked_images(images).shape[1:3]) < 32:
            raise ValueError(f"images of shape {images.shape} found; expected sides of 32 or more.")
        anatomy = schemes.get(self.scheme).anatomy
        layers = Layers(self, anatomy, train)
        x, index = images, 0
        for length, multiple in zip(CONFIGURATIONS[self.depth], _MULTIPLES, strict=True):
            for _ in range(length):
                index += 1
                name = f"features_{index}"
                x = x if index == 1 else layers.center(x, f"bias_{name}")
                conv = layers.conv(multiple * self.stem_channels, after_relu=index > 1, name=name)
                x = relu(layers.norm(conv(x), f"norm_{name}"))
            x = max_pool(x, 2, 2)
        x = layers.norm(x, "norm_head", at=("last",))

        names = [f"classifier_{i}" for i in range(1, len(self.classifier) + 1)]
        # A bias for each channel, not for each position of each channel.
        x = layers.center(x, f"bias_{[*names, 'head'][0]}")
        x = adaptive_average_pool(x, self.pool_size).reshape(x.shape[0], -1)
        for i, (name, width) in enumerate(zip(names, self.classifier, strict=True)):
            x = x if i == 0 else layers.center(x, f"bias_{name}")
            use_bias = not anatomy.channel_biases
            x = relu(Dense(width, use_bias=use_bias, dtype=self.dtype, name=name)(x))
            if self.dropout > 0 and train:
                # Each layer has keys of its own.
                folded = jax.vmap(jax.random.fold_in, (0, None))
                x = dropout(x, None if keys is None else folded(keys, i), self.dropout)
        x = layers.center(x, "bias_head") if names else x
        return Dense(self.num_classes, lecun_fan_in, name="head")(x)


def adaptive_average_pool(x: jax.Array, size: int) -> jax.Array:
    """Averages ``[B, H, W, C]`` to ``[B, size, size, C]``, whatever ``H`` and ``W`` are.

    Output ``i`` is the mean of the inputs ``floor(i H / size)`` to ``ceil((i + 1) H / size)``, the
    last not included, as PyTorch has it; a map smaller than ``size`` is repeated.

    Example:
      >>> adaptive_average_pool(jnp.arange(5.0).reshape(1, 5, 1, 1), 2)[0, :, 0, 0].tolist()
      [1.0, 3.0]
    """
    if x.shape[1:3] == (size, size):
        return x
    rows, columns = (jnp.asarray(_windows(length, size), x.dtype) for length in x.shape[1:3])
    return jnp.einsum("ih,bhwc,jw->bijc", rows, x, columns)


def _windows(length: int, size: int) -> np.ndarray:
    """The matrix ``[size, length]`` that averages."""
    matrix = np.zeros((size, length))
    for i in range(size):
        start, stop = i * length // size, -(-(i + 1) * length // size)
        matrix[i, start:stop] = 1 / (stop - start)
    return matrix
