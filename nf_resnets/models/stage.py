"""A stage: blocks of one shape, computed by a scan over their stacked parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.core
import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from nf_resnets.models.blocks import Layers, branch_keys
from nf_resnets.schemes import NO_CONSTANTS, BranchConstants

# Collections whose leaves get a leading axis that runs over the blocks of the loop.
_STACKED = ("params", "batch_stats")

KEPT_IN_BLOCK = 2.5
"""About how many arrays of its input's size a block of two convolutions keeps for its backward
pass: what enters each convolution, and two ReLU masks of a byte."""


class Stage(nn.Module):
    """``num_blocks`` residual blocks; the first may change the shape, the rest are scanned.

    The parameters of the first block are under ``first``, those of the rest under ``rest``, each
    with a leading axis ``[num_blocks - 1, ...]``, whatever ``remat`` is.

    Attributes:
      block: a block's class with all but its stride bound: ``block(stride=, name=)``.
      num_blocks: how many.
      stride: of the first block.
      remat: whether the backward pass recomputes the blocks, group after group, of which the
        forward pass keeps no more than the inputs (see :func:`group_size`).
    """

    block: Any
    num_blocks: int
    stride: int
    remat: bool = False

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        constants: BranchConstants = NO_CONSTANTS,
        keys: jax.Array | None = None,
    ) -> jax.Array:
        """``[B, H, W, C_in]`` to ``[B, ceil(H / stride), ceil(W / stride), C_out]``.

        Constants and PRNG keys are those of the stage's branches, ``[num_blocks]`` and
        ``[num_blocks, B]``.
        """
        first = self.block(stride=self.stride, name="first")
        call = nn.remat(_call) if self.remat else _call
        x = call(first, x, constants.part(0), None if keys is None else keys[0])
        if self.num_blocks == 1:
            return x
        rest = constants.part(slice(1, None))
        if self.is_initializing():
            return self._created(x, rest)
        return self._computed(x, rest, None if keys is None else keys[1:])

    def _created(self, x: jax.Array, constants: BranchConstants) -> jax.Array:
        scanned = nn.scan(
            lambda block, x, constants: (block(x, constants), None),
            variable_axes=dict.fromkeys(_STACKED, 0),
            split_rngs={"params": True},
            length=self.num_blocks - 1,
        )
        return scanned(self.block(stride=1, name="rest"), x, constants)[0]

    def _computed(
        self, x: jax.Array, constants: BranchConstants, keys: jax.Array | None
    ) -> jax.Array:
        # Flax's own scan takes a stack as it is; here it is cut into groups, and into a remainder.
        block, path = self.block(stride=1, parent=None), (*self.path, "rest")
        stacked: dict[str, Any] = {
            name: self.get_variable(name, "rest")
            for name in _STACKED
            if self.has_variable(name, "rest")
        }
        written = [name for name in _STACKED[1:] if self.is_mutable_collection(name)]

        def step(x: jax.Array, part: Any) -> tuple[jax.Array, Any]:
            variables, constants, keys = part
            with flax.core.bind(variables, mutable=written).temporary() as scope:
                # Where the block stands in the network, for those who ask a module for its path.
                scope.path = path
                x = _call(block.clone(parent=scope), x, constants, keys)
                return x, scope.mutable_variables()

        run = _grouped if self.remat else _scan
        x, collections = run(step, x, (stacked, constants, keys), self.num_blocks - 1)
        for name, tree in collections.items():
            self.put_variable(name, "rest", tree)
        return x


def _call(block: Any, *inputs: Any) -> jax.Array:
    return block(*inputs)


Step = Callable[[jax.Array, Any], tuple[jax.Array, Any]]


def _scan(step: Step, x: jax.Array, stacks: Any, length: int) -> tuple[jax.Array, Any]:
    return lax.scan(step, x, stacks, length=length)


def _grouped(step: Step, x: jax.Array, stacks: Any, length: int) -> tuple[jax.Array, Any]:
    """The same numbers as :func:`_scan`'s; the backward pass recomputes one group after another."""
    size = group_size(length)
    count, left = divmod(length, size)
    whole = count * size

    def group(x: jax.Array, part: Any) -> tuple[jax.Array, Any]:
        return _scan(step, x, part, jax.tree.leaves(part)[0].shape[0])

    groups = jax.tree.map(lambda leaf: leaf[:whole].reshape(count, size, *leaf.shape[1:]), stacks)
    # A loop by itself keeps the compiler from merging the recomputation with the first one.
    recomputed = jax.checkpoint(group, prevent_cse=count == 1)
    x, outputs = lax.scan(recomputed, x, groups)
    outputs = jax.tree.map(lambda leaf: leaf.reshape(whole, *leaf.shape[2:]), outputs)
    if not left:
        return x, outputs
    x, more = jax.checkpoint(group)(x, jax.tree.map(lambda leaf: leaf[whole:], stacks))
    return x, jax.tree.map(lambda *parts: jnp.concatenate(parts), outputs, more)


