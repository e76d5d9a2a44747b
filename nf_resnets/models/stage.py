"""A stage: blocks of one shape, computed by a scan over their stacked parameters."""

from __future__ import annotations

from functools import partial
from typing import Any

import flax.linen as nn
import jax

from nf_resnets.schemes import Anatomy


class Stage(nn.Module):
    """``num_blocks`` residual blocks; the first may change the shape, the rest are scanned.

    The parameters of the first block are under ``first``, those of the rest under ``rest``, each
    with a leading axis ``[num_blocks - 1, ...]``, whatever ``unroll`` and ``remat`` are: a tree
    trained with one setting runs under any other.

    Attributes:
      block: a block's class with all but its stride bound: ``block(stride=, name=)``.
      num_blocks: how many.
      stride: of the first block.
      unroll: how many blocks the compiled loop repeats in one turn; ``num_blocks - 1`` or more
        leaves no loop, which compiles slowly for deep networks.
      remat: whether the backward pass recomputes the inside of each block, keeping only the
        blocks' inputs.
    """

    block: Any
    num_blocks: int
    stride: int
    unroll: int = 1
    remat: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, H, W, C_in]`` to ``[B, ceil(H / stride), ceil(W / stride), C_out]``."""
        x = self._run(self.block(stride=self.stride, name="first"), x, in_loop=False)
        length = self.num_blocks - 1
        if length == 0:
            return x
        in_loop = self.unroll < length
        scanned = nn.scan(
            lambda block, carry, _: (self._run(block, carry, in_loop=in_loop), None),
            variable_axes={"params": 0, "batch_stats": 0},
            split_rngs={"params": True, "dropout": True},
            length=length,
            unroll=min(self.unroll, length),
        )
        x, _ = scanned(self.block(stride=1, name="rest"), x, None)
        return x

    def _run(self, block: nn.Module, x: jax.Array, *, in_loop: bool) -> jax.Array:
        if not self.remat:
            return block(x)
        # A loop by itself keeps the compiler from merging the recomputation with the first one.
        return nn.remat(lambda inner, value: inner(value), prevent_cse=not in_loop)(block, x)


def three_stages(
    network: Any, block: Any, x: jax.Array, *, channels: int, anatomy: Anatomy, train: bool
) -> jax.Array:
    """The middle of a network for small images: three stages, each half as large, twice as wide.

    Args:
      network: the network they are part of; its ``num_branches``, ``bn_groups``, ``dtype``,
        ``unroll`` and ``remat`` are used.
      block: the class of its blocks.
      x: ``[B, H, W, C]``.
      channels: of the first stage.
      anatomy: what the scheme asks for.
      train: whether BatchNorm uses the batch's statistics.

    Returns:
      ``[B, ceil(H / 4), ceil(W / 4), 4 channels]``.
    """
    for index in range(3):
        bound = partial(
            block,
            features=channels * 2**index,
            anatomy=anatomy,
            bn_groups=network.bn_groups,
            train=train,
            dtype=network.dtype,
        )
        x = Stage(
            bound,
            num_blocks=network.num_branches // 3,
            stride=1 if index == 0 else 2,
            unroll=network.unroll,
            remat=network.remat,
            name=f"stage_{index + 1}",
        )(x)
    return x


__all__ = ["Stage", "three_stages"]
