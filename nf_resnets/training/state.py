"""What a run carries from step to step."""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import optax

OptimizerFn = Any
"""``optimizer(hyper) -> optax.GradientTransformation``: how numbers become an update rule."""


class Average(NamedTuple):
    """Parameters averaged over the steps of a run, in float32 or more bits.

    Attributes:
      params: the average, of the structure of the parameters.
      decay: the fraction of the last average that a late step keeps, float32 [].
    """

    params: Any
    decay: jax.Array


def start_average(params: Any, decay: Any) -> Average:
    """The average before the first step: the parameters themselves."""

    def copied(leaf: Any) -> jax.Array:
        # The parameters' own arrays are given up to the first step, and cannot be given up twice.
        return jnp.array(leaf, jnp.promote_types(leaf.dtype, jnp.float32), copy=True)

    return Average(jax.tree.map(copied, params), jnp.asarray(decay, jnp.float32))


def moved_average(average: Average, params: Any, step: Any) -> Average:
    """The average after ``step`` steps, in which the initial parameters have no part.

    After ``T`` steps it is ``(1 - d) sum_t d^{T-t} theta_t / (1 - d^T)``, which is ``optax.ema(d,
    debias=True)`` of the parameters ``theta_t`` after each step. It is kept corrected: a step moves
    it by the fraction ``(1 - d) / (1 - d^T)``, so the first replaces it.

    Source: Szegedy et al., CVPR 2016, section 8; the correction: Kingma, Ba, *Adam*, ICLR 2015.
    """
    fraction = optax.tree.bias_correction(1 - average.decay, average.decay, step)
    return average._replace(params=optax.incremental_update(params, average.params, fraction))


@flax.struct.dataclass
class TrainState:
    """All that a run needs to continue, as one pytree.

    Attributes:
      step: int32 [], updates made so far.
      seed: uint32 [], from which data order and augmentation follow.
      params: the parameter tree.
      batch_stats: running statistics of BatchNorm; an empty tree without it.
      opt_state: optax's state.
      hyper: the numbers of this run (``learning_rate``, ``weight_decay``, ...), float32 [] each;
        data, not constants of the program, so that runs share one compiled step.
      average: the exponential moving average of the parameters, or None.
    """

    step: jax.Array
    seed: jax.Array
    params: Any
    batch_stats: Any
    opt_state: Any
    hyper: dict[str, jax.Array]
    average: Average | None = None

    @property
    def tested_params(self) -> Any:
        """The parameters to test: the average, if there is one."""
        return self.params if self.average is None else self.average.params


def create_state(
    params: Any,
    optimizer: OptimizerFn,
    hyper: dict[str, float],
    *,
    batch_stats: Any = None,
    seed: int = 0,
    average_decay: float | None = None,
) -> TrainState:
    """Makes the state of a run before its first step; see :class:`TrainState`.

    ``average_decay`` is the fraction of the parameters' moving average that a step keeps, or None.
    """
    numbers = {name: jnp.asarray(value, jnp.float32) for name, value in hyper.items()}
    transformation: optax.GradientTransformation = optimizer(numbers)
    params = _strong(params)
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        seed=jnp.asarray(seed, jnp.uint32),
        params=params,
        batch_stats={} if batch_stats is None else _strong(batch_stats),
        opt_state=_strong(transformation.init(params)),
        hyper=numbers,
        average=None if average_decay is None else start_average(params, average_decay),
    )


def _strong(tree: Any) -> Any:
    """Makes JAX arrays of all leaves, of fixed dtypes: the first step would change weak ones."""

    def strong(leaf: Any) -> jax.Array:
        leaf = jnp.asarray(leaf)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)  # which ``jax.random`` takes, and a checkpoint holds
        return leaf.astype(leaf.dtype)

    return jax.tree.map(strong, tree)


def is_counter(leaf: Any) -> bool:
    """Whether a leaf of ``batch_stats`` has whole numbers, the same for all parts of a batch."""
    return not jnp.issubdtype(leaf.dtype, jnp.inexact)
