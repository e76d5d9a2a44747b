"""Experiments on images in memory: their networks, and how these are trained."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from typing import Any

from nf_resnets import data, optim
from nf_resnets.schemes import Scheme
from nf_resnets.training import ImageTraining, Relative, Start
from nf_resnets.training.initial import Draw

from .experiment import Point, Setup

AUGMENTATION = ("padding", "flip", "mixup", "cutout")
TRAINING = ("bn_estimate_batches", "eval_batch_size")


def lengths(dataset: data.Dataset, batch_size: int, num_steps: int | None = None) -> dict[str, int]:
    """The lengths of a :class:`Point`: its steps, by default an epoch's, those and its batch."""
    epoch = data.steps_per_epoch(len(dataset.train.labels), batch_size)
    return {"num_steps": num_steps or epoch, "steps_per_epoch": epoch, "batch_size": batch_size}


def variant_points(
    variants: Mapping[str, Scheme], settings: Any, every: Mapping[str, int]
) -> list[Point]:
    """A run of every variant and seed; those of variants that compile alike share a program.

    Args:
      variants: the scheme of each of the settings' ``variants``.
      settings: ``variants``, ``seeds`` and ``learning_rate``.
      every: the lengths of every run, as :func:`lengths` gives them.
    """
    return [
        Point(
            key={"variant": name, "seed": seed},
            title=variants[name].title,
            start=Start(variants[name], seed, {"learning_rate": settings.learning_rate}),
            program=variants[name].compiles_as,
            **every,
        )
        for name, seed in itertools.product(settings.variants, settings.seeds)
    ]


def network(of: Callable[..., Any], settings: Any, dataset: Any, point: Point, **more: Any) -> Any:
    """A network of a run's scheme, its fields those of the settings, the run's key or ``more``."""
    given = {**vars(settings), **point.key, "scheme": point.start.scheme}
    given |= {"num_classes": dataset.num_classes, **more}
    names = [field.name for field in dataclasses.fields(of)]
    return of(**{name: given[name] for name in names if name in given})


def image_setup(
    model: Any,
    dataset: data.Dataset,
    settings: Any,
    point: Point,
    *,
    schedule: Callable[[Any], Any] = lambda rate: rate,
    draw: Draw = "fan_in",
    relative: Relative | None = None,
    **groups: Any,
) -> Setup:
    """A network that is trained by SGD, or as the command says, with the settings' numbers.

    Args:
      model: the network.
      dataset: the images.
      settings: ``momentum`` and ``weight_decay``, and any of ``AUGMENTATION`` and ``TRAINING``.
      point: one of the runs; a ``weight_decay`` of its own goes before that of the settings.
      schedule: ``schedule(rate)`` is the learning rate, a number or a function of the step.
      draw: which weights the schemes change.
      relative: what a base network changes, of which ``model`` is the network.
      groups: other arguments of :func:`nf_resnets.optim.sgd`.
    """

    def optimizer(hyper: dict[str, Any], name: optim.Name = "sgd") -> Any:
        rule, kind = optim.OPTIMIZERS[name]
        made = rule(
            schedule(hyper["learning_rate"]),
            momentum=settings.momentum,
            weight_decay=hyper.get("weight_decay", settings.weight_decay),
            scheme=model.scheme,
            **groups,
        )
        return made if relative is None else relative.parametrize(made, kind=kind)

    given = vars(settings)
    training = ImageTraining(
        batch_size=point.batch_size,
        num_steps=point.num_steps,
        augmentation=data.Augmentation(**{n: given[n] for n in AUGMENTATION if n in given}),
        draw=draw,
        **{name: given[name] for name in TRAINING if name in given},
    )
    return Setup(model, optimizer, training, dataset)


__all__ = ["image_setup", "lengths", "network", "variant_points"]
