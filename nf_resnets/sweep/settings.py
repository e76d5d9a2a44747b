"""What a run depends on: one flat value, its checks, and the text by which a ledger knows it."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any

import numpy as np

from nf_resnets import schemes


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """All that the numbers of a run depend on; each field can be swept over."""

    dataset: str = "digits"
    """digits, cifar10, cifar100, svhn_cropped or fashion_mnist; all but digits are read with
    tensorflow-datasets."""
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
    epochs: float = 0.0
    """The budget in passes over the training data; 10 if neither it nor `steps` is given."""
    steps: int = 0
    """The budget in steps, instead of epochs."""
    peak_lr: float = 0.1
    """The learning rate of the first half of the run, after the warm-up."""
    schedule: str = "halving"
    """halving: constant for half of the run, then halved ten times; constant."""
    warmup_epochs: float = 0.0
    """Over how many epochs the rate rises linearly from 0."""
    momentum: float = 0.9
    """The share of the last update's velocity that is kept."""
    weight_decay: float = 5e-4
    """The coefficient of L2 in the gradient."""
    scalar_factor: float | None = None
    """What the rate is multiplied by for the leaves that the scheme trains slowly, such as Fixup's
    scalar biases and multipliers; none for what the scheme says, a tenth for Fixup's."""
    alpha: float | None = None
    """What the scalars of SkipInit's branches start from; none for what the scheme says."""
    branch_scale: float = 1.0
    """What the weights inside the branches are multiplied by after initialisation."""
    dropout: float | None = None
    """The rate of dropout before the head, for schemes that have it; none for the published 0.6."""
    ghost_batch: int = 64
    """Examples over which BatchNorm takes its statistics; 0 for the whole batch."""
    bn_estimate_batches: int = 0
    """From how many training batches BatchNorm's statistics are estimated for each test; 0 for the
    running averages."""
    padding: int = 0
    """Pixels of padding before the random crop; 0 for no crop."""
    flip: bool = False
    """Whether half of the training images are mirrored."""
    evaluate_every: int = 1
    """Epochs between two tests; the last step is always followed by one."""
    remat: bool = False
    """Recompute the inside of each block in the backward pass, to save memory."""
    seed: int = 0
    """From which weights, order and augmentation follow, below 2^32."""


NUMBERS = (
    "peak_lr", "momentum", "weight_decay", "scalar_factor", "alpha", "branch_scale", "seed"
)  # fmt: skip
"""The fields that are data of a run and no part of its program."""

FIELDS: dict[str, tuple[type, bool]] = {}
"""Of each field its type, and whether it may be None."""
for _name, _hint in typing.get_type_hints(RunSettings).items():
    _parts = typing.get_args(_hint) if isinstance(_hint, types.UnionType) else (_hint,)
    FIELDS[_name] = (next(p for p in _parts if p is not type(None)), type(None) in _parts)

# Of each number its smallest value, whether that itself is allowed, and what it must stay below.
_RANGES: dict[str, tuple[float, bool, float]] = {
    "stem_channels": (0, True, math.inf),
    "batch_size": (1, True, math.inf),
    "micro_batch": (0, True, math.inf),
    "epochs": (0, True, math.inf),
    "steps": (0, True, 2**31 / 40),
    "peak_lr": (0, False, 1e38),
    "warmup_epochs": (0, True, math.inf),
    "momentum": (0, True, 1),
    "weight_decay": (0, True, math.inf),
    "scalar_factor": (0, True, math.inf),
    "alpha": (-math.inf, False, math.inf),
    "branch_scale": (0, True, math.inf),
    "dropout": (0, True, 1),
    "ghost_batch": (0, True, math.inf),
    "bn_estimate_batches": (0, True, math.inf),
    "padding": (0, True, math.inf),
    "evaluate_every": (1, True, math.inf),
    "seed": (0, True, 2**32),
}
_CHOICES = {"schedule": ("halving", "constant")}


def shown(value: Any) -> str:
    """A value as an error shows it: no longer than a line.

    Example:
      >>> shown(0.1), shown("x" * 1000)
      ('0.1', "'xxxxxxxxxxxxxxxxxxx...xxxxxxxxx'")
    """
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole numbers of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:20]}...{text[-10:]}"


def typed(name: str, value: Any) -> Any:
    """A field's value, of the field's type, checked against the field's range.

    Raises:
      ValueError: if there is no such field, or the value is not one for it.

    Example:
      >>> typed("peak_lr", np.float32(1)), typed("batch_size", 64.0)
      (1.0, 64)
      >>> typed("peak_lr", -0.1)
      Traceback (most recent call last):
      ValueError: peak_lr=-0.1 found; expected a number above 0 and below 1e+38.
    """
    if name not in FIELDS:
        close = difflib.get_close_matches(name, FIELDS, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(
            f"{name!r} is no setting of a run; expected one of {', '.join(FIELDS)}{hint}."
        )
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
    low, inclusive, high = _RANGES[name]
    if number < low or (number == low and not inclusive) or number >= high:
        expected = f"{'of at least' if inclusive else 'above'} {low:g}"
        if high < math.inf:
            expected += f" and below {int(high) if high == int(high) and high < 2**53 else high}"
        raise ValueError(f"{name}={shown(value)} found; expected a number {expected}.")
    # A NumPy float of 32 bits is the shortest number that means it: 0.1, not 0.10000000149.
    if isinstance(value, np.float32 | np.float16):
        value = float(str(value))
    return kind(value) + 0


def make(values: Mapping[str, Any]) -> RunSettings:
    """Settings from a mapping of fields; those that are left out have their defaults.

    Raises:
      ValueError: if a field is unknown or a value is not one for it, or the budget is given twice.
    """
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
    """What the rate of a run's slow leaves is multiplied by: its own number, or its scheme's.

    Raises:
      ValueError: if it is the scheme's, and no scheme has that name.
    """
    if settings.scalar_factor is not None:
        return settings.scalar_factor
    return schemes.get(settings.scheme).scalar_factor


def canonical(settings: RunSettings | Mapping[str, Any]) -> str:
    """The one text for settings, however their numbers were written.

    Example:
      >>> canonical({"peak_lr": 1e-1}) == canonical({"peak_lr": np.float32(0.1), "seed": 0.0})
      True
    """
    values = settings if isinstance(settings, Mapping) else vars(settings)
    whole = vars(make(values))
    return json.dumps(whole, sort_keys=True, separators=(",", ":"), allow_nan=False)


def key(settings: RunSettings | Mapping[str, Any]) -> str:
    """SHA-256 of the canonical text, 64 hexadecimal digits: a run's name everywhere."""
    return hashlib.sha256(canonical(settings).encode()).hexdigest()


__all__ = [
    "FIELDS",
    "NUMBERS",
    "RunSettings",
    "canonical",
    "key",
    "make",
    "scalar_factor",
    "shown",
    "typed",
]
