"""The compiled functions that runs of one program share: begin, steps, test, take out, put in."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nf_resnets import data, init, models, optim, roles, schemes, training
from nf_resnets.sweep.callback import Callback, Callbacks
from nf_resnets.sweep.settings import NUMBERS, RunSettings, canonical, scalar_factor, shown
from nf_resnets.training import hosts
from nf_resnets.training.mesh import DATA, SWEEP

CALIBRATION_IMAGES = 128
"""From how many training images a scheme's data-dependent part is set."""

EVAL_BATCH = 500
"""Examples in a batch of a test."""

MOST_STEPS = 2**31 // 40
"""Steps of a run, of which int32 counts the forty-fold."""

MOST_PARAMETERS = 2**34
"""Parameters of a network; beyond the memory of a device XLA can end the process."""

LARGE = 1000
"""Networks of which no number is above are not counted through."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What follows from settings and data, before anything is compiled.

    Attributes:
      settings: of one run.
      num_steps: steps of the run.
      steps_per_epoch: full batches in an epoch.
      warmup_steps: steps of the warm-up.
      micro_batches: into how many parts a batch is cut.
      bn_groups: into how many slices BatchNorm cuts a batch.
      program: runs of equal names here share a compiled program.
    """

    settings: RunSettings
    num_steps: int
    steps_per_epoch: int
    warmup_steps: int
    micro_batches: int
    bn_groups: int
    program: str

    @functools.cached_property
    def text(self) -> str:
        """The canonical text of the settings."""
        return canonical(self.settings)

    @functools.cached_property
    def key(self) -> str:
        """The key of the run: SHA-256 of ``text``."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def resolved(self) -> str:
        """What the ledger keeps of it: JSON, the schedule as ``[first step, rate]``."""
        settings = self.settings
        parts = _unit_schedule(settings.schedule, self.num_steps, self.warmup_steps)
        return json.dumps(
            {
                "num_steps": self.num_steps,
                "steps_per_epoch": self.steps_per_epoch,
                "warmup_steps": self.warmup_steps,
                "micro_batches": self.micro_batches,
                "bn_groups": self.bn_groups,
                "rates": [[step, factor * settings.peak_lr] for step, factor in parts],
            }
        )


@functools.lru_cache
def _unit_schedule(kind: str, num_steps: int, warmup_steps: int) -> tuple[tuple[int, float], ...]:
    """The factors of a peak rate and the steps from which they hold; no more than 100 of them."""
    factors = np.asarray(_schedule(kind, 1.0, num_steps, warmup_steps)(np.arange(num_steps)))
    changes = [0, *(np.flatnonzero(np.diff(factors)) + 1).tolist()]
    # Of a long warm-up every step is a change: a hundred of them show it.
    changes = changes[:: -(-len(changes) // 100)]
    return tuple((step, float(factors[step])) for step in changes)


def plan(settings: RunSettings, dataset: data.Dataset) -> Plan:
    """Works out what a run's settings mean on its data set, and checks that they can be run.

    Raises:
      ValueError: if batch, micro-batch and ghost batch do not fit each other or the data, the
        warm-up is longer than the run, or there is no such network for the scheme.
    """
    examples = len(dataset.train.labels)
    batch_size = settings.batch_size
    per_epoch = data.steps_per_epoch(examples, batch_size)
    if settings.epochs * per_epoch >= MOST_STEPS:
        raise ValueError(
            f"epochs={settings.epochs:g} found; expected less than {MOST_STEPS / per_epoch:g}, "
            f"{MOST_STEPS} steps."
        )
    num_steps = settings.steps or max(1, round(settings.epochs * per_epoch))
    warmup = settings.warmup_epochs * per_epoch
    warmup_steps = round(min(warmup, MOST_STEPS))
    if warmup_steps > num_steps:
        raise ValueError(
            f"warmup_epochs={settings.warmup_epochs:g} found, {warmup:.7g} steps; expected no "
            f"more than the run's {num_steps}."
        )
    micro_batch = settings.micro_batch or batch_size
    if batch_size % min(micro_batch, batch_size):
        raise ValueError(
            f"micro_batch={micro_batch} found; expected a divisor of batch_size={batch_size}."
        )
    micro_batches = batch_size // min(micro_batch, batch_size)
    anatomy = schemes.get(settings.scheme).anatomy
    bn_groups = 1
    if anatomy.has_batch_norm:
        ghost = min(settings.ghost_batch or batch_size, batch_size)
        if batch_size % ghost or (batch_size // ghost) % micro_batches:
            raise ValueError(
                f"ghost_batch={settings.ghost_batch} found; expected a divisor of the "
                f"{batch_size // micro_batches} examples that are computed at once."
            )
        bn_groups = batch_size // ghost
        if settings.bn_estimate_batches > per_epoch:
            raise ValueError(
                f"bn_estimate_batches={settings.bn_estimate_batches} found; expected no more than "
                f"the {per_epoch} batches of an epoch."
            )
    image = dataset.train.images.shape[1:]
    if settings.padding > max(image):
        raise ValueError(
            f"padding={settings.padding} found; expected no more than the {max(image[:-1])} pixels "
            "of an image's side."
        )
    found = Plan(
        settings, num_steps, per_epoch, warmup_steps, micro_batches, bn_groups, _program(settings)
    )
    model = make_model(found, dataset)
    numbers = (settings.stem_channels, *map(int, re.findall(r"\d+", settings.model)))
    if max(numbers) > LARGE:
        _refuse_too_large(model, settings, image)
    return found


def _refuse_too_large(model: Any, settings: RunSettings, image: tuple[int, ...]) -> None:
    like = jax.ShapeDtypeStruct((1, *image), jnp.float32)
    leaves = jax.tree.leaves(jax.eval_shape(model.init, jax.random.key(0), like))
    count = sum(math.prod(leaf.shape) for leaf in leaves)
    if count > MOST_PARAMETERS:
        raise ValueError(
            f"model={shown(settings.model)} with stem_channels={settings.stem_channels} has "
            f"{count:.3g} parameters; expected at most {MOST_PARAMETERS:.3g}."
        )


def _program(settings: RunSettings) -> str:
    """A short name of all that goes into the compiled program, the same in every process."""
    values = json.loads(canonical(settings))
    for name in (*NUMBERS, "evaluate_every"):  # when to test is the lane's to decide
        del values[name]
    if settings.micro_batch >= settings.batch_size:
        values["micro_batch"] = 0
    # Schemes that compile alike share their programs; the first of them stands for all.
    scheme = schemes.get(settings.scheme)
    anatomy = scheme.anatomy
    values["scheme"] = next(
        name for name in schemes.names() if schemes.get(name).compiles_as == scheme.compiles_as
    )
    if not anatomy.has_batch_norm:
        values["ghost_batch"] = values["bn_estimate_batches"] = 0
    if not anatomy.dropout:
        values["dropout"] = None
    text = json.dumps(values, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def make_model(plan: Plan, dataset: data.Dataset) -> Any:
    """The network of a run.

    Raises:
      ValueError: if there is none of that name, or it is not for images, or not for the scheme.
    """
    settings = plan.settings
    options: dict[str, Any] = {"num_classes": dataset.num_classes, "bn_groups": plan.bn_groups}
    if settings.stem_channels:
        options["stem_channels"] = settings.stem_channels
    if settings.dropout is not None and schemes.get(settings.scheme).anatomy.dropout:
        options["dropout"] = settings.dropout
    if settings.remat:
        options["remat"] = True
    if models.architectures.find(settings.model).inputs != "images":
        raise ValueError(f"model={settings.model!r} found; expected a network for images.")
    return models.make(settings.model, settings.scheme, **options)


def _schedule(
    kind: str, peak: Any, num_steps: int, warmup_steps: int
) -> Callable[[Any], jax.Array]:
    if kind == "halving":
        schedule = optim.halving(peak, num_steps)
    else:

        def schedule(step: Any) -> jax.Array:
            return jnp.broadcast_to(jnp.asarray(peak, jnp.float32), jnp.shape(step))

    return optim.warmup(schedule, warmup_steps, num_steps)


def hyper_of(settings: RunSettings) -> dict[str, float]:
    """The numbers that the optimizer takes, which differ between the runs of a program."""
    return {
        "learning_rate": settings.peak_lr,
        "momentum": settings.momentum,
        "weight_decay": settings.weight_decay,
        "scalar_factor": scalar_factor(settings),
    }


@dataclasses.dataclass(frozen=True)
class Program:
    """Slots for runs that train together, and what is done with them.

    Attributes:
      plan: of one of the runs; the others differ in numbers only.
      mesh: the devices.
      slots: how many runs there is room for.
      model: the network.
      train_data: the training split, on the mesh.
      test_data: the test split, on the mesh.
      like: shapes and dtypes of one run's state.
      empty: makes the states of slots in which nothing runs.
      begin: ``begin(states, slot, settings)`` puts a run that is to begin into a slot.
      put: ``put(states, slot, state)`` puts a run into a slot that has been taken out of one.
      take: ``take(states, slot)`` is the state of a run, as NumPy arrays.
      steps: ``steps(states, counts)``, see :func:`nf_resnets.training.make_train_steps`.
      test: ``test(states)`` gives loss and accuracy on the test split, float32 [R] NumPy arrays.
      compile_seconds: how long it took to compile.
    """

    plan: Plan
    mesh: Mesh
    slots: int
    model: Any
    train_data: data.DeviceData
    test_data: data.DeviceData
    like: training.TrainState
    empty: Callable[[], training.TrainState]
    begin: Callable[[training.TrainState, int, RunSettings], training.TrainState]
    put: Callable[[training.TrainState, int, Any], training.TrainState]
    take: Callable[[training.TrainState, int], Any]
    steps: Callable[[training.TrainState, np.ndarray], training.Steps]
    test: Callable[[training.TrainState], dict[str, np.ndarray]]
    compile_seconds: float


def build(
    plan: Plan,
    dataset: data.Dataset,
    mesh: Mesh,
    *,
    runs_per_device: int = 1,
    together: Literal["auto", "vmap", "loop"] = "auto",
    split_data: tuple[data.DeviceData, data.DeviceData] | None = None,
) -> Program:
    """Compiles the training steps of a program, once, and builds what goes with them.

    The compiled steps are kept as an executable, which cannot compile again: a call with other
    shapes is an error.

    Args:
      plan: of one of its runs.
      dataset: what the runs train on.
      mesh: the devices, ``[sweep, data]``.
      runs_per_device: how many runs a device of the ``sweep`` axis carries.
      together: how a device computes several runs.
      split_data: training and test split on the mesh already; by default they are put there.

    Raises:
      ValueError: if batch or BatchNorm's slices do not divide over the mesh's ``data`` axis.
    """
    settings = plan.settings
    slots = mesh.shape[SWEEP] * runs_per_device
    model = make_model(plan, dataset)
    shards = mesh.shape[DATA] * plan.micro_batches
    apply_fn = training.train_apply(model, shards=shards)
    optimizer = functools.partial(_optimizer, plan)
    per_run = NamedSharding(mesh, PartitionSpec(SWEEP))
    shared = NamedSharding(mesh, PartitionSpec())
    if split_data is None:
        train_data = training.replicate(data.DeviceData.of(dataset, dataset.train), mesh)
        test_data = training.replicate(data.DeviceData.of(dataset, dataset.test), mesh)
    else:
        train_data, test_data = split_data
    longest = min(plan.steps_per_epoch, training.LONGEST)

    initial = functools.partial(_initial, model, dataset, optimizer)
    abstract = jax.eval_shape(lambda: initial(schemes.get(settings.scheme), *_numbers(settings)))
    stacked = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((slots, *leaf.shape), leaf.dtype, sharding=per_run),
        abstract,
    )
    # What runs once a run, for milliseconds: what counts is how long it takes to compile.
    on_cpu = mesh.devices.flat[0].platform == "cpu"
    quickly = {"xla_backend_optimization_level": 0} if on_cpu else None
    compiled_once = functools.partial(jax.jit, compiler_options=quickly, out_shardings=per_run)

    empty = compiled_once(
        lambda: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), stacked)
    )

    def write(states: training.TrainState, slot: Any, state: Any) -> training.TrainState:
        return jax.tree.map(lambda all_, one: all_.at[slot].set(one), states, state)

    def begun(
        scheme: schemes.Scheme, states: Any, slot: Any, seed: Any, numbers: Any, alpha: Any
    ) -> Any:
        return write(states, slot, initial(scheme, seed, numbers, alpha))

    begin_quickly = compiled_once(begun, static_argnums=0, donate_argnums=1)
    # What is found from data can take many passes over it, which are worth compiling well.
    begin_well = jax.jit(begun, static_argnums=0, donate_argnums=1, out_shardings=per_run)

    def begin(states: training.TrainState, slot: int, run: RunSettings) -> training.TrainState:
        scheme = schemes.get(run.scheme)
        function = begin_quickly if scheme.calibrate is None else begin_well
        return function(scheme, states, np.int32(slot), *_numbers(run))

    put = compiled_once(write, donate_argnums=0)
    take = jax.jit(
        lambda states, slot: jax.tree.map(lambda leaf: leaf[slot], states),
        compiler_options=quickly,
        out_shardings=shared,
    )

    steps: Any = training.make_train_steps(
        apply_fn,
        optimizer,
        mesh,
        batch_size=settings.batch_size,
        augmentation=data.Augmentation(settings.padding, settings.flip),
        micro_batches=plan.micro_batches,
        together=together,
        longest=longest,
    )
    start = time.perf_counter()
    counts = jax.ShapeDtypeStruct((slots,), jnp.int32, sharding=per_run)
    executable = steps.lower(stacked, train_data, counts).compile()

    evaluate = training.make_evaluate(training.eval_apply(model), mesh, batch_size=EVAL_BATCH)
    estimate, orders = None, None
    if settings.bn_estimate_batches and _normalized(model):
        estimate = training.make_estimate_batch_stats(
            apply_fn,
            mesh,
            batch_size=settings.batch_size // plan.micro_batches,
            batches=settings.bn_estimate_batches * plan.micro_batches,
        )
        examples = len(dataset.train.labels)
        orders = compiled_once(jax.vmap(lambda seed: data.epoch_order(seed, 0, examples)))

    def test(states: training.TrainState) -> dict[str, np.ndarray]:
        batch_stats = states.batch_stats
        if estimate is not None and orders is not None:
            batch_stats = estimate(states, train_data, orders(states.seed))
        return fetch(evaluate(states.params, batch_stats, test_data))

    def place_counts(counts: np.ndarray) -> jax.Array:
        return training.spread_runs(np.asarray(counts, np.int32), mesh)

    def host_state(states: training.TrainState, slot: int) -> Any:
        return fetch(take(states, np.int32(slot)))

    # What runs once a run is compiled by its first call: here, and not while a run is timed.
    states = empty()
    if schemes.get(settings.scheme).calibrate is None:
        states = begin(states, 0, settings)
    states = put(states, np.int32(0), host_state(states, 0))
    test(states)
    compile_seconds = time.perf_counter() - start

    return Program(
        plan=plan,
        mesh=mesh,
        slots=slots,
        model=model,
        train_data=train_data,
        test_data=test_data,
        like=abstract,
        empty=empty,
        begin=begin,
        put=lambda states, slot, state: put(states, np.int32(slot), state),
        take=host_state,
        steps=lambda states, counts: executable(states, train_data, place_counts(counts)),
        test=test,
        compile_seconds=compile_seconds,
    )


def fetch(tree: Any) -> Any:
    """A tree as NumPy arrays, also where several processes hold parts of it."""
    if all(leaf.is_fully_addressable or leaf.is_fully_replicated for leaf in jax.tree.leaves(tree)):
        return jax.tree.map(np.asarray, jax.device_get(tree))
    return hosts.gather(tree)


def _optimizer(plan: Plan, hyper: dict[str, Any]) -> Any:
    return optim.sgd(
        _schedule(
            plan.settings.schedule, hyper["learning_rate"], plan.num_steps, plan.warmup_steps
        ),
        momentum=hyper["momentum"],
        weight_decay=hyper["weight_decay"],
        scheme=plan.settings.scheme,
        scalar_factor=hyper["scalar_factor"],
    )


def _normalized(model: Any) -> bool:
    return schemes.get(model.scheme).anatomy.has_batch_norm


def _numbers(settings: RunSettings) -> tuple[np.uint32, dict[str, np.float32], np.float32]:
    """Seed, the optimizer's numbers with the scale of the branches, alpha (NaN for none given)."""
    numbers = {**hyper_of(settings), "branch_scale": settings.branch_scale}
    alpha = math.nan if settings.alpha is None else settings.alpha
    return (
        np.uint32(settings.seed),
        {name: np.float32(value) for name, value in numbers.items()},
        np.float32(alpha),
    )


