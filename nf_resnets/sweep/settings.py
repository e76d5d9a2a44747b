"""What a run depends on: one flat value, its checks, grids of it, and all of it as text."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from reprlib import repr as shown
from typing import Any

import numpy as np

from nf_resnets import models, optim, schemes
from nf_resnets.command_line import printable
from nf_resnets.plotting.style import power

SCHEDULES = ("halving", "constant", "cosine", "step", "inverse_sqrt")
"""How the learning rate changes; see :mod:`nf_resnets.optim`."""


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """All that the numbers of a run depend on; each field can be swept over."""

    dataset: str = "digits"
    """digits; cifar10, cifar100, svhn_cropped, svhn_extra or fashion_mnist, which are read with
    tensorflow-datasets; or the path of an .npz file or of CIFAR's binary files; or PATH or
    PATH@SIZE of a folder with a folder of images for each class."""
    model: str = "wrn-16-1"
    """A network by its usual name: wrn-16-4, cifar-resnet-110, resnet-50-v2, vgg-16."""
    scheme: str = "fixup"
    """How it is initialised: fixup, skipinit, regularized_skipinit, rescalenet, batchnorm, ..."""
    stem_channels: int = 0
    """Channels of the first convolution, of which the others are multiples; 0 for the published."""
    batch_size: int = 64
    """Examples in a step."""
    micro_batch: int = 0
    """Examples of a batch that are computed at once, over all devices of the run; 0 for all.
    Gradients are those of the whole batch."""
    gradient_noise: bool = False
    """Estimate the gradient noise scale in every step, from the micro-batches; the curve has it."""
    epochs: float = 0.0
    """The budget in passes over the training data; 10 if neither it nor `steps` is given."""
    steps: int = 0
    """The budget in steps, instead of epochs."""
    peak_lr: float = 0.1
    """The learning rate of the first half of the run, after the warm-up."""
    schedule: str = "halving"
    """halving: constant for half of the run, then halved ten times; constant; cosine, to 0 at the
    end; step: multiplied by `drop_factor` at `drops`; inverse_sqrt, from the end of the warm-up."""
    drops: str = "0.5 0.75"
    """The parts of the run after which the schedule `step` lets the rate fall."""
    drop_factor: float = 0.1
    """What it is multiplied by there."""
    warmup_epochs: float = 0.0
    """Over how many epochs the rate rises linearly from 0."""
    optimizer: str = "sgd"
    """sgd; adamw, lion or muon, which want smaller rates: the schemes' own recipes are SGD's."""
    base_model: str | None = None
    """The network at which the rate was tuned, such as wrn-10-2: with a scheme such as completep
    the rates of all leaves follow width and depth from there; none to leave them as they are."""
    momentum: float = 0.9
    """The fraction of the last update's velocity that is kept; AdamW's and Lion's beta_1."""
    nesterov: bool = False
    """Nesterov's momentum, with SGD."""
    weight_decay: float = 5e-4
    """The coefficient of L2 in the gradient, with SGD; with the others decay is decoupled."""
    clip_norm: float = 0.0
    """The largest norm of the whole gradient, to which a larger one is scaled; 0 for no limit."""
    adaptive_clip: float = 0.0
    """The largest norm of a unit's gradient relative to that of its weights, in all leaves but the
    head's; published for batches of 4,096: 0.01. 0 for no limit."""
    average: float = 0.0
    """The fraction of an exponential moving average of the parameters that a step keeps, such as
    0.999; the average is tested, and kept, in place of the parameters. 0 for no average."""
    scalar_factor: float | None = None
    """What the rate is multiplied by for the leaves that the scheme trains slowly, such as Fixup's
    scalar biases and multipliers; none for what the scheme says, a tenth for Fixup's."""
    alpha: float | None = None
    """What the scalars of SkipInit's branches start from; none for what the scheme says."""
    draw: str = "fan_in"
    """The weights that schemes start from: fan_in or fan_out, He's draw; own, each scheme's."""
    calibration_examples: int = 128
    """The training images that data-dependent schemes look at before the first step."""
    branch_scale: float = 1.0
    """What the weights inside the branches are multiplied by after initialisation."""
    dropout: float | None = None
    """The rate of dropout before the head, for schemes that have it; none for the published 0.6."""
    ghost_batch: int = 64
    """Examples over which BatchNorm takes its statistics; 0 for the whole batch."""
    bn_estimate_batches: int = 0
    """From how many training batches, at most those of an epoch, BatchNorm's statistics are
    estimated for each test; 0 for the running averages."""
    padding: int = 0
    """Pixels of padding before the random crop; 0 for no crop."""
    flip: bool = False
    """Whether half of the training images are mirrored."""
    mixup: float = 0.0
    """The alpha of the Beta distribution of the fractions by which images are mixed; 0 for none."""
    cutout: int = 0
    """Pixels on each side of the square that is taken away from every image; 0 for none."""
    label_smoothing: float = 0.0
    """The fraction of a label that is spread over all classes."""
    evaluate_every: int = 1
    """Epochs between two tests, 0 for none; the last step is always followed by one."""
    remat: bool = False
    """Recompute the inside of each block in the backward pass, to save memory."""
    dtype: str = models.DTYPES[0]
    """What networks compute in: float32; bfloat16. Parameters, statistics and losses are float32 in
    either case."""
    seed: int = 0
    """From which weights, order and augmentation follow, below 2^32."""


