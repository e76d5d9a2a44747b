"""A scale of an experiment: runs as points of a sum of grids, which the command line changes."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nf_resnets import schemes
from nf_resnets.sweep import settings

Point = dict[str, Any]
"""The settings of a run, those of :class:`nf_resnets.sweep.RunSettings` where it is on images."""

IN_WORDS = {
    "dataset": "{}", "model": "{}", "stem_channels": "{} channels", "batch_size": "batch {}",
    "peak_lr": "learning rate {:g}", "weight_decay": "weight decay {:g}", "steps": "{} steps",
    "epochs": "{:g} epochs",
}  # fmt: skip
DATASETS = {
    "digits": "8x8 digits", "digits_jpeg": "digits as JPEG files", "cifar10": "CIFAR-10",
    "cifar10[:5000]": "5,000 images of CIFAR-10",
}  # fmt: skip


def grid(base: Mapping[str, Any], **axes: Sequence[Any]) -> list[Point]:
    """Every combination of the axes' values, the last axis changing fastest.

    >>> grid({"steps": 4}, model=["wrn-10-1"], seed=[0, 1])
    [{'steps': 4, 'model': 'wrn-10-1', 'seed': 0}, {'steps': 4, 'model': 'wrn-10-1', 'seed': 1}]
    """
    values = itertools.product(*axes.values())
    return [{**base, **dict(zip(axes, each, strict=True))} for each in values]


def variants(
    base: Mapping[str, Any], named: Mapping[str, Point], **axes: Sequence[Any]
) -> list[Point]:
    """A grid for each of some changes."""
    return [point for changes in named.values() for point in grid({**base, **changes}, **axes)]


def scheme_with(
    base: str, name: str, anatomy: Mapping[str, Any] | None = None, **changes: Any
) -> schemes.Scheme:
    """A scheme with some changes; those of its parts are in ``anatomy``.

    >>> scheme_with("fixup", "no_bias", {"scalar_biases": False}).anatomy.scalar_biases
    False
    """
    scheme = schemes.get(base)
    parts = dataclasses.replace(scheme.anatomy, **(anatomy or {}))
    return dataclasses.replace(scheme, name=name, anatomy=parts, **changes)


def title_in(named: Mapping[str, Point]) -> Callable[[Mapping[str, Any]], str]:
    """``title(row)`` is the name of the changes that a row has most of, else its scheme's title.

    >>> named = {"Fixup": {"scheme": "fixup"}, "+ mixup": {"scheme": "fixup", "mixup": 1.0}}
    >>> title_in(named)({"scheme": "fixup", "mixup": 1.0})
    '+ mixup'
    """

    def title(row: Mapping[str, Any]) -> str:
        fits = [name for name, changes in named.items() if changes.items() <= row.items()]
        if not fits:
            return schemes.get(row["scheme"]).title
        return max(fits, key=lambda name: len(named[name]))

    return title


def layers(point: Mapping[str, Any]) -> int:
    """The depth in a network's name; 0 where there is none.

    >>> layers({"model": "wrn-100-2"})
    100
    """
    number = re.search(r"\d+", point.get("model", ""))
    return int(number[0]) if number else 0


def differing(
    points: Sequence[Point], title: Callable[[Mapping[str, Any]], str] = lambda point: ""
) -> set[str]:
    """The settings in which points of one title differ.

    >>> differing(grid({"depth": 8}, seed=[0, 1]))
    {'seed'}
    """
    firsts: dict[str, Point] = {}
    pairs = ((firsts.setdefault(title(point), point), point) for point in points)
    return {name for first, point in pairs for name in point if point[name] != first.get(name)}


def telling(
    title: Callable[[Mapping[str, Any]], str], scale: Sequence[Point], points: Sequence[Point]
) -> Callable[[Mapping[str, Any]], str]:
    """The title, with the settings in which runs of one title differ here, and not in the scale.

    A table takes the mean over the runs of a title, which are to differ in their seed only.

    >>> scale = grid({"model": "wrn-10-1", "peak_lr": 0.1}, seed=[0, 1])
    >>> chosen = changed(scale, {"peak_lr": [0.1, 0.25]})
    >>> telling(lambda row: "Fixup", scale, chosen)(chosen[-1])
    'Fixup, rate 2^-2'
    """
    others, names = vars(settings.RunSettings()), set[str]()
    # A table may have a column for each depth.
    for name_of in (title, lambda row: f"{title(row)}, {layers(row)} layers"):
        here, there = (
            differing([others | point for point in each if "model" in point], name_of)
            for each in (points, scale)
        )
        names |= here - there - {"seed"}
    return lambda row: ", ".join(filter(None, [title(row), settings.label(row, sorted(names))]))


def changed(points: Sequence[Point], axes: Mapping[str, Sequence[Any]]) -> list[Point]:
    """Points with some values of some settings.

    Where all the values are there, these points are chosen. Otherwise each of the values takes the
    place of those that are there, once with each combination of the other settings. Points that
    cannot have such a setting, of what is not trained and of what is, stay as they are.

    >>> changed(grid({}, scheme=["fixup", "lsuv"], seed=[0, 1]), {"scheme": ["lsuv"]})
    [{'scheme': 'lsuv', 'seed': 0}, {'scheme': 'lsuv', 'seed': 1}]
    >>> changed(grid({}, scheme=["fixup", "lsuv"], seed=[0, 1]), {"seed": [7]})
    [{'scheme': 'fixup', 'seed': 7}, {'scheme': 'lsuv', 'seed': 7}]
    """
    chosen = list(points)
    for name, values in axes.items():
        trained = "model" if name in settings.FIELDS else name
        others = [point for point in chosen if name not in point and trained not in point]
        chosen = [point for point in chosen if point not in others]
        if {*values} <= {point.get(name) for point in chosen}:
            chosen = [*others, *(point for point in chosen if point.get(name) in values)]
            continue
        other = {"steps": "epochs", "epochs": "steps"}.get(name)  # one of the two is the budget
        rests: list[Point] = []
        for point in chosen:
            rest = {key: value for key, value in point.items() if key != name}
            rest |= {other: 0} if other in rest else {}
            rests += [] if rest in rests else [rest]
        if name == "seed":
            chosen = [{**rest, name: value} for rest in rests for value in values]
        else:
            chosen = [{**rest, name: value} for value in values for rest in rests]
        chosen = [*others, *chosen]
    return chosen


def parsed(
    axes: Sequence[str], points: Sequence[Point], others: Iterable[str] = ()
) -> dict[str, Sequence[Any]]:
    """Axes such as ``depth=26,50``, of settings of the points or ``others``.

    What is no setting of a sweep has the type of the points.

    Raises:
      ValueError: if nothing would read a setting, it is there twice, or a value is not of its type.

    >>> parsed(["depth=26,50", "seed=0:2"], [{"depth": 101, "seed": 0}])
    {'depth': [26, 50], 'seed': (0, 1, 2)}
    """
    names = dict.fromkeys([*(name for point in points for name in point), *others])
    axis_values: dict[str, Sequence[Any]] = {}
    for axis in axes:
        name, _, text = axis.partition("=")
        if name in axis_values:
            raise ValueError(f"--grid has {name} twice; expected all its values in one.")
        if name not in names:
            raise ValueError(f"the setting {name} found; expected one of {', '.join(names)}.")
        if name in settings.FIELDS:
            axis_values |= settings.parse([axis])
            continue
        kind = next(type(point[name]) for point in points if name in point)
        values = text.split(",")
        if kind is bool and not {"true", "false"} >= {*values}:
            raise ValueError(f"--grid {axis} found; expected true or false.")
        axis_values[name] = [value == "true" if kind is bool else kind(value) for value in values]
    return axis_values


def about(points: Sequence[Point]) -> str:
    """What all points share, for the subtitle of a figure.

    >>> about(grid({"dataset": "digits", "steps": 44}, peak_lr=[0.1, 0.2], seed=[0, 1, 2]))
    '8x8 digits, 44 steps, 3 seeds'
    """
    words = []
    for name, text in IN_WORDS.items():
        values = {point.get(name) for point in points}
        value = values.pop()
        if value and not values:
            words.append(text.format(DATASETS.get(value, value)))
    seeds = len({point.get("seed", 0) for point in points})
    return ", ".join([*words, f"{seeds} seed{'s'[: seeds != 1]}"])
