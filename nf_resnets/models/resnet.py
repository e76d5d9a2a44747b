"""ResNet-18 to ResNet-200: the residual networks for ImageNet, versions 1 and 2."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from nf_resnets import schemes
from nf_resnets.models.blocks import Layers, PostActivationBlock, PreActivationBlock
from nf_resnets.models.head import head
from nf_resnets.models.layers import checked_images, max_pool, relu
from nf_resnets.models.noise import check_noise
from nf_resnets.models.stage import dropout_rates, stages

SIZES = {
    18: (2, 2, 2, 2),
    26: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
    200: (3, 24, 36, 3),
}
"""Blocks in each of the four stages, by the number of layers."""

BASIC = (18, 34)
"""The depths of those with basic blocks; the others have bottlenecks."""

EXPANSION = 4
"""Channels of a bottleneck's output over those inside its branch."""


class ResNet(nn.Module):
    r"""The residual network of He et al. for ImageNet, with post- or pre-activation blocks.

    A 7x7 convolution of stride 2 and a 3x3 max-pool of stride 2 (both padded alike on all sides,
    unless the anatomy asks for TensorFlow's padding), four stages of 64, 128, 256 and 512 channels,
    in bottlenecks four times as many, the mean over the image, the head. Where the shape changes
    the shortcut is a 1x1 convolution (with RescaleNet's anatomy of the average pool), and a
    bottleneck's stride is its 3x3 convolution's. ResNet-18 and ResNet-34 have basic blocks
    (``m = 2``), all others, ResNet-26 too, bottlenecks (``m = 3``).

    Version 1 has a ReLU after the stem and after each sum; version 2 none there, but one before
    each convolution of the branches and one before the mean. Fixup and RescaleNet were published
    on version 1, SkipInit and the normaliser-free ResNets on version 2.

    Attributes:
      depth: the number of weight layers: 18, 26, 34, 50 (``L = 16``), 101 (``L = 33``),
        152 (``L = 50``) or 200.
      version: 1, post-activation, or 2, pre-activation.
      num_classes: ``c``.
      stem_channels: channels of the stem, of which all others are multiples.
      width: how many times as many channels a bottleneck has inside; with 2 it is torchvision's
        ``wide_resnet50_2``.

    All others are those of :class:`nf_resnets.models.CifarResNet`.

    Raises:
      ValueError: if ``depth`` or ``version`` is not one of those above, a count is below
        1, ``width`` is not 1 where there are no bottlenecks, a rate or ``survival`` is out of its
        range, or no scheme for such networks has that name.

    Source: He, Zhang, Ren, Sun, *Deep Residual Learning*, CVPR 2016, table 1; *Identity Mappings*,
    ECCV 2016, for ResNet-200. ResNet-26, two bottlenecks in each stage, is of neither.

    Example:
      >>> model = ResNet(depth=50, scheme="fixup")
      >>> model.num_branches
      16
      >>> images = jnp.zeros((2, 224, 224, 3))
      >>> logits, variables = jax.eval_shape(model.init_with_output, jax.random.key(0), images)
      >>> logits.shape
      (2, 1000)
      >>> variables["params"]["stage_3"]["rest"]["conv_2"]["kernel"].shape
      (5, 3, 3, 256, 256)
    """

    depth: int = 50
    scheme: str | schemes.Scheme = "fixup"
    version: Literal[1, 2] = 1
    num_classes: int = 1000
    stem_channels: int = 64
    dropout: float = 0.2
    conv_dropout: float = 0.0
    survival: float = 1.0
    bn_groups: int = 1
    unroll: int = 1
    remat: bool = False
    dtype: Any = jnp.float32
    width: int = 1

    def __post_init__(self) -> None:
        if self.depth not in SIZES:
            *others, last = map(str, SIZES)
            raise ValueError(
                f"depth={self.depth!r} found; a ResNet for ImageNet has {', '.join(others)} or "
                f"{last} layers."
            )
        if self.version not in (1, 2):
            raise ValueError(
                f"version={self.version!r} found; expected 1, post-activation, or 2, "
                "pre-activation."
            )
        if self.width < 1 or (self.width > 1 and self.depth in BASIC):
            raise ValueError(
                f"width={self.width} found for depth={self.depth}; expected 1 or more, and 1 in a "
                "network without bottlenecks."
            )
        schemes.fitting(self.scheme, "post_activation" if self.version == 1 else "pre_activation")
        check_noise(self)
        super().__post_init__()

    @property
    def num_branches(self) -> int:
        """``L``, the number of residual branches."""
        return sum(SIZES[self.depth]) if schemes.get(self.scheme).anatomy.branches else 0

    @property
    def branch_dropout(self) -> tuple[float, ...]:
        """The rate of dropout in each branch, as :func:`nf_resnets.init.rescalenet` takes it."""
        return dropout_rates(self.conv_dropout, SIZES[self.depth])

    @nn.compact
    def __call__(
        self, images: jax.Array, train: bool = False, keys: jax.Array | None = None
    ) -> jax.Array:
        """Images ``[B, H, W, C]`` (and PRNG keys ``[B]``) to logits ``[B, num_classes]``."""
        expansion = 1 if self.depth in BASIC else EXPANSION
        layers = Layers(self, schemes.get(self.scheme).anatomy, train)
        x = layers.conv(self.stem_channels, size=7, stride=2, after_relu=False, name="stem")(
            checked_images(images)
        )
        if self.version == 1:
            x = relu(layers.center(layers.norm(x, "norm_stem"), "bias_stem"))
        x = max_pool(x, 3, 2, padding=1, same_padding=layers.anatomy.same_padding)
        block: Any = PostActivationBlock if self.version == 1 else PreActivationBlock
        if self.depth not in BASIC:
            block = partial(block, kernels=(1, 3, 1), expansion=EXPANSION, width=self.width)
        x = stages(
            self,
            block,
            x,
            layers,
            sizes=SIZES[self.depth],
            widths=tuple(self.stem_channels * 2**index * expansion for index in range(4)),
            strides=(1, 2, 2, 2),
            keys=keys,
        )
        if self.version == 1:
            x = layers.norm(x, "norm_head", at=("last",))
        else:
            x = layers.norm(x, "norm_head", at=("default", "merge", "last"))
            x = relu(layers.shift(x, "bias_relu"))
        return head(self, x, layers, keys)


__all__ = ["BASIC", "SIZES", "ResNet"]
