"""What a run carries from step to step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from nf_resnets import roles
from nf_resnets.data.order import check_seed

OptimizerFn = Any
"""``optimizer(hyper) -> optax.GradientTransformation``: how numbers become an update rule."""


class Average(NamedTuple):
    """Parameters averaged over the steps of a run.

    Attributes:
      params: the average, of the structure of the parameters; those of fewer bits are averaged in
        float32.
      decay: the fraction of the last average that a late step keeps, float32 []; data, not a
        constant of the program.
    """

    params: Any
    decay: jax.Array


def start_average(params: Any, decay: Any) -> Average:
    """The average before the first step: the parameters themselves."""
    if not isinstance(decay, jax.core.Tracer) and not 0 <= np.float32(decay) < 1:
        raise ValueError(f"average_decay={decay} found; expected 0 <= average_decay < 1.")

    def copied(leaf: Any) -> jax.Array:
        # The parameters' own arrays are given up to the first step, and cannot be given up twice.
        return jnp.array(leaf, jnp.promote_types(leaf.dtype, jnp.float32), copy=True)

    return Average(jax.tree.map(copied, params), jnp.asarray(decay, jnp.float32))


def moved_average(average: Average, params: Any, step: Any) -> Average:
    """The average after ``step`` steps, in which the initial parameters have no part.

    After ``T`` steps it is ``(1 - d) sum_t d^{T-t} theta_t / (1 - d^T)``, which is ``optax.ema(d,
    debias=True)`` of the parameters ``theta_t`` after each step. It is kept corrected: a step moves
    it by the fraction ``(1 - d) / (1 - d^T)``, so the first replaces it.

    Source: Polyak, Juditsky, *Acceleration of Stochastic Approximation by Averaging*, 1992, with
    weights that forget, as in Szegedy et al., CVPR 2016, section 8, and the correction of Kingma,
    Ba, *Adam*, ICLR 2015, section 3.
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
      hyper: the numbers of this run (``learning_rate``, ``weight_decay``, ...), float32 [] each.
        They are data, not constants of the program: runs that differ in nothing else share one
        compiled step.
      average: the exponential moving average of the parameters, which every step moves; None for
        none. Without it the state has the leaves that it had before there were averages, and so do
        its checkpoints.
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
    """Makes the state of a run before its first step.

    Args:
      params: the initialised parameter tree.
      optimizer: ``optimizer(hyper)`` gives the optax transformation.
      hyper: the numbers of the run.
      batch_stats: BatchNorm's running statistics, if there are any.
      seed: from which data order and augmentation follow, in ``[0, 2**32)``; it may be traced.
      average_decay: how much of the parameters' moving average a step keeps, in ``[0, 1)``
        (``moved_average``); None for no average.

    Raises:
      ValueError: if ``average_decay`` or ``seed`` is outside its range.
      TypeError: if ``seed`` is no whole number, or a parameter no floating-point one; it is named.

    Example:
      >>> state = create_state({"w": jnp.ones(3)}, lambda hyper: optax.sgd(hyper["learning_rate"]),
      ...                      {"learning_rate": 0.1})
      >>> int(state.step)
      0
    """
    if not callable(optimizer):
        raise TypeError(
            f"optimizer is a {type(optimizer).__name__}; expected a function of the run's numbers, "
            "such as lambda hyper: optax.adam(hyper['learning_rate'])."
        )
    check_seed(seed)
    numbers = {name: jnp.asarray(value, jnp.float32) for name, value in hyper.items()}
    transformation: optax.GradientTransformation = optimizer(numbers)
    params = _strong(params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise TypeError(
                f"leaf {roles.path_name(path)!r} of params has dtype {leaf.dtype}; expected a "
                "floating-point one, for a step trains every leaf (batch_stats may hold counters)."
            )
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
    arrays = jax.tree.map(jnp.asarray, tree)
    return jax.tree.map(lambda leaf: leaf.astype(leaf.dtype), arrays)


def is_counter(leaf: Any) -> bool:
    """Whether a leaf of ``batch_stats`` has whole numbers, the same for all parts of a batch."""
    return not jnp.issubdtype(leaf.dtype, jnp.inexact)


def refuse_other_leaves(
    found: Any, expected: Any, describe: Callable[[Any], str], of: str, as_in: str
) -> None:
    """Refuses a tree whose leaves have other names than another's, or are described otherwise."""
    here, there = (
        {
            roles.path_name(path): describe(leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }
        for tree in (found, expected)
    )
    for name in [*there, *here]:
        if here.get(name) != there.get(name):
            raise ValueError(
                f"leaf {name!r} of {of} is {here.get(name, 'not there')}; expected "
                f"{there.get(name, 'none')}, as {as_in}."
            )


__all__ = [
    "Average", "OptimizerFn", "TrainState", "create_state", "is_counter", "moved_average",
    "refuse_other_leaves", "start_average",
]  # fmt: skip
