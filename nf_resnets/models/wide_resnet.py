"""WRN-n-k: the pre-activation Wide ResNet for small images."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from nf_resnets import schemes
from nf_resnets.models.blocks import Layers, PreActivationBlock
from nf_resnets.models.head import head
from nf_resnets.models.layers import checked_images, relu
from nf_resnets.models.noise import check_noise
from nf_resnets.models.stage import dropout_rates, stages


class WideResNet(nn.Module):
    r"""The Wide ResNet of Zagoruyko and Komodakis: ``6N + 4`` layers, ``k`` times as wide.

    The stem has 16 channels, the three stages of ``N`` pre-activation blocks have ``16k``, ``32k``
    and ``64k``; then a ReLU, the mean over the image, the head. ``L = 3N = (n - 4)/2`` residual
    branches of ``m = 2`` layers. With Fixup's anatomy a scalar bias stands before the last ReLU and
    before the head.

    Attributes:
      depth: ``n = 6N + 4``, the number of weight layers (WRN-28-10: 28, ``L = 12``).
      width: ``k``.
      num_classes: ``c``.
      stem_channels: channels of the stem and, times ``k``, of the first stage.

    All others are those of :class:`nf_resnets.models.CifarResNet`.

    Raises:
      ValueError: if ``depth`` is not ``6N + 4`` with ``N >= 1``, a count is below 1, a
        rate or ``survival`` is out of its range, or no scheme for pre-activation networks has that
        name.

    Source: Zagoruyko, Komodakis, *Wide Residual Networks*, BMVC 2016.

    Example:
      >>> model = WideResNet(depth=28, width=10, scheme="fixup")
      >>> model.num_branches
      12
      >>> logits, _ = jax.eval_shape(
      ...     model.init_with_output, jax.random.key(0), jnp.zeros((2, 32, 32, 3)))
      >>> logits.shape
      (2, 10)
    """

    depth: int
    width: int = 1
    scheme: str | schemes.Scheme = "fixup"
    num_classes: int = 10
    stem_channels: int = 16
    dropout: float = 0.6
    conv_dropout: float = 0.0
    survival: float = 1.0
    bn_groups: int = 1
    unroll: int = 1
    remat: bool = False
    dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        if self.depth < 10 or self.depth % 6 != 4:
            raise ValueError(f"depth={self.depth} found; a WRN-n-k has n = 6N + 4 layers, N >= 1.")
        if self.width < 1:
            raise ValueError(f"width={self.width} found; expected k >= 1.")
        schemes.fitting(self.scheme, "pre_activation")
        check_noise(self)
        super().__post_init__()

    @property
    def num_branches(self) -> int:
        """``L``, the number of residual branches."""
        has_branches = schemes.get(self.scheme).anatomy.branches
        return (self.depth - 4) // 2 if has_branches else 0

    @property
    def branch_dropout(self) -> tuple[float, ...]:
        """The rate of dropout in each branch, as :func:`nf_resnets.init.rescalenet` takes it."""
        return dropout_rates(self.conv_dropout, ((self.depth - 4) // 6,) * 3)

    @nn.compact
    def __call__(
        self, images: jax.Array, train: bool = False, keys: jax.Array | None = None
    ) -> jax.Array:
        """Images ``[B, H, W, C]`` (and PRNG keys ``[B]``) to logits ``[B, num_classes]``."""
        layers = Layers(self, schemes.get(self.scheme).anatomy, train)
        x = layers.conv(self.stem_channels, after_relu=False, name="stem")(checked_images(images))
        x = stages(
            self,
            PreActivationBlock,
            x,
            layers,
            sizes=((self.depth - 4) // 6,) * 3,
            widths=tuple(self.stem_channels * self.width * 2**index for index in range(3)),
            strides=(1, 2, 2),
            keys=keys,
        )
        x = layers.norm(x, "norm_head", at=("default", "merge", "last"))
        x = relu(layers.shift(x, "bias_relu"))
        return head(self, x, layers, keys)


__all__ = ["WideResNet"]
