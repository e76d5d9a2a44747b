"""The parts that make a block of one's own norm-free, as Flax Linen modules.

The same parts for Flax NNX are in :mod:`nf_resnets.models.nnx_parts`.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from nf_resnets.models.dtypes import added, scaled
from nf_resnets.models.layers import Conv


class ScalarBias(nn.Module):
    """Fixup's scalar bias: adds one learnable number ``bias_scalar []``, from 0.

    It stands before every convolution, linear layer and activation of a branch.

    Source: Zhang, Dauphin, Ma, ICLR 2019, section 3, rule 3.
    """

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """An array of any shape to the same shape."""
        return shifted(self, "bias_scalar", x)


class Multiplier(nn.Module):
    """Fixup's and RescaleNet's scalar on a branch: a learnable ``multiplier []``, from 1.

    Source: Zhang, Dauphin, Ma, ICLR 2019, section 3, rule 3; Shao et al., NeurIPS 2020, section 4.
    """

    @nn.compact
    def __call__(self, branch: jax.Array) -> jax.Array:
        """An array of any shape to the same shape."""
        return scaled(branch, learnt_scalar(self, "multiplier"))


class FixupNorm(nn.Module):
    """Fixup's multiplier and scalar bias in the place of a norm: ``multiplier * x + bias_scalar``.

    It is called as Flax's BatchNorm, LayerNorm and GroupNorm are, so that ``norm=FixupNorm`` is the
    whole change in a network that takes its norm as an argument. What is about statistics has no
    effect. A branch whose last norm has ``scale_init=nn.initializers.zeros`` starts at 0, and
    ``init.fixup`` makes that multiplier 1 and the layer before it 0.

    Example:
      >>> norm = FixupNorm(use_running_average=False)
      >>> norm.init(jax.random.key(0), jnp.ones((1, 2)))["params"]
      {'multiplier': Array(1., dtype=float32), 'bias_scalar': Array(0., dtype=float32)}
    """

    use_running_average: bool | None = None
    axis: int = -1
    momentum: float = 0.99
    epsilon: float = 1e-5
    dtype: Any = None
    param_dtype: Any = jnp.float32
    use_bias: bool = True
    use_scale: bool = True
    bias_init: Any = nn.initializers.zeros
    scale_init: Any = nn.initializers.ones
    axis_name: str | None = None
    axis_index_groups: Any = None
    use_fast_variance: bool = True
    force_float32_reductions: bool = True
    reduction_axes: Any = -1
    feature_axes: Any = -1
    num_groups: int | None = None
    group_size: int | None = None

    @nn.compact
    def __call__(
        self, x: jax.Array, use_running_average: bool | None = None, *, mask: Any = None
    ) -> jax.Array:
        """An array of any shape to the same shape."""
        x = x if self.dtype is None else x.astype(self.dtype)
        if self.use_scale:
            x = scaled(x, self.param("multiplier", self.scale_init, (), self.param_dtype))
        if self.use_bias:
            x = added(x, self.param("bias_scalar", self.bias_init, (), self.param_dtype))
        return x


class SkipInit(nn.Module):
    """SkipInit's scalar at the end of a branch: a learnable ``alpha []``, from 0 or what is given.

    ReZero's is the same; so is the gain ``g`` at the end of an NF-ResNet's branch.

    Source: De, Smith, NeurIPS 2020, section 3; Bachlechner et al., UAI 2021, equation 1.
    """

    alpha: float = 0.0

    @nn.compact
    def __call__(self, branch: jax.Array) -> jax.Array:
        """An array of any shape to the same shape."""
        return scaled(branch, learnt_scalar(self, "alpha", self.alpha))


class ScaledWSConv(nn.Module):
    """A convolution of odd size with scaled standardised weights, padded alike on all sides.

    The kernel ``[size, size, C_in, features]`` is standardised in the forward pass and multiplied
    by a learnable ``gain [features]`` and, with ``after_relu``, by what makes up for a ReLU before
    it. Parameters are float32, whatever ``dtype`` it computes in.

    Source: Brock, De, Smith, ICLR 2021, equation 1 and section 4.1.
    """

    features: int
    size: int = 3
    stride: int = 1
    use_bias: bool = True
    after_relu: bool = True
    dtype: Any = jnp.float32

    def setup(self) -> None:
        """Makes it share names with the convolution that it is."""
        self.conv = Conv(
            self.features,
            self.size,
            self.stride,
            use_bias=self.use_bias,
            standardized=True,
            after_relu=self.after_relu,
            dtype=self.dtype,
        )
        nn.share_scope(self, self.conv)

    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, H, W, C_in]`` to ``[B, ceil(H / stride), ceil(W / stride), C_out]``."""
        return self.conv(x)


def shifted(module: Any, name: str, x: jax.Array) -> jax.Array:
    """Adds the module's scalar bias of that name."""
    return added(x, module.param(name, nn.initializers.zeros, ()))


def learnt_scalar(module: Any, name: str, start: float = 1.0) -> jax.Array:
    """The module's learnable scalar of that name."""
    return module.param(name, nn.initializers.constant(start), ())


def times(x: jax.Array, constant: Any) -> jax.Array:
    """``x`` times a constant in its own dtype; None is 1."""
    return x if constant is None else x * jnp.asarray(constant).astype(jnp.result_type(x))
