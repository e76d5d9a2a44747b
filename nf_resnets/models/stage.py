"""A stage: blocks of one shape, computed by a scan over their stacked parameters."""

from __future__ import annotations

from functools import partial
from typing import Any

import flax.linen as nn
import jax

from nf_resnets import calibration, taps
from nf_resnets.schemes import NO_CONSTANTS, Anatomy, BranchConstants

# Collections whose leaves get a leading axis that runs over the blocks of the loop.
_STACKED = (
    "params",
    "batch_stats",
    taps.TAPS,
    taps.PERTURBATIONS,
    calibration.CENTERING,
    calibration.UNIT_VARIANCE,
)


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
    def __call__(self, x: jax.Array, constants: BranchConstants = NO_CONSTANTS) -> jax.Array:
        """``[B, H, W, C_in]`` to ``[B, ceil(H / stride), ceil(W / stride), C_out]``.

        The constants are those of the stage's branches, ``[num_blocks]``.
        """
        first = self.block(stride=self.stride, name="first")
        x = self._run(first, x, constants.part(0), in_loop=False)
        length = self.num_blocks - 1
        if length == 0:
            return x
        in_loop = self.unroll < length
        scanned = nn.scan(
            lambda block, carry, own: (self._run(block, carry, own, in_loop=in_loop), None),
            variable_axes=dict.fromkeys(_STACKED, 0),
            split_rngs={"params": True, "dropout": True},
            length=length,
            unroll=min(self.unroll, length),
        )
        x, _ = scanned(self.block(stride=1, name="rest"), x, constants.part(slice(1, None)))
        return x

    def _run(
        self, block: nn.Module, x: jax.Array, constants: BranchConstants, *, in_loop: bool
    ) -> jax.Array:
        if not self.remat:
            return block(x, constants)
        # A loop by itself keeps the compiler from merging the recomputation with the first one.
        recomputed = nn.remat(lambda inner, value, own: inner(value, own), prevent_cse=not in_loop)
        return recomputed(block, x, constants)


def stages(
    network: Any,
    block: Any,
    x: jax.Array,
    *,
    sizes: tuple[int, ...],
    widths: tuple[int, ...],
    strides: tuple[int, ...],
    anatomy: Anatomy,
    train: bool,
) -> jax.Array:
    """The middle of a network: its stages ``stage_1``, ``stage_2``, ... one after another.

    Args:
      network: the network they are part of; its ``bn_groups``, ``dtype``, ``unroll`` and ``remat``
        are used.
      block: the class of its blocks.
      x: ``[B, H, W, C]``.
      sizes: the number of blocks of each stage.
      widths: the channels of each stage's output.
      strides: of each stage's first block.
      anatomy: what the scheme asks for.
      train: whether BatchNorm uses the batch's statistics.

    Returns:
      The last stage's output, ``[B, H', W', widths[-1]]``.
    """
    shapes = list(zip(sizes, widths, strides, (x.shape[-1], *widths), strict=False))
    transitions: list[bool] = []
    for size, width, stride, before in shapes:
        transitions += [stride > 1 or width != before] + [False] * (size - 1)
    constants = anatomy.constants(tuple(transitions))
    start = 0
    for index, (size, width, stride, _) in enumerate(shapes, start=1):
        bound = partial(
            block,
            features=width,
            anatomy=anatomy,
            bn_groups=network.bn_groups,
            train=train,
            dtype=network.dtype,
        )
        stage = Stage(
            bound,
            num_blocks=size,
            stride=stride,
            unroll=network.unroll,
            remat=network.remat,
            name=f"stage_{index}",
        )
        x = stage(x, constants.part(slice(start, start + size)))
        start += size
    return x


__all__ = ["Stage", "stages"]