def _initial(
    model: Any,
    dataset: data.Dataset,
    optimizer: Callable[[dict[str, Any]], Any],
    scheme: schemes.Scheme,
    seed: Any,
    numbers: Mapping[str, Any],
    alpha: Any,
) -> training.TrainState:
    """The state of a run before its first step.

    All schemes but those that are draws of their own change one draw, He (fan_in).
    """
    key = jax.random.key(seed)
    image = jnp.zeros((1, *dataset.train.images.shape[1:]))
    variables = model.init(key, image)
    params = variables["params"]
    if scheme.own_draw:
        params = scheme.init(params, model.num_branches, key=key)
    else:
        params = scheme.init(init.he(params, key, mode="fan_in"), model.num_branches)
    if scheme.calibrate is not None:
        images = jnp.asarray(dataset.train.images[:CALIBRATION_IMAGES])
        images = data.normalize(images, jnp.asarray(dataset.mean), jnp.asarray(dataset.std))
        params = scheme.calibrate(model.apply, params, images)

    def rescale(leaf: roles.Leaf, value: jax.Array) -> jax.Array:
        if leaf.role is roles.Role.ALPHA:
            return jnp.where(jnp.isnan(alpha), value, alpha.astype(value.dtype))
        if leaf.role is roles.Role.BRANCH:
            return value * numbers["branch_scale"].astype(value.dtype)
        return value

    params = roles.assign(params).map(rescale, params)
    hyper = {name: value for name, value in numbers.items() if name != "branch_scale"}
    return training.create_state(
        params, optimizer, hyper, batch_stats=variables.get("batch_stats"), seed=seed
    )


