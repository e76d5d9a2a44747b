"""Groups of blocks that the backward pass recomputes: a plain loop's numbers, in less memory."""

import functools
import re
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import schemes
from nf_resnets.models.blocks import PreActivationBlock
from nf_resnets.models.stage import KEPT_IN_BLOCK, Stage
from nf_resnets.schemes import BranchConstants
from tests.models.trees import assert_close, quick_jit, shapes

# The same operations in the same order, fused differently: float32 rounding, 6e-8 a sum.
TOLERANCE = 1e-5
# Up to 7 blocks in the loop are groups of one; 12 are six of two, 17 (a prime) five of three and
# leave two, 29 (a prime) nine of three and leave two.
NUM_BLOCKS = (1, 2, 3, 5, 8, 13, 18, 30)


class Block(nn.Module):
    """All that a block may have, and no convolution: it compiles in no time."""

    stride: int

    @nn.compact
    def __call__(self, x: jax.Array, constants: BranchConstants, keys: Any = None) -> jax.Array:
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (x.shape[-1],) * 2)
        mean = self.variable("batch_stats", "mean", jnp.zeros, x.shape[1:])
        h = jnp.sin(x + self.param("bias", nn.initializers.zeros, (1, x.shape[-1]))) @ kernel
        if not self.is_initializing():
            mean.value = 0.9 * mean.value + 0.1 * h.mean(axis=0)
        h = h - mean.value.reshape(1, -1)
        h = h if keys is None else h * jax.random.bernoulli(keys, 0.7, h.shape)
        return constants.identity * x + constants.residual * h


@functools.cache
def everything(num_blocks: int, *, remat: bool):
    """Output, gradients (of parameters and input) and all that the blocks wrote."""
    stage = Stage(Block, num_blocks=num_blocks, stride=1, remat=remat)
    rng = np.random.default_rng(num_blocks)
    x = rng.standard_normal((6, 4), dtype=np.float32)
    constants = BranchConstants(
        residual=rng.uniform(0.2, 0.5, num_blocks).astype(np.float32),
        identity=rng.uniform(0.8, 1.0, num_blocks).astype(np.float32),
    )

    def random(shapes: Any) -> Any:
        return jax.tree.map(lambda s: rng.standard_normal(s.shape, dtype=np.float32) / 2, shapes)

    variables = random(jax.eval_shape(stage.init, jax.random.key(0), x, constants))
    keys = jax.random.split(jax.random.key(1), num_blocks)

    def loss_fn(params: Any, x: jax.Array):
        variables_of = {**variables, "params": params}
        y, written = stage.apply(variables_of, x, constants, keys, mutable=["batch_stats"])
        return jnp.sin(y).sum(), (y, written)

    grad = quick_jit(jax.grad(loss_fn, (0, 1), has_aux=True))
    return grad(variables["params"], x)


@pytest.mark.every(6)  # 1 block, and 18
@pytest.mark.parametrize("num_blocks", NUM_BLOCKS)
def test_groups_compute_what_a_loop_computes(num_blocks):
    """Values, gradients and running statistics, with each block's own numbers and draws."""
    found = everything(num_blocks, remat=True)
    assert_close(found, everything(num_blocks, remat=False), TOLERANCE)


def test_recomputed_blocks_outside_a_loop_stand_behind_barriers():
    """The compiler would merge the recomputation with the first one; a loop keeps it from that."""
    make = partial(PreActivationBlock, features=16, anatomy=schemes.get("fixup").anatomy)
    stage = Stage(make, num_blocks=17, stride=1, remat=True)
    x = jax.ShapeDtypeStruct((16, 16, 16, 16), np.float32)
    params = shapes(stage, x.shape[1:])["params"]
    grad = jax.grad(lambda p, x: stage.apply({"params": p}, x).sum())
    barriers = re.findall(r"prevent_cse=(\w+)", str(jax.make_jaxpr(grad)(params, x)))
    assert sorted(barriers) == ["False", "True"]  # the scanned ones, the first one


# --- Memory ------------------------------------------------------------------------------------

CHANNELS, IMAGE = 4, 8 * 8 * 4 * 4  # bytes of an image


@functools.cache
def kept_images(length: int, **options: Any) -> float:
    """By how many images' sizes the plan for one more image in the batch grows.

    What does not depend on the batch, the gradients and copies of parameters, is no activation.
    """
    anatomy = schemes.get("fixup").anatomy
    make = partial(PreActivationBlock, features=CHANNELS, anatomy=anatomy)
    stage = Stage(make, num_blocks=length + 1, stride=1, **options)

    def planned(batch: int) -> int:
        x = jax.ShapeDtypeStruct((batch, 8, 8, CHANNELS), np.float32)
        params = shapes(stage, x.shape[1:])["params"]
        grad = jax.grad(lambda p, x: stage.apply({"params": p}, x).sum())
        compiled = quick_jit(grad).lower(params, x).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    return (planned(96) - planned(32)) / 64 / IMAGE


def test_memory_grows_as_the_square_root_of_the_depth():
    short, long = (kept_images(length, remat=True) for length in (64, 1024))
    # A factor of sqrt(1024 / 64) = 4, and what the first block needs is no larger for more blocks.
    assert long <= 4 * short
    # The groups' inputs and the inside of one group, a block's work, the images and their gradient.
    assert long <= 2 * (KEPT_IN_BLOCK * 1024) ** 0.5 + 20
    # Without, each block keeps what enters its two convolutions, and two ReLU masks of a byte.
    assert kept_images(1024) >= 2.5 * 1024
