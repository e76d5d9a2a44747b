"""A short training for the commands: SGD with warm-up and halving, on one data set, with a test."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from nf_resnets import data, optim, schemes, training
from nf_resnets.trained.resume import diverged, run_to_end
from nf_resnets.trained.transfer import Learn, partly
from nf_resnets.training.checkpoint import Checkpoints
from nf_resnets.training.progress import refuse_labels


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a network is trained."""

    epochs: float = 10.0
    """Passes over the training images."""
    batch_size: int = 64
    """Images in a step."""
    learning_rate: float = 0.1
    """The rate of the first half, after a warm-up of one epoch (or half of the run, if that is
    shorter); then it is halved ten times."""
    momentum: float = 0.9
    """The fraction of the last update's velocity that is kept."""
    weight_decay: float = 5e-4
    """The coefficient of L2 in the gradient."""
    padding: int = 0
    """Pixels of padding before the random crop; 0 for no crop."""
    flip: bool = False
    """Whether half of the images are mirrored; digits must not be."""
    seed: int = 0
    """From which weights, order and augmentation follow, below 2^32."""

    def __post_init__(self) -> None:
        refuse_outside(
            self,
            ("epochs", "batch_size", "learning_rate"),
            {"momentum": 1, "weight_decay": math.inf, "padding": math.inf, "seed": 2**32},
        )


def refuse_outside(recipe: Any, positive: tuple[str, ...], below: Mapping[str, float]) -> None:
    """Refuses numbers of a recipe that are out of range.

    Args:
      recipe: a dataclass.
      positive: the names of those that are finite and above 0.
      below: by name, what those of at least 0 are below.

    Raises:
      ValueError: that names the first of them.
    """
    for name in positive:
        if not 0 < getattr(recipe, name) < math.inf:
            raise ValueError(f"{name}={getattr(recipe, name)} found; expected more than 0.")
    for name, high in below.items():
        if not 0 <= getattr(recipe, name) < high:
            raise ValueError(
                f"{name}={getattr(recipe, name)} found; expected 0 <= {name} < {high}."
            )


@dataclasses.dataclass(frozen=True)
class Fit:
    """The result of a training.

    Attributes:
      variables: parameters and running statistics after the last step.
      steps: how many there were.
      test_accuracy: on the whole test split, in ``[0, 1]``.
      test_loss: mean cross-entropy on it.
    """

    variables: dict[str, Any] = dataclasses.field(repr=False)
    steps: int
    test_accuracy: float
    test_loss: float


def initial(model: Any, dataset: data.Dataset, seed: int) -> dict[str, Any]:
    """Variables as the network's scheme draws them, set from images where it asks for that.

    Schemes that are no draw of their own change He (fan_in), the draw with which the sweeps and
    most experiments begin.
    """
    scheme = schemes.get(model.scheme)
    image = jnp.zeros((1, *dataset.train.images.shape[1:]))

    @jax.jit
    def draw(key: jax.Array) -> dict[str, Any]:
        variables = model.init(key, image)
        params = training.draw_params(model, scheme, variables["params"], key, "fan_in")
        return {**variables, "params": params}

    variables = draw(jax.random.key(seed))
    if scheme.calibrate is not None:
        images = jnp.asarray(training.first_images(dataset))
        variables["params"] = scheme.calibrate(model.apply, variables["params"], images)
    return variables


def fit(
    model: Any,
    variables: dict[str, Any],
    dataset: data.Dataset,
    recipe: Recipe,
    *,
    learn: Learn = "all",
    on_epoch: Callable[[int, int, float, float], Any] = lambda *numbers: None,
    checkpoints: Checkpoints | None = None,
) -> Fit:
    """Trains a network and tests it once.

    Args:
      model: a network for images.
      variables: its parameters, and BatchNorm's statistics.
      dataset: what it is trained and tested on.
      recipe: how.
      learn: which leaves; see :func:`nf_resnets.trained.transfer.label_tree`.
      on_epoch: called after each epoch, and the last step, with the steps made, all steps, and the
        means of the epoch's training loss and accuracy.
      checkpoints: where the training is saved and resumed; None for neither.

    Raises:
      TrainedError: if the run diverges, or was told to stop and is saved.
      ValueError: if the batch does not fit the data, or a label is no class.
    """
    per_epoch = data.steps_per_epoch(len(dataset.train.labels), recipe.batch_size)
    steps = max(1, round(recipe.epochs * per_epoch))

    def optimizer(hyper: dict[str, Any]) -> Any:
        rate = optim.halving(hyper["learning_rate"], steps)
        rule = optim.sgd(
            optim.warmup(rate, min(per_epoch, steps // 2), steps),
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            scheme=model.scheme,
        )
        return partly(rule, learn)

    numbers = {"learning_rate": recipe.learning_rate}
    program = training.image_program(
        model,
        dataset,
        optimizer,
        training.make_mesh(devices=_devices(model, recipe.batch_size)),
        training.ImageTraining(
            recipe.batch_size, steps, data.Augmentation(recipe.padding, recipe.flip)
        ),
        training.Start(schemes.get(model.scheme), recipe.seed, numbers),
    )
    state = training.create_state(
        variables["params"],
        optimizer,
        numbers,
        batch_stats=variables.get("batch_stats"),
        seed=recipe.seed,
    )
    epoch: list[dict[str, float]] = []

    def on_step(step: int, metrics: dict[str, float]) -> None:
        epoch.append(metrics)
        if step % per_epoch == 0 or step == steps:
            means = [sum(m[name] for m in epoch) / len(epoch) for name in ("loss", "accuracy")]
            on_epoch(step, steps, *means)
            epoch.clear()

    run = run_to_end(
        program,
        state,
        learning_rate=recipe.learning_rate,
        on_step=on_step,
        checkpoints=checkpoints,
    )
    found = {"params": run.state.params}
    if variables.get("batch_stats"):
        found["batch_stats"] = run.state.batch_stats
    test = program.test(program.put(program.empty(), 0, run.state))
    tested = {name: float(value[0]) for name, value in test.items()}
    refuse_labels(tested, "the test split")
    if not math.isfinite(tested["loss"]):
        raise diverged("at its last step", recipe.learning_rate, checkpoints)
    return Fit(found, steps, tested["accuracy"], tested["loss"])


def _devices(model: Any, batch_size: int) -> list[jax.Device]:
    """As many as divide the batch; with BatchNorm, as divide its slices, by default one."""
    normalized = schemes.get(model.scheme).anatomy.has_batch_norm
    slices = model.bn_groups if normalized else batch_size
    devices = jax.devices()
    if devices[0].platform == "cpu":
        return devices[:1]  # the devices of a CPU share its cores
    return devices[: math.gcd(slices, batch_size, len(devices))]


__all__ = ["Fit", "Recipe", "fit", "initial", "refuse_outside"]
