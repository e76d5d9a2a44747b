"""A program: the compiled functions that runs of one network share, and slots for the runs."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nf_resnets import roles, schemes
from nf_resnets.training import hosts
from nf_resnets.training.mesh import SWEEP, unstack
from nf_resnets.training.state import TrainState


@dataclasses.dataclass(frozen=True)
class Start:
    """What a run starts from; the runs of a program differ in nothing else.

    Attributes:
      scheme: the initialisation, or its name; of the anatomy that the program was compiled for.
      seed: determines the weights, the order of the data and the augmentation.
      hyper: the numbers that the optimizer takes.
      alpha: what the scalars of SkipInit's branches start from; None for what the scheme says.
      branch_scale: what the weights inside the branches are multiplied by after initialisation.
    """

    scheme: schemes.Scheme
    seed: int
    hyper: Mapping[str, float]
    alpha: float | None = None
    branch_scale: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "scheme", schemes.get(self.scheme))


class Steps(NamedTuple):
    """The result of a call of ``Program.steps``.

    Attributes:
      states: the runs after the call, ``[R, ...]`` on every leaf.
      curve: metrics of each step, float32 [R, K]; of run ``r`` the first ``counts[r]`` are set.
      counts: int32 [R], how many steps each run made.
      diverged: bool [R], whether a run stopped because a metric of its last step is not finite.
    """

    states: TrainState
    curve: Mapping[str, Any]
    counts: Any
    diverged: Any


InitialFn = Callable[..., TrainState]
"""``initial(scheme, seed, hyper, alpha, branch_scale, batch)``, of
:func:`nf_resnets.training.make_initial`."""


@dataclasses.dataclass(frozen=True)
class Program:
    """Slots for runs that train at the same time, and the functions compiled for them.

    Programs on images in memory, on streamed images and on tokens have the same functions; they
    differ in where ``steps`` takes its batches from.

    Attributes:
      model: the network.
      mesh: the devices, ``[sweep, data]``.
      slots: ``R``, how many runs there is room for.
      num_steps: steps of a run.
      steps_per_epoch: full batches in an epoch.
      metrics: the names of the columns of ``Steps.curve``.
      like: shapes and dtypes of one run's state.
      empty: ``empty()`` makes the states of empty slots, zeros ``[R, ...]``.
      begin: ``begin(states, slot, start)`` initialises a run in a slot.
      put: ``put(states, slot, state)`` puts a state with leaves as in ``like`` into a slot.
      take: ``take(states, slot)`` returns the state of the run in a slot, as NumPy arrays.
      steps: ``steps(states, counts) -> Steps`` makes ``counts[r]`` steps of run ``r``, fewer where
        an epoch ends or the run diverges. The states are donated.
      test: ``test(states)`` gives ``accuracy``, ``loss``, ... on the test split, float32 [R].
      input_seconds: ``input_seconds()`` is how long ``steps`` has waited for batches so far; None
        where batches do not come from the host.
      close: stops the threads that read batches ahead.
    """

    model: Any
    mesh: Mesh
    slots: int
    num_steps: int
    steps_per_epoch: int
    metrics: tuple[str, ...]
    like: TrainState
    empty: Callable[[], TrainState]
    begin: Callable[[TrainState, int, Start | TrainState], TrainState]
    put: Callable[[TrainState, int, Any], TrainState]
    take: Callable[[TrainState, int], Any]
    steps: Callable[[TrainState, np.ndarray], Steps]
    test: Callable[[TrainState], Mapping[str, np.ndarray]]
    input_seconds: Callable[[], float] | None = None
    close: Callable[[], Any] = lambda: None


def build(
    mesh: Mesh,
    initial: InitialFn,
    example: Start | TrainState,
    *,
    slots: int,
    batch: Callable[[], Any],
    make_test: Callable[[TrainState], Callable[[TrainState], Mapping[str, np.ndarray]]],
    **fields: Any,
) -> Program:
    """Compiles the functions that every program has, those that fill and read its slots.

    Args:
      mesh: see :func:`nf_resnets.training.make_mesh`.
      initial: of :func:`nf_resnets.training.make_initial`.
      example: the start of one of the runs, from which shapes and dtypes follow.
      slots: a multiple of the mesh's ``sweep`` axis.
      batch: ``batch()`` gives the batch on which data-dependent schemes are calibrated.
      make_test: ``make_test(states)`` makes ``test`` for states of these shapes.
      **fields: the other attributes of the program, ``steps`` among them.
    """
    per_run, shared = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((SWEEP,), ()))
    stacked = state_shapes(mesh, initial, example, slots)
    # These functions are called once a run: compiling them takes longer than running them.
    options = quick_compile(mesh.devices.flat[0])
    quick_jit = functools.partial(jax.jit, compiler_options=options, out_shardings=per_run)

    empty = quick_jit(lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), stacked))

    def write(states: TrainState, slot: Any, state: Any) -> TrainState:
        return jax.tree.map(lambda all_, one: all_.at[slot].set(one), states, state)

    def write_initial(scheme: schemes.Scheme, states: Any, slot: Any, *numbers: Any) -> TrainState:
        return write(states, slot, initial(scheme, *numbers))

    begin_plain = quick_jit(write_initial, static_argnums=0, donate_argnums=1)
    # A data-dependent scheme may pass its batch many times, which is worth optimising.
    begin_on_data = jax.jit(
        write_initial, static_argnums=0, donate_argnums=1, out_shardings=per_run
    )
    put_one = quick_jit(write, donate_argnums=0)
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), stacked)
    take_one = jax.jit(unstack, compiler_options=options, out_shardings=shared)

    def put(states: TrainState, slot: int, state: Any) -> TrainState:
        # Written into its slot, another shape would be broadcast and another dtype cast.
        for given, expected in itertools.zip_longest(_leaves(state), _leaves(like)):
            if given != expected:
                raise ValueError(f"a state with {given} found; expected {expected}, as compiled.")
        return put_one(states, np.int32(slot), state)

    def take(states: TrainState, slot: int) -> Any:
        return hosts.gather(take_one(states, np.int32(slot)))

    def begin(states: TrainState, slot: int, start: Start | TrainState) -> TrainState:
        if isinstance(start, TrainState):
            return put(states, slot, start)
        values = (start.scheme, states, np.int32(slot), *_numbers(start))
        if start.scheme.calibrate is None:
            return begin_plain(*values, None)
        return begin_on_data(*values, batch())

    # The first call compiles the others. It is made here, before a run is timed.
    states = empty()
    if isinstance(example, TrainState) or example.scheme.calibrate is None:
        states = begin(states, 0, example)
    test = make_test(put(states, 0, take(states, 0)))
    return Program(
        mesh=mesh, slots=slots, like=like, empty=empty, begin=begin, put=put, take=take,
        test=test, **fields,
    )  # fmt: skip


def state_shapes(
    mesh: Mesh, initial: InitialFn, example: Start | TrainState, slots: int
) -> TrainState:
    """Shapes, dtypes and shardings of the states of ``slots`` runs, maybe on absent devices."""
    if isinstance(example, TrainState):
        like = jax.eval_shape(lambda: example)
    else:
        like = jax.eval_shape(functools.partial(initial, example.scheme), *_numbers(example), None)
    sharding = NamedSharding(mesh, PartitionSpec(SWEEP))
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((slots, *leaf.shape), leaf.dtype, sharding=sharding), like
    )


def quick_compile(device: jax.Device) -> dict[str, Any] | None:
    """Compiler options for functions that run rarely: on a CPU, no optimisation."""
    return {"xla_backend_optimization_level": 0} if device.platform == "cpu" else None


def _leaves(tree: Any) -> list[str]:
    return [
        f"{roles.path_name(path)} {list(leaf.shape)} {leaf.dtype}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _numbers(start: Start) -> tuple[Any, ...]:
    """Seed, the optimizer's numbers, alpha (NaN for the scheme's own), the scale of branches."""
    alpha = math.nan if start.alpha is None else start.alpha
    return (
        np.uint32(start.seed),
        {name: np.float32(value) for name, value in start.hyper.items()},
        np.float32(alpha),
        np.float32(start.branch_scale),
    )
