"""The program that runs of one network share: their slots, and what is compiled for them."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nf_resnets import schemes
from nf_resnets.training import hosts
from nf_resnets.training.state import TrainState


@dataclasses.dataclass(frozen=True)
class Start:
    """In what runs of one program differ before their first step.

    Attributes:
      scheme: how the network is initialised; of the anatomy that the program was compiled for.
      seed: from which weights, data order and augmentation follow.
      hyper: the numbers that the optimizer takes.
      alpha: what the scalars of SkipInit's branches start from; None for what the scheme says.
      branch_scale: what the weights inside the branches are multiplied by after initialisation.
    """

    scheme: schemes.Scheme
    seed: int
    hyper: Mapping[str, float]
    alpha: float | None = None
    branch_scale: float = 1.0


class Steps(NamedTuple):
    """The result of a call that makes steps.

    Attributes:
      states: the runs after the call, ``[R, ...]`` on every leaf.
      curve: metrics of each step, float32 [R, K]; of run ``r`` the first ``counts[r]`` are set.
      counts: int32 [R], how many steps each run made.
      diverged: bool [R], whether a metric of a run's last step is not finite, where it stopped.
    """

    states: TrainState
    curve: Mapping[str, Any]
    counts: Any
    diverged: Any


InitialFn = Callable[..., TrainState]
"""``initial(scheme, seed, hyper, alpha, branch_scale, batch)`` traces the state of a run before its
first step; ``batch`` is what data-dependent schemes look at (:func:`make_initial`)."""


@dataclasses.dataclass(frozen=True)
class Program:
    """Slots for runs that train together, and the functions compiled for them.

    Runs in memory, streamed images and tokens have the same program; they differ in where
    ``steps`` takes its batches from.

    Attributes:
      model: the network.
      mesh: the devices, ``[sweep, data]``.
      slots: ``R``, how many runs there is room for.
      num_steps: steps of a run.
      steps_per_epoch: full batches in an epoch.
      metrics: the names of the columns of ``Steps.curve``.
      like: shapes and dtypes of one run's state.
      empty: makes the states of slots in which nothing runs.
      begin: ``begin(states, slot, start)`` puts a run at its first step into a slot.
      put: ``put(states, slot, state)`` puts a run's state into a slot.
      take: ``take(states, slot)`` is the state of a run, as NumPy arrays.
      steps: ``steps(states, counts) -> Steps`` makes as many steps of each run as told, fewer where
        an epoch ends or a run diverges. The states are donated.
      test: ``test(states)`` gives ``accuracy``, ``loss``, ... on the test split, float32 [R].
      compile_seconds: how long compiling took.
      input_seconds: ``input_seconds()`` is how long ``steps`` waited for batches so far; None for
        batches that do not come from the host.
      close: ends what reads batches ahead.
    """

    model: Any
    mesh: Mesh
    slots: int
    num_steps: int
    steps_per_epoch: int
    metrics: tuple[str, ...]
    like: TrainState
    empty: Callable[[], TrainState]
    begin: Callable[[TrainState, int, Start], TrainState]
    put: Callable[[TrainState, int, Any], TrainState]
    take: Callable[[TrainState, int], Any]
    steps: Callable[[TrainState, np.ndarray], Steps]
    test: Callable[[TrainState], Mapping[str, np.ndarray]]
    compile_seconds: float
    input_seconds: Callable[[], float] | None = None
    close: Callable[[], Any] = lambda: None


def build(
    model: Any,
    mesh: Mesh,
    initial: InitialFn,
    example: Start,
    *,
    slots: int,
    num_steps: int,
    steps_per_epoch: int,
    metrics: tuple[str, ...],
    compile_steps: Callable[[Any], Callable[[TrainState, np.ndarray], Steps]],
    test: Callable[[TrainState], Mapping[str, np.ndarray]],
    batch: Callable[[], Any],
    host_steps: Any = None,
) -> Program:
    """Compiles what every program has, whatever feeds it: slots, and the way in and out of them.

    Args:
      model: the network.
      mesh: see :func:`nf_resnets.training.make_mesh`.
      initial: the state of a run before its first step (:func:`make_initial`).
      example: of one of its runs.
      slots: a multiple of the mesh's ``sweep`` axis.
      num_steps: steps of a run.
      steps_per_epoch: full batches in an epoch.
      metrics: the names of the metrics of a step.
      compile_steps: ``compile_steps(states)`` compiles ``steps`` for states of these shapes.
      test: see :class:`Program`.
      batch: ``batch()`` is what data-dependent schemes look at.
      host_steps: the :class:`nf_resnets.training.HostSteps` of batches from the host.
    """
    per_run, shared = (
        NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((mesh.axis_names[0],), ())
    )
    # What runs once a run, for milliseconds: what counts is how long it takes to compile.
    quickly = quick_compile(mesh)
    compiled_once = functools.partial(jax.jit, compiler_options=quickly, out_shardings=per_run)

    like = jax.eval_shape(functools.partial(initial, example.scheme), *_numbers(example), None)
    stacked = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((slots, *leaf.shape), leaf.dtype, sharding=per_run), like
    )
    empty = compiled_once(
        lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), stacked)
    )

    def write(states: TrainState, slot: Any, state: Any) -> TrainState:
        return jax.tree.map(lambda all_, one: all_.at[slot].set(one), states, state)

    def begun(scheme: schemes.Scheme, states: Any, slot: Any, *numbers: Any) -> TrainState:
        return write(states, slot, initial(scheme, *numbers))

    begin_quickly = compiled_once(begun, static_argnums=0, donate_argnums=1)
    # A data-dependent scheme can take many passes over its batch, which are worth compiling well.
    begin_well = jax.jit(begun, static_argnums=0, donate_argnums=1, out_shardings=per_run)

    def begin(states: TrainState, slot: int, start: Start) -> TrainState:
        data_dependent = start.scheme.calibrate is not None
        function = begin_well if data_dependent else begin_quickly
        found = batch() if data_dependent else None
        return function(start.scheme, states, np.int32(slot), *_numbers(start), found)

    put_one = compiled_once(write, donate_argnums=0)
    take_one = jax.jit(
        lambda states, slot: jax.tree.map(lambda leaf: leaf[slot], states),
        compiler_options=quickly,
        out_shardings=shared,
    )

    def put(states: TrainState, slot: int, state: Any) -> TrainState:
        return put_one(states, np.int32(slot), state)

    def take(states: TrainState, slot: int) -> Any:
        return hosts.gather(take_one(states, np.int32(slot)))

    start = time.perf_counter()
    steps = compile_steps(stacked)
    # What runs once a run is compiled by its first call: here, and not while a run is timed.
    states = empty()
    if example.scheme.calibrate is None:
        states = begin(states, 0, example)
    states = put(states, 0, take(states, 0))
    return Program(
        model=model,
        mesh=mesh,
        slots=slots,
        num_steps=num_steps,
        steps_per_epoch=steps_per_epoch,
        metrics=metrics,
        like=like,
        empty=empty,
        begin=begin,
        put=put,
        take=take,
        steps=steps,
        test=test,
        compile_seconds=time.perf_counter() - start,
        input_seconds=None if host_steps is None else lambda: host_steps.seconds_waited,
        close=(lambda: None) if host_steps is None else host_steps.close,
    )


def quick_compile(mesh: Mesh) -> dict[str, Any] | None:
    """Compiler options for what runs rarely: on a CPU, without optimising."""
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    return {"xla_backend_optimization_level": 0} if on_cpu else None


def _numbers(start: Start) -> tuple[Any, ...]:
    """Seed, the optimizer's numbers, alpha (NaN for the scheme's own), the scale of branches."""
    alpha = math.nan if start.alpha is None else start.alpha
    return (
        np.uint32(start.seed),
        {name: np.float32(value) for name, value in start.hyper.items()},
        np.float32(alpha),
        np.float32(start.branch_scale),
    )


__all__ = ["InitialFn", "Program", "Start", "Steps", "build", "quick_compile"]
