"""The runs of networks for images, on a data set in memory, and what their settings mean."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import threading
import typing
from collections.abc import Callable
from reprlib import repr as shown
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from nf_resnets import data, models, optim, schemes, training
from nf_resnets.sweep.overrides import Overrides
from nf_resnets.sweep.settings import (
    FIELDS,
    LIMITS,
    MOST_STEPS,
    NUMBERS,
    SINGLE,
    RunSettings,
    label,
    make,
    scalar_factor,
)  # fmt: skip
from nf_resnets.training.initial import Draw
from nf_resnets.training.run import Plan


@dataclasses.dataclass(frozen=True)
class Kind:
    """What follows from settings and data, whatever the run's numbers."""

    settings: RunSettings  # of the runs, without their numbers
    how: training.ImageTraining
    model: Any  # the network, or the function that calls one of another library
    parametrize: Callable[..., Any] | None  # of `training.relative_to`, where there is a base
    steps_per_epoch: int
    warmup_steps: int
    program: str  # runs of equal names share a compiled program
    overrides: Overrides

    @property
    def scheme(self) -> schemes.Scheme:
        """Of the network; relative to the base network, where there is one."""
        return schemes.get("plain" if self.overrides.is_other else self.model.scheme)


class ImageTask:
    """The runs of a grid; see :class:`nf_resnets.sweep.engine.Task`.

    ``names`` are the settings by which a display tells the runs apart.
    """

    probe: Callable[..., Any] | None = None
    finish: Callable[..., Any] | None = None

    def __init__(
        self,
        load: Callable[[str], data.Dataset] = data.load,
        names: tuple[str, ...] = SINGLE,
        overrides: Overrides = Overrides(),  # noqa: B008 (a frozen value)
    ) -> None:
        self.overrides = overrides
        self.dataset = functools.cache(load)
        self.fingerprint = functools.cache(lambda name: data.fingerprint(self.dataset(name)))
        self._names = names
        self._kind = functools.cache(lambda of: kind_of(of, self.dataset(of.dataset), overrides))
        self._splits = functools.cache(training.device_splits)
        self._lock = threading.Lock()

    def kind(self, settings: RunSettings) -> Kind:
        """The kind of a run, found once; raises as :func:`kind_of`."""
        numbers: dict[str, Any] = dict.fromkeys(NUMBERS)
        return self._kind(dataclasses.replace(settings, **numbers))

    def plan(self, settings: RunSettings) -> Plan:
        """What follows from a run's settings; raises as :func:`kind_of`."""
        kind = self.kind(settings)
        values = {**vars(settings), **self.overrides.names}
        return Plan(
            settings=values,
            label=label(values, self._names),
            program=kind.program,
            data=self.fingerprint(settings.dataset),
            num_steps=kind.how.num_steps,
            steps_per_epoch=kind.steps_per_epoch,
            evaluate_every=settings.evaluate_every,
        )

    def of(self, plan: Plan) -> tuple[RunSettings, Kind, data.Dataset]:
        """A run's settings, its kind, and its data."""
        names = self.overrides.names
        settings = make({n: x for n, x in plan.settings.items() if n in FIELDS and n not in names})
        return settings, self.kind(settings), self.dataset(settings.dataset)

    def check(self, plan: Plan, devices_per_run: int) -> None:
        """Refuses a run whose batch does not divide over its devices."""
        settings, kind, _ = self.of(plan)
        parts = devices_per_run * kind.how.micro_batches
        if settings.batch_size % parts:
            raise ValueError(
                f"batch_size={settings.batch_size} does not divide evenly into "
                f"{kind.how.micro_batches} micro-batches on each of "
                f"devices_per_run={devices_per_run} devices."
            )
        if settings.gradient_noise and parts == 1:
            raise ValueError(
                f"gradient_noise=True found with micro_batch={settings.micro_batch}; expected "
                f"fewer examples in a micro-batch than batch_size={settings.batch_size}."
            )
        if kind.scheme.anatomy.has_batch_norm and kind.model.bn_groups % parts:
            raise ValueError(
                f"ghost_batch={settings.ghost_batch} found, {kind.model.bn_groups} in a batch of "
                f"{settings.batch_size}; expected a multiple of {parts}, some for each of "
                f"devices_per_run={devices_per_run} devices."
            )

    def build(self, plan: Plan, mesh: Mesh, **devices: Any) -> training.Program:
        """Compiles the program of a run."""
        _, kind, dataset = self.of(plan)
        with self._lock:  # threads that compile share what is on the devices
            splits = self._splits(dataset, mesh)
        return training.image_program(
            kind.model, dataset, functools.partial(optimizer, kind), mesh, kind.how,
            self.start(plan), splits=splits, **devices,
        )  # fmt: skip

    def lower(self, plan: Plan, mesh: Mesh, **devices: Any) -> jax.stages.Lowered:
        """Lowers the steps of a run's program for devices that need not be there."""
        _, kind, dataset = self.of(plan)
        return training.lower_image_steps(
            kind.model, dataset, functools.partial(optimizer, kind), mesh, kind.how,
            self.start(plan), **devices,
        )  # fmt: skip

    def start(self, plan: Plan) -> training.Start | training.TrainState:
        """In what a run differs from others of its program."""
        (settings, kind, dataset), variables = self.of(plan), self.overrides.variables
        if variables is None and not self.overrides.is_other:
            return training.Start(
                kind.scheme, settings.seed, hyper_of(settings), settings.alpha,
                settings.branch_scale,
            )  # fmt: skip
        if variables is None:
            image = jnp.zeros((1, *dataset.train.images.shape[1:]))
            variables = self.overrides.network.init(jax.random.key(settings.seed), image)
        return training.create_state(
            variables["params"], functools.partial(optimizer, kind), hyper_of(settings),
            batch_stats=variables.get("batch_stats"), seed=settings.seed,
            average_decay=kind.how.average_decay,
        )  # fmt: skip


