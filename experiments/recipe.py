"""A published recipe of training: SGD whose rate falls in steps, on augmented images."""

from __future__ import annotations

import dataclasses
from typing import Any

from experiments.program import Program, build_program
from nf_resnets import data, optim


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    Attributes:
      learning_rate: of the first steps.
      batch_size: examples in a step.
      epochs: of the whole run.
      drops: the parts of the run after which the rate falls: 0.5 is epoch 100 of 200.
      factor: what the rate is multiplied by each time.
      momentum: of SGD.
      weight_decay: the coefficient of L2, which goes through the momentum.
      scalar_factor: what the rate is multiplied by for the leaves that the scheme trains slowly,
        Fixup's scalars.
      padding: pixels of zeros on each side before the random crop; 0 for no crop.
      flip: whether half of the images are mirrored left to right.
      mixup: ``alpha``; 0 for none.
      cutout: pixels on each side of the square; 0 for none.
      bn_estimate_batches: from how many training batches BatchNorm's statistics are estimated at
        the final weights; 0 to test with the running ones.
    """

    learning_rate: float = 0.1
    batch_size: int = 128
    epochs: int = 200
    drops: tuple[float, ...] = (0.5, 0.75)
    factor: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    scalar_factor: float = 0.1
    padding: int = 0
    flip: bool = False
    mixup: float = 0.0
    cutout: int = 0
    bn_estimate_batches: int = 0


def num_steps(recipe: Recipe, dataset: data.Dataset) -> int:
    """The steps of the whole run."""
    return recipe.epochs * data.steps_per_epoch(len(dataset.train.labels), recipe.batch_size)


def boundaries(recipe: Recipe, steps: int) -> tuple[int, ...]:
    """The steps from which on the rate is lower.

    >>> boundaries(Recipe(drops=(0.3, 0.6, 0.8)), 200 * 390)
    (23400, 46800, 62400)
    """
    return tuple(max(1, round(part * steps)) for part in recipe.drops)


def recipe_program(model: Any, dataset: data.Dataset, recipe: Recipe, steps: int) -> Program:
    """Builds what the runs of one architecture need that are trained by one recipe.

    Args:
      model: a network of :mod:`nf_resnets.models`.
      dataset: what it is trained and tested on.
      recipe: how.
      steps: of the whole run, over which the rate falls.
    """

    def optimizer(hyper: dict[str, Any]) -> Any:
        return optim.sgd(
            optim.step_decay(hyper["learning_rate"], boundaries(recipe, steps), recipe.factor),
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            scheme=model.scheme,
            scalar_factor=recipe.scalar_factor,
        )

    return build_program(
        model,
        dataset,
        optimizer,
        batch_size=recipe.batch_size,
        steps=steps,
        augmentation=data.Augmentation(recipe.padding, recipe.flip, recipe.mixup, recipe.cutout),
        bn_estimate_batches=recipe.bn_estimate_batches,
        draw="fan_out",
    )


__all__ = ["Recipe", "boundaries", "num_steps", "recipe_program"]
