"""Residual networks for images: CIFAR ResNets, Wide ResNets, and the ResNets for ImageNet."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from nf_resnets import schemes
from nf_resnets.models.blocks import Layers, PostActivationBlock, PreActivationBlock
from nf_resnets.models.layers import Dense, checked_images, dropout, lecun_fan_in, max_pool, relu
from nf_resnets.models.stage import dropout_rates, stages

SIZES = {
    18: (2, 2, 2, 2), 26: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3),
    152: (3, 8, 36, 3), 200: (3, 24, 36, 3),
}  # fmt: skip
"""Blocks in each of the four stages, by the number of layers."""

BASIC = (18, 34)
"""The depths of those with basic blocks; the others have bottlenecks."""

EXPANSION = 4
"""Channels of a bottleneck's output over those inside its branch."""


def num_branches(network: Any) -> int:
    """``L``, the number of residual branches; 0 where the scheme leaves them out."""
    return sum(network.sizes) if schemes.get(network.scheme).anatomy.branches else 0


def branch_dropout(network: Any) -> tuple[float, ...]:
    """The rate of dropout in each branch, as :func:`nf_resnets.init.rescalenet` takes it."""
    return dropout_rates(network.conv_dropout, network.sizes)


class CifarResNet(nn.Module):
    r"""The residual network of He et al. for CIFAR: ``6n + 2`` layers in three stages.

    ``relu(stem(x))``, three stages of ``n`` post-activation blocks with 16, 32 and 64 channels, the
    mean over the image, the head. ``L = 3n`` residual branches of ``m = 2`` layers.

    Attributes:
      depth: the number of weight layers, ``6n + 2`` (ResNet-110: 110, ``L = 54``).
      scheme: a scheme's name or value; the network contains what its anatomy asks for. The
        parameters that ``init`` returns are a standard initialisation (He fan_out, the head
        ``N(0, 1 / fan_in)``, multipliers and alphas 1); apply the scheme's function to them.
      num_classes: ``c``.
      stem_channels: channels of the first stage, doubled from stage to stage.
      dropout: the rate of dropout before the head, where the scheme asks for it.
      conv_dropout: the rate of dropout of whole channels after each convolution of the branches of
        the last two stages.
      bn_groups: into how many slices BatchNorm cuts the batch that it is given.
      remat: recompute the blocks in the backward pass: memory for activations grows as the square
        root of the depth, and a step computes the forward pass twice.
      dtype: what the convolutions compute in; parameters and logits are float32.

    Raises:
      ValueError: if ``depth`` is not ``6n + 2`` with ``n >= 1``, or no scheme for post-activation
        networks has that name.

    Source: He, Zhang, Ren, Sun, *Deep Residual Learning*, CVPR 2016, section 4.2; Fixup's block:
    Zhang, Dauphin, Ma, ICLR 2019, figure 1.

    Example:
      >>> model = CifarResNet(depth=20, scheme="fixup")
      >>> images = jnp.zeros((1, 32, 32, 3))
      >>> shapes = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
      >>> model.num_branches, shapes["stage_1"]["rest"]["conv_1"]["kernel"].shape
      (9, (2, 3, 3, 16, 16))
    """

    depth: int
    scheme: str | schemes.Scheme = "fixup"
    num_classes: int = 10
    stem_channels: int = 16
    dropout: float = 0.6
    conv_dropout: float = 0.0
    bn_groups: int = 1
    remat: bool = False
    dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        if self.depth < 8 or self.depth % 6 != 2:
            raise ValueError(f"depth={self.depth} found; a CIFAR ResNet has 6n + 2 layers, n >= 1.")
        schemes.fitting(self.scheme, "post_activation")
        super().__post_init__()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of blocks of each stage."""
        return ((self.depth - 2) // 6,) * 3

    num_branches = property(num_branches)
    branch_dropout = property(branch_dropout)

    @nn.compact
    def __call__(
        self, images: jax.Array, train: bool = False, keys: jax.Array | None = None
    ) -> jax.Array:
        """Images ``[B, H, W, C]`` (and PRNG keys ``[B]``) to logits ``[B, num_classes]``."""
        layers = Layers(self, schemes.get(self.scheme).anatomy, train)
        x = layers.conv(self.stem_channels, after_relu=False, name="stem")(checked_images(images))
        x = relu(layers.center(layers.norm(x, "norm_stem"), "bias_stem"))
        block = partial(PostActivationBlock, projection=False)
        widths = tuple(self.stem_channels * 2**index for index in range(3))
        x = stages(self, block, x, layers, widths=widths, strides=(1, 2, 2), keys=keys)
        x = layers.norm(x, "norm_head", at=("last",))
        return head(self, x, layers, keys)


class WideResNet(nn.Module):
    r"""The Wide ResNet of Zagoruyko and Komodakis: ``6N + 4`` layers, ``k`` times as wide.

    The stem has 16 channels, the three stages of ``N`` pre-activation blocks have ``16k``, ``32k``
    and ``64k``; then a ReLU, the mean over the image, the head. ``L = 3N = (n - 4)/2`` residual
    branches of ``m = 2`` layers. With Fixup's anatomy a scalar bias stands before the last ReLU and
    before the head.

    Attributes:
      depth: ``n = 6N + 4``, the number of weight layers (WRN-28-10: 28, ``L = 12``).
      width: ``k``.
      stem_channels: channels of the stem and, times ``k``, of the first stage.

    All others are those of :class:`nf_resnets.models.CifarResNet`.

    Raises:
      ValueError: if ``depth`` is not ``6N + 4`` with ``N >= 1``, or no scheme for pre-activation
        networks has that name.

    Source: Zagoruyko, Komodakis, *Wide Residual Networks*, BMVC 2016.

    Example:
      >>> WideResNet(depth=28, width=10, scheme="fixup").num_branches
      12
    """

    depth: int
    width: int = 1
    scheme: str | schemes.Scheme = "fixup"
    num_classes: int = 10
    stem_channels: int = 16
    dropout: float = 0.6
    conv_dropout: float = 0.0
    bn_groups: int = 1
    remat: bool = False
    dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        if self.depth < 10 or self.depth % 6 != 4:
            raise ValueError(f"depth={self.depth} found; a WRN-n-k has n = 6N + 4 layers, N >= 1.")
        schemes.fitting(self.scheme, "pre_activation")
        super().__post_init__()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of blocks of each stage."""
        return ((self.depth - 4) // 6,) * 3

    num_branches = property(num_branches)
    branch_dropout = property(branch_dropout)

    @nn.compact
    def __call__(
        self, images: jax.Array, train: bool = False, keys: jax.Array | None = None
    ) -> jax.Array:
        """Images ``[B, H, W, C]`` (and PRNG keys ``[B]``) to logits ``[B, num_classes]``."""
        layers = Layers(self, schemes.get(self.scheme).anatomy, train)
        x = layers.conv(self.stem_channels, after_relu=False, name="stem")(checked_images(images))
        widths = tuple(self.stem_channels * self.width * 2**index for index in range(3))
        x = stages(self, PreActivationBlock, x, layers, widths=widths, strides=(1, 2, 2), keys=keys)
        x = layers.norm(x, "norm_head", at=("default", "merge", "last"))
        x = relu(layers.shift(x, "bias_relu"))
        return head(self, x, layers, keys)


class ResNet(nn.Module):
    r"""The residual network of He et al. for ImageNet, with post- or pre-activation blocks.

    A 7x7 convolution of stride 2 and a 3x3 max-pool of stride 2 (both padded alike on all sides),
    four stages of 64, 128, 256 and 512 channels, in bottlenecks four times as many, the mean over
    the image, the head. Where the shape changes
    the shortcut is a 1x1 convolution (with RescaleNet's anatomy of the average pool), and a
    bottleneck's stride is its 3x3 convolution's. ResNet-18 and ResNet-34 have basic blocks
    (``m = 2``), all others, ResNet-26 too, bottlenecks (``m = 3``).

    Version 1 has a ReLU after the stem and after each sum; version 2 none there, but one before
    each convolution of the branches and one before the mean. Fixup and RescaleNet were published
    on version 1, SkipInit and the normalizer-free ResNets on version 2.

    Attributes:
      depth: the number of weight layers: 18, 26, 34, 50 (``L = 16``), 101 (``L = 33``),
        152 (``L = 50``) or 200.
      version: 1, post-activation, or 2, pre-activation.
      stem_channels: channels of the stem, of which all others are multiples.
      width: how many times as many channels a bottleneck has inside; with 2 it is torchvision's
        ``wide_resnet50_2``.

    All others are those of :class:`nf_resnets.models.CifarResNet`.

    Raises:
      ValueError: if ``depth`` or ``version`` is not one of those above, ``width`` is not 1 where
        there are no bottlenecks, or no scheme for such networks has that name.

    Source: He, Zhang, Ren, Sun, *Deep Residual Learning*, CVPR 2016, table 1; *Identity Mappings*,
    ECCV 2016, for ResNet-200. ResNet-26, two bottlenecks in each stage, is of neither.

    Example:
      >>> ResNet(depth=50, scheme="fixup").num_branches
      16
    """

    depth: int = 50
    scheme: str | schemes.Scheme = "fixup"
    version: Literal[1, 2] = 1
    num_classes: int = 1000
    stem_channels: int = 64
    dropout: float = 0.2
    conv_dropout: float = 0.0
    bn_groups: int = 1
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
            raise ValueError(f"version={self.version!r} found; expected 1 or 2.")
        if self.width > 1 and self.depth in BASIC:
            raise ValueError(f"width={self.width} found for depth={self.depth}; expected 1.")
        schemes.fitting(self.scheme, "post_activation" if self.version == 1 else "pre_activation")
        super().__post_init__()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of blocks of each stage."""
        return SIZES[self.depth]

    num_branches = property(num_branches)
    branch_dropout = property(branch_dropout)

    @nn.compact
    def __call__(
        self, images: jax.Array, train: bool = False, keys: jax.Array | None = None
    ) -> jax.Array:
        """Images ``[B, H, W, C]`` (and PRNG keys ``[B]``) to logits ``[B, num_classes]``."""
        layers = Layers(self, schemes.get(self.scheme).anatomy, train)
        x = layers.conv(self.stem_channels, size=7, stride=2, after_relu=False, name="stem")(
            checked_images(images)
        )
        if self.version == 1:
            x = relu(layers.center(layers.norm(x, "norm_stem"), "bias_stem"))
        x = max_pool(x, 3, 2, padding=1)
        block: Any = PostActivationBlock if self.version == 1 else PreActivationBlock
        expansion = 1 if self.depth in BASIC else EXPANSION
        if expansion > 1:
            block = partial(block, kernels=(1, 3, 1), expansion=expansion, width=self.width)
        widths = tuple(self.stem_channels * 2**index * expansion for index in range(4))
        x = stages(self, block, x, layers, widths=widths, strides=(1, 2, 2, 2), keys=keys)
        if self.version == 1:
            x = layers.norm(x, "norm_head", at=("last",))
        else:
            x = layers.norm(x, "norm_head", at=("default", "merge", "last"))
            x = relu(layers.shift(x, "bias_relu"))
        return head(self, x, layers, keys)


def head(network: Any, x: jax.Array, layers: Layers, keys: jax.Array | None) -> jax.Array:
    """The last feature map ``[B, H, W, C]`` to float32 logits ``[B, num_classes]``.

    Bias, mean over the image, dropout by the ``keys [B]``, classification layer.
    """
    anatomy = layers.anatomy
    if anatomy.channel_biases:
        x = layers.center(x, "bias_head")
    x = x.mean(axis=(1, 2), dtype=jnp.float32)
    x = layers.shift(x, "bias_head")
    if anatomy.dropout and layers.train:
        x = dropout(x, keys, network.dropout)
    return Dense(network.num_classes, lecun_fan_in, name="head")(x)