NUMBERS = (
    "peak_lr", "momentum", "weight_decay", "scalar_factor", "alpha", "branch_scale", "seed"
)  # fmt: skip
"""The fields that are data of a run and no part of its program."""

LIMITS = ("clip_norm", "adaptive_clip")
"""The fields that are data of a run where they are not 0; the program has them or not."""

FIELDS: dict[str, tuple[type, bool]] = {}
"""Of each field its type, and whether it may be None."""
for _name, _hint in typing.get_type_hints(RunSettings).items():
    _parts = typing.get_args(_hint) if isinstance(_hint, types.UnionType) else (_hint,)
    FIELDS[_name] = (next(p for p in _parts if p is not type(None)), type(None) in _parts)

MOST_STEPS = 2**31 // 40
"""Steps of a run, of which int32 counts the forty-fold."""

# Of a number its smallest value, whether that itself is allowed, and what it must stay below.
_RANGES: dict[str, tuple[float, bool, float]] = {
    "batch_size": (1, True, math.inf),
    "steps": (0, True, MOST_STEPS),
    "peak_lr": (0, False, 1e38),
    "momentum": (0, True, 1),
    "alpha": (-math.inf, False, math.inf),
    "dropout": (0, True, 1),
    "average": (0, True, 1),
    "label_smoothing": (0, True, 1),
    "drop_factor": (0, False, 1),
    "calibration_examples": (1, True, math.inf),
    "seed": (0, True, 2**32),
}
_RANGE = (0, True, math.inf)  # of all others
_CHOICES = {
    "schedule": SCHEDULES, "dtype": models.DTYPES, "optimizer": optim.NAMES,
    "draw": ("fan_in", "fan_out", "own"),
}  # fmt: skip