def kind_of(
    settings: RunSettings,
    dataset: data.Dataset,
    overrides: Overrides = Overrides(),  # noqa: B008 (a frozen value)
) -> Kind:
    """Works out what a run's settings mean on its data set, and checks that they can be run."""
    batch_size = settings.batch_size
    per_epoch = data.steps_per_epoch(len(dataset.train.labels), batch_size)
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
    micro_batch = min(settings.micro_batch or batch_size, batch_size)
    if batch_size % micro_batch:
        raise ValueError(
            f"micro_batch={micro_batch} found; expected a divisor of batch_size={batch_size}."
        )
    micro_batches = batch_size // micro_batch
    scheme = overrides.scheme or schemes.get(settings.scheme)
    bn_groups = bn_groups_of(scheme, batch_size, settings.ghost_batch, micro_batch)
    image = dataset.train.images.shape[1:]
    for name, pixels in (("padding", settings.padding), ("cutout", settings.cutout)):
        if pixels >= min(image[:-1]):
            raise ValueError(
                f"{name}={pixels} found; expected less than the {min(image[:-1])} pixels of an "
                "image's side."
            )
    if settings.schedule == "step":
        drops_at(settings.drops, num_steps)
    for name in ("adaptive_clip", "optimizer", "bn_estimate_batches"):
        if overrides.is_other and getattr(settings, name) not in (0, *optim.NAMES[:3]):
            raise ValueError(
                f"{name}={getattr(settings, name)} found for a network of another library; "
                "expected another one, for this one must know what the network's leaves are."
            )
    model, parametrize = overrides.network, None
    if overrides.is_other:
        model = model.apply
    elif model is None:
        model = make_model(settings, dataset, bn_groups)
    elif model.num_classes != dataset.num_classes:
        raise ValueError(
            f"the network has num_classes={model.num_classes}; expected {dataset.num_classes}, the "
            f"classes of {dataset.name}."
        )
    elif hasattr(model, "bn_groups"):
        model = model.clone(bn_groups=bn_groups)
    if settings.base_model is not None:
        tuned = dataclasses.replace(settings, model=settings.base_model)
        base = make_model(tuned, dataset, bn_groups)
        like = jax.ShapeDtypeStruct((1, *image), jnp.float32)
        model, parametrize = training.relative_to(model, base, like)
    how = training.ImageTraining(
        batch_size=batch_size,
        num_steps=num_steps,
        augmentation=data.Augmentation(
            settings.padding, settings.flip, settings.mixup, settings.cutout
        ),
        label_smoothing=settings.label_smoothing,
        average_decay=settings.average or None,
        micro_batches=micro_batches,
        # More than an epoch has would be the same ones again.
        bn_estimate_batches=min(settings.bn_estimate_batches, per_epoch),
        draw=typing.cast(Draw, settings.draw),
        calibration_examples=settings.calibration_examples,
        gradient_noise=settings.gradient_noise,
    )
    program = _program(settings, overrides)
    return Kind(settings, how, model, parametrize, per_epoch, warmup_steps, program, overrides)


def bn_groups_of(
    scheme: schemes.Scheme, batch_size: int, ghost_batch: int, micro_batch: int
) -> int:
    """Of how many slices of a batch BatchNorm takes statistics; 1 for a network without it."""
    if not scheme.anatomy.has_batch_norm:
        return 1
    ghost = min(ghost_batch or batch_size, batch_size)
    if micro_batch % ghost:
        raise ValueError(
            f"ghost_batch={ghost_batch} found; expected a divisor of the {micro_batch} examples "
            "that are computed at once."
        )
    return batch_size // ghost