class Programs:
    """The programs of a sweep: each is built once, by whichever thread comes first.

    Args:
      dataset: ``dataset(name)`` loads a data set.
      mesh: the devices.
      runs_per_device: ``runs_per_device(plan, build)`` chooses how many runs a device carries.
      together: how a device computes several runs.
      callback: receives the beginning and the end of each compilation.
      label: names the runs of a program from the settings of one of them.
    """

    def __init__(
        self,
        dataset: Callable[[str], data.Dataset],
        mesh: Mesh,
        *,
        runs_per_device: Callable[[Plan, Callable[[int], Program]], int] = lambda plan, build: 1,
        together: Literal["auto", "vmap", "loop"] = "auto",
        callback: Callback | None = None,
        label: Callable[[Mapping[str, Any]], str] = lambda settings: "",
    ) -> None:
        self._callback: Callback = callback or Callbacks()
        self._label = label
        self._dataset = dataset
        self._mesh = mesh
        self._runs_per_device = runs_per_device
        self._together = together
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._built: dict[str, Program] = {}
        self._splits: dict[str, tuple[data.DeviceData, data.DeviceData]] = {}

    @property
    def built(self) -> tuple[Program, ...]:
        """Those that have been built."""
        return tuple(self._built.values())

    def has(self, program: str) -> bool:
        """Whether a program has been built."""
        return program in self._built

    def get(self, settings: RunSettings) -> Program:
        """The program of a run."""
        dataset = self._dataset(settings.dataset)
        found = plan(settings, dataset)
        with self._lock:
            lock = self._locks.setdefault(found.program, threading.Lock())
            if settings.dataset not in self._splits:
                self._splits[settings.dataset] = (
                    training.replicate(data.DeviceData.of(dataset, dataset.train), self._mesh),
                    training.replicate(data.DeviceData.of(dataset, dataset.test), self._mesh),
                )
        with lock:
            if found.program not in self._built:

                def build_for(runs: int) -> Program:
                    return build(
                        found,
                        dataset,
                        self._mesh,
                        runs_per_device=runs,
                        together=self._together,
                        split_data=self._splits[settings.dataset],
                    )

                self._callback.on_compile_begin(found.program, self._label(vars(settings)))
                start = time.perf_counter()
                try:
                    program = build_for(self._runs_per_device(found, build_for))
                except Exception:
                    spent = time.perf_counter() - start
                    self._callback.on_compile_end(found.program, spent, 0)
                    raise
                spent = program.compile_seconds
                self._callback.on_compile_end(found.program, spent, program.slots)
                self._built[found.program] = program
            return self._built[found.program]


__all__ = ["Plan", "Program", "Programs", "build", "fetch", "hyper_of", "make_model", "plan"]