def typed(name: str, value: Any) -> Any:
    """A field's value, of the field's type; raises a ``ValueError`` if it is none for it.

    Example:
      >>> typed("peak_lr", 1), typed("batch_size", 64.0)
      (1.0, 64)
      >>> typed("peak_lr", -0.1)
      Traceback (most recent call last):
      ValueError: peak_lr=-0.1 found; expected a number above 0 and below 1e+38.
    """
    if name not in FIELDS:
        raise ValueError(f"{name!r} is no setting of a run; expected one of {', '.join(FIELDS)}.")
    kind, optional = FIELDS[name]
    if value is None and optional:
        return None
    if kind is str or kind is bool:
        if not isinstance(value, (bool, np.bool_) if kind is bool else str):
            what = "true or false" if kind is bool else "text"
            raise ValueError(f"{name}={shown(value)} found; expected {what}.")
        if name in _CHOICES and value not in _CHOICES[name]:
            expected = " or ".join(_CHOICES[name])
            raise ValueError(f"{name}={shown(value)} found; expected {expected}.")
        return kind(value)
    whole = kind is int
    real = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    try:
        number = float(value) if real else math.nan  # a bound may not fit into 32 bits
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or (whole and value != int(value)):
        raise ValueError(
            f"{name}={shown(value)} found; expected a {'whole' if whole else 'finite'} number."
        )
    low, inclusive, high = _RANGES.get(name, _RANGE)
    if number < low or (number == low and not inclusive) or number >= high:
        below = f" and below {high:.10g}" if high < math.inf else ""
        raise ValueError(
            f"{name}={shown(value)} found; expected a number "
            f"{'of at least' if inclusive else 'above'} {low:g}{below}."
        )
    return kind(value) + 0  # -0.0 is 0.0


def make(values: Mapping[str, Any]) -> RunSettings:
    """Settings from a mapping of fields; raises a ``ValueError`` if one is not in order."""
    settings = RunSettings(**{name: typed(name, value) for name, value in values.items()})
    if settings.epochs and settings.steps:
        raise ValueError(
            f"epochs={settings.epochs:g} and steps={settings.steps} found; expected one of the two."
        )
    if not settings.epochs and not settings.steps:
        settings = dataclasses.replace(settings, epochs=10.0)
    # The text of a run has the number: whatever a scheme says later, the run was made with it.
    return dataclasses.replace(settings, scalar_factor=scalar_factor(settings))


def scalar_factor(settings: RunSettings) -> float:
    """What the rate of a run's slow leaves is multiplied by: its own number, or its scheme's."""
    if settings.scalar_factor is not None:
        return settings.scalar_factor
    return schemes.get(settings.scheme).scalar_factor


# Grids


MOST = 100_000
"""Points of a grid; more are a slip, such as a range of seeds written in the wrong unit."""


def parse(axes: Sequence[str]) -> dict[str, Sequence[Any]]:
    """Reads axes such as ``peak_lr=2^-8:2^2``, and gives the values of each in order, each once.

    After the equals sign stand values with commas between them, each a number, a power ``2^-3``, a
    text, ``true``, ``false`` or ``none``, or a range, both ends included: ``2^-8:2^2`` is every
    power from the one to the other, ``0:4`` is 0, 1, 2, 3, 4.

    Example:
      >>> parse(["peak_lr=2^-2:2^0", "seed=0:1", "scheme=fixup,skipinit"])
      {'peak_lr': (0.25, 0.5, 1.0), 'seed': (0, 1), 'scheme': ('fixup', 'skipinit')}
    """
    axis_values: dict[str, Sequence[Any]] = {}
    for axis in axes:
        name, _, text = axis.partition("=")
        name = name.strip().replace("-", "_")
        if name in axis_values:
            raise ValueError(f"the axis {name} is there twice; expected all its values in one.")
        pieces = [_values(name, piece.strip()) for piece in text.split(",")]
        if not all(pieces):
            raise ValueError(f"{shown(axis)} has a range without values; expected one that rises.")
        axis_values[name] = _each_once(name, itertools.chain(*pieces))
    return axis_values


def _each_once(name: str, values: Iterable[Any]) -> Sequence[Any]:
    """Values of the field's type."""
    return tuple(dict.fromkeys(typed(name, value) for value in values))