def _program(settings: RunSettings, overrides: Overrides) -> str:
    """A short name of all that goes into the compiled program, the same in every process."""
    values = dict(vars(settings))
    for name in (*NUMBERS, "evaluate_every"):  # no part of the program
        del values[name]
    values |= {name: bool(values[name]) for name in LIMITS}
    if settings.micro_batch >= settings.batch_size:
        values["micro_batch"] = 0
    # Not that of a network which is given, nor where an optimizer may look at the scheme.
    if settings.scheme in schemes.names() and not callable(overrides.optimizer):
        # Schemes that compile alike share their programs; the first of them stands for all.
        scheme = schemes.get(settings.scheme)
        values["scheme"] = next(
            name for name in schemes.names() if schemes.get(name).compiles_as == scheme.compiles_as
        )
        if not scheme.anatomy.has_batch_norm:
            values["ghost_batch"] = values["bn_estimate_batches"] = 0
        if not scheme.anatomy.dropout:
            values["dropout"] = None
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def make_model(settings: RunSettings, dataset: data.Dataset, bn_groups: int) -> Any:
    """The network that settings name."""
    options: dict[str, Any] = {
        "num_classes": dataset.num_classes,
        "bn_groups": bn_groups,
        "dtype": models.dtype_of(settings.dtype),
    }
    if settings.stem_channels:
        options["stem_channels"] = settings.stem_channels
    if settings.dropout is not None and schemes.get(settings.scheme).anatomy.dropout:
        options["dropout"] = settings.dropout
    if settings.remat:
        options["remat"] = True
    if models.architectures.find(settings.model).inputs != "images":
        raise ValueError(f"model={settings.model!r} found; expected a network for images.")
    return models.make(settings.model, settings.scheme, **options)


def drops_at(drops: str, num_steps: int) -> tuple[int, ...]:
    """The steps after which parts of a run are over.

    Example:
      >>> drops_at("0.3 0.6 0.8", 200 * 390)
      (23400, 46800, 62400)
    """
    try:
        parts = [float(part) for part in drops.split()]
    except ValueError:
        parts = []
    if not parts or parts != sorted(parts) or not all(0 < part < 1 for part in parts):
        raise ValueError(
            f"drops={shown(drops)} found; expected parts of a run in order, such as '0.5 0.75'."
        )
    return tuple(max(1, round(part * num_steps)) for part in parts)


def _rate(kind: Kind, peak: Any) -> Callable[[Any], Any]:
    """The learning rate of each step."""
    settings, num_steps = kind.settings, kind.how.num_steps
    if settings.schedule == "inverse_sqrt":  # which begins with a warm-up of its own
        return optim.inverse_sqrt(peak, max(1, kind.warmup_steps))
    if settings.schedule == "halving":
        schedule = optim.halving(peak, num_steps)
    elif settings.schedule == "cosine":
        schedule = optim.cosine(peak, num_steps)
    elif settings.schedule == "step":
        drops = drops_at(settings.drops, num_steps)
        schedule = optim.step_decay(peak, drops, settings.drop_factor)
    else:
        schedule = optax.constant_schedule(peak)
    return optim.warmup(schedule, kind.warmup_steps)


def hyper_of(settings: RunSettings) -> dict[str, float]:
    """The numbers that the optimizer takes, which differ between the runs of a program."""
    return {
        "learning_rate": settings.peak_lr,
        "momentum": settings.momentum,
        "weight_decay": settings.weight_decay,
        "scalar_factor": scalar_factor(settings),
        **{name: getattr(settings, name) for name in LIMITS if getattr(settings, name)},
    }


def optimizer(kind: Kind, hyper: dict[str, Any]) -> Any:
    """The optimizer with the schedule of a kind and the numbers of a run."""
    settings, overrides = kind.settings, kind.overrides
    peak = hyper["learning_rate"]
    rate = _rate(kind, peak)
    if callable(overrides.optimizer):
        fixed = {n: value for n, value in vars(settings).items() if n not in NUMBERS}
        made = overrides.optimizer({**fixed, **hyper, "peak_lr": peak, "learning_rate": rate})
    elif overrides.optimizer is not None:
        made = overrides.optimizer
    else:
        options: dict[str, Any] = {
            n: x for n, x in hyper.items() if n not in ("learning_rate", *LIMITS)
        }
        if settings.nesterov:
            options["nesterov"] = True
        rule, of = optim.OPTIMIZERS[settings.optimizer]
        made = rule(rate, scheme=kind.scheme, **options)
        if kind.parametrize is not None:
            made = kind.parametrize(made, kind=of)
    limits = {"clip_norm": optax.clip_by_global_norm, "adaptive_clip": optim.adaptive_clip}
    clips = [clip(hyper[name]) for name, clip in limits.items() if name in hyper]
    return overrides.wrap(optax.chain(*clips, made) if clips else made)
