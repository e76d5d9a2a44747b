"""A program: the compiled functions that runs of one network share."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nf_resnets import roles, schemes
from nf_resnets.training.mesh import SWEEP, shard_runs
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
    """The functions compiled for the runs of a network that train at the same time.

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
      begin: ``begin(starts)`` makes the first states of at most ``R`` runs, ``[R, ...]``: of each
        ``Start``, or of its state, with leaves as in ``like``.
      steps: ``steps(states, counts) -> Steps`` makes ``counts[r]`` steps of run ``r``, fewer where
        an epoch ends or the run diverges. The states are donated. One that reads batches from the
        host is copied by each wave, which closes it.
      test: ``test(states)`` gives ``accuracy``, ``loss``, ... on the test split, float32 [R].
    """

    model: Any
    mesh: Mesh
    slots: int
    num_steps: int
    steps_per_epoch: int
    metrics: tuple[str, ...]
    like: TrainState
    begin: Callable[[Sequence[Start | TrainState]], TrainState]
    steps: Callable[[TrainState, np.ndarray], Steps]
    test: Callable[[TrainState], Mapping[str, np.ndarray]]


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
    """Compiles the functions that every program has, those that begin and test its runs.

    Shapes and dtypes are those of ``example``, the start of one of the runs. ``batch()`` gives the
    batch on which data-dependent schemes are calibrated, ``make_test(states)`` makes ``test`` for
    states of these shapes; ``fields`` are the other attributes of the program.
    """
    if fields["num_steps"] < 1:
        raise ValueError(f"num_steps={fields['num_steps']} found; expected 1 or more.")
    stacked = state_shapes(mesh, initial, example, slots)
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), stacked)
    begin_plain = quick_jit(initial, mesh.devices.flat[0], static_argnums=0)
    # A data-dependent scheme may pass its batch many times, which is worth optimising.
    begin_on_data = jax.jit(initial, static_argnums=0)

    def begin_one(start: Start | TrainState) -> Any:
        if isinstance(start, TrainState):
            for given, expected in itertools.zip_longest(_leaves(start), _leaves(like)):
                if given != expected:
                    raise ValueError(
                        f"a state with {given} found; expected {expected}, as compiled."
                    )
            return start
        if start.scheme.calibrate is None:
            return begin_plain(start.scheme, *_numbers(start), None)
        return begin_on_data(start.scheme, *_numbers(start), batch())

    def begin(starts: Sequence[Start | TrainState]) -> TrainState:
        states = [jax.device_get(begin_one(start)) for start in starts]

        def filled(leaf: Any, *of_runs: Any) -> np.ndarray:
            nothing = np.zeros(leaf.shape, leaf.dtype)
            return np.stack([*of_runs, *[nothing] * (slots - len(of_runs))])

        return shard_runs(jax.tree.map(filled, like, *states), mesh)  # type: ignore[no-any-return]

    # The first call compiles. It is made here, before a run is timed.
    is_plain = isinstance(example, TrainState) or example.scheme.calibrate is None
    test = make_test(begin([example] if is_plain else []))
    return Program(mesh=mesh, slots=slots, like=like, begin=begin, test=test, **fields)


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


def quick_jit(
    function: Callable[..., Any], device: jax.Device | None = None, **options: Any
) -> jax.stages.Wrapped:
    """Compiles what runs a few times: on a CPU without optimisation, which takes longer."""
    is_cpu = (device or jax.devices()[0]).platform == "cpu"
    level = {"xla_backend_optimization_level": 0} if is_cpu else None
    return jax.jit(function, compiler_options=level, **options)


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