def group_size(length: int) -> int:
    r"""How many blocks make a group when ``length`` blocks are to need little memory.

    Groups of ``g`` blocks that keep ``c`` arrays each need ``n / g + c g`` arrays, the groups'
    inputs and the inside of one group: least, ``2 sqrt(c n)``, at ``g = sqrt(n / c)``, and at most
    a quarter more between half and twice of that. From there the nearest divisor of ``n`` is taken,
    for a remainder has to be cut off the stacked parameters, which copies them.

    Source: Chen, Xu, Zhang, Guestrin, *Training deep nets with sublinear memory cost*, 2016,
    section 4.1.

    Example:
      >>> [group_size(length) for length in (3, 17, 53, 165, 1665)]
      [1, 3, 5, 11, 37]
    """
    best = (length / KEPT_IN_BLOCK) ** 0.5
    near = range(max(1, math.ceil(best / 2)), math.floor(2 * best) + 1)
    divisors = [size for size in near if length % size == 0]
    if not divisors:
        return max(1, round(best))
    return min(divisors, key=lambda size: max(size / best, best / size))


def stages(
    network: Any,
    block: Any,
    x: jax.Array,
    layers: Layers,
    *,
    widths: tuple[int, ...],
    strides: tuple[int, ...],
    keys: jax.Array | None = None,
) -> jax.Array:
    """The stages ``stage_1``, ``stage_2``, ... of a network, one after another.

    ``network.sizes`` are their numbers of blocks, ``widths`` the channels of their outputs, and
    ``strides`` those of their first blocks.
    """
    anatomy, train, sizes = layers.anatomy, layers.train, network.sizes
    rates = dropout_rates(network.conv_dropout, sizes)
    # The blocks that change the shape.
    transitions = tuple(
        number == 0 and (stride > 1 or width != before)
        for size, width, stride, before in zip(
            sizes, widths, strides, (x.shape[-1], *widths[:-1]), strict=True
        )
        for number in range(size)
    )
    constants = anatomy.constants(transitions)
    random = train and anatomy.branches and not network.is_initializing()
    drawn = branch_keys(network, keys, len(transitions)) if random else None
    start = 0
    for index, (size, width, stride) in enumerate(zip(sizes, widths, strides, strict=True), 1):
        bound = partial(
            block,
            features=width,
            anatomy=anatomy,
            bn_groups=network.bn_groups,
            train=train,
            dropout=rates[start],
            dtype=network.dtype,
        )
        stage = Stage(bound, size, stride, network.remat, name=f"stage_{index}")
        blocks = slice(start, start + size)
        x = stage(x, constants.part(blocks), None if drawn is None else drawn[blocks])
        start += size
    return x


def dropout_rates(rate: float, sizes: tuple[int, ...]) -> tuple[float, ...]:
    """The rate of dropout in each branch: 0 but in the last two stages, as in RescaleNet."""
    without = sum(sizes[:-2])
    return (0.0,) * without + (rate,) * (sum(sizes) - without)
