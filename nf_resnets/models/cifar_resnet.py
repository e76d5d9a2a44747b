"""ResNet-(6n+2) for small images, with the published Fixup block."""

from __future__ import annotations

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from nf_resnets import schemes
from nf_resnets.models.blocks import Layers, PostActivationBlock
from nf_resnets.models.head import head
from nf_resnets.models.layers import checked_images, relu
from nf_resnets.models.noise import check_noise
from nf_resnets.models.stage import dropout_rates, stages


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
      survival: ``p_L``, the probability that the last branch is there in a training step; that of
        the l-th is ``1 - (l / L) (1 - p_L)``, stochastic depth.
      bn_groups: into how many slices BatchNorm cuts the batch that it is given.
      unroll: blocks in one turn of the compiled loop over a stage's blocks.
      remat: recompute the blocks in the backward pass: memory for activations grows as the square
        root of the depth, and a step computes the forward pass twice.
      dtype: what the convolutions compute in; parameters and logits are float32.

    Raises:
      ValueError: if ``depth`` is not ``6n + 2`` with ``n >= 1``, a count is below 1, a rate or
        ``survival`` is out of its range, or no scheme for post-activation networks has that name.

    Source: He, Zhang, Ren, Sun, *Deep Residual Learning*, CVPR 2016, section 4.2; Fixup's block:
    Zhang, Dauphin, Ma, ICLR 2019, figure 1.

    Example:
      >>> model = CifarResNet(depth=20, scheme="fixup")
      >>> model.num_branches
      9
      >>> images = jnp.zeros((1, 32, 32, 3))
      >>> shapes = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
      >>> shapes["stage_1"]["rest"]["conv_1"]["kernel"].shape
      (2, 3, 3, 16, 16)
    """

    depth: int
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
        if self.depth < 8 or self.depth % 6 != 2:
            raise ValueError(f"depth={self.depth} found; a CIFAR ResNet has 6n + 2 layers, n >= 1.")
        schemes.fitting(self.scheme, "post_activation")
        check_noise(self)
        super().__post_init__()

    @property
    def num_branches(self) -> int:
        """``L``, the number of residual branches."""
        has_branches = schemes.get(self.scheme).anatomy.branches
        return (self.depth - 2) // 2 if has_branches else 0

    @property
    def branch_dropout(self) -> tuple[float, ...]:
        """The rate of dropout in each branch, as :func:`nf_resnets.init.rescalenet` takes it."""
        return dropout_rates(self.conv_dropout, ((self.depth - 2) // 6,) * 3)

    @nn.compact
    def __call__(
        self, images: jax.Array, train: bool = False, keys: jax.Array | None = None
    ) -> jax.Array:
        """Images ``[B, H, W, C]`` (and PRNG keys ``[B]``) to logits ``[B, num_classes]``."""
        layers = Layers(self, schemes.get(self.scheme).anatomy, train)
        x = layers.conv(self.stem_channels, after_relu=False, name="stem")(checked_images(images))
        x = relu(layers.center(layers.norm(x, "norm_stem"), "bias_stem"))
        x = stages(
            self,
            partial(PostActivationBlock, projection=False),
            x,
            layers,
            sizes=((self.depth - 2) // 6,) * 3,
            widths=tuple(self.stem_channels * 2**index for index in range(3)),
            strides=(1, 2, 2),
            keys=keys,
        )
        x = layers.norm(x, "norm_head", at=("last",))
        return head(self, x, layers, keys)


__all__ = ["CifarResNet"]