def _values(name: str, text: str) -> Sequence[Any]:
    """The values of a part of an axis; what is no number stays a text, which `typed` refuses."""
    kind, optional = FIELDS.get(name, (str, False))
    if text.lower() == "none" and optional:
        return [None]
    if kind is bool:
        return [{"true": True, "false": False}.get(text.lower(), text)]
    first, colon, last = text.partition(":")
    if kind is str or not colon:
        return [text if kind is str else _number(text)]
    low, high = _power(first), _power(last)
    if low and high and low[0] == high[0]:
        return [low[0] ** exponent for exponent in range(low[1], high[1] + 1)]
    start, stop = _number(first), _number(last)
    if not isinstance(start, int) or not isinstance(stop, int) or stop - start > MOST:
        raise ValueError(
            f"{name}={shown(text)} found; expected a range of powers of one base, such as "
            f"2^-8:2^2, or of at most {MOST:,} whole numbers, such as 0:4."
        )
    return range(start, stop + 1)


def _power(text: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"\s*([1-9]\d{0,2})\s*(?:\^|\*\*)\s*([+-]?\d{1,3})\s*", text)
    return (int(match[1]), int(match[2])) if match else None


def _number(text: str) -> float | int | str:
    power = _power(text)
    if power:
        return power[0] ** power[1]
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def checked(
    axes: Mapping[str, Sequence[Any]], base: Mapping[str, Any] | None = None
) -> dict[str, Sequence[Any]]:
    """The axes with values of the fields' types, each once; raises a ``ValueError`` otherwise."""
    for name, values in axes.items():
        if not len(values):
            raise ValueError(f"the axis {name} has no values; expected at least one.")
    count = math.prod(len(values) for values in axes.values())
    if count > MOST:
        raise ValueError(f"a grid of {count:,} points found; expected at most {MOST:,}.")
    both = sorted(set(axes) & set(base or {}))
    if both:
        raise ValueError(
            f"{both[0]} is an axis of the grid and given besides; expected one of both."
        )
    return {name: _each_once(name, values) for name, values in axes.items()}


def points(
    axes: Mapping[str, Sequence[Any]], base: Mapping[str, Any] | None = None
) -> list[RunSettings]:
    """Every combination of the axes' values, the last axis changing fastest.

    ``base`` are the other settings, where they are not the defaults; raises as :func:`checked`.
    """
    axes, base = checked(axes, base), dict(base or {})
    combinations = itertools.product(*axes.values())
    made = (make({**base, **dict(zip(axes, values, strict=True))}) for values in combinations)
    return list(dict.fromkeys(made))


# As text


SHORT = {"batch_size": "batch", "peak_lr": "rate"}
"""Settings that go by another name where space is short."""

SINGLE = ("scheme", "batch_size", "peak_lr", "seed")
"""The settings that name a run where nothing is swept."""


def value_text(name: str, value: Any) -> str:
    """A setting's value: rates that are powers of two as such.

    Example:
      >>> [value_text("peak_lr", rate) for rate in (0.125, 1.0, 4.0, 0.1)]
      ['2^-3', '2^0', '2^2', '0.1']
      >>> value_text("alpha", None), value_text("flip", True), value_text("momentum", 0.9)
      ('none', 'true', '0.9')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if name == "peak_lr":
        return power(value)
    return f"{value:g}" if isinstance(value, float) else printable(str(value))


def axis_text(name: str, values: Iterable[Any]) -> str:
    """An axis as :func:`parse` reads it.

    Example:
      >>> axis_text("peak_lr", (0.25, 0.1)), axis_text("flip", (True,))
      ('peak_lr=2^-2,0.1', 'flip=true')
    """

    def exact(value: Any) -> str:
        text = value_text(name, value)  # which may round
        return str(value) if isinstance(value, float) and not text.startswith("2^") else text

    return f"{name}={','.join(map(exact, values))}"


def label(settings: Mapping[str, Any], names: Iterable[str] = SINGLE) -> str:
    """A run's name.

    Example:
      >>> label({"peak_lr": 0.125, "seed": 0, "batch_size": 64, "scheme": "fixup"})
      'fixup, batch 64, rate 2^-3, seed 0'
    """
    parts = []
    for name in names:
        text = value_text(name, settings[name])
        is_text = isinstance(settings[name], str)
        parts.append(text if is_text else f"{SHORT.get(name, name)} {text}")
    return ", ".join(parts)
