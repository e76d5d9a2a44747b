"""A short training for the commands, with warm-up and halving, on one data set, with a test."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, get_type_hints

import jax
import tyro
from jax.sharding import Mesh

from nf_resnets import data, optim, schemes, training
from nf_resnets.data.order import total_steps
from nf_resnets.trained.file import Trained
from nf_resnets.trained.inputs import Images
from nf_resnets.trained.run import Watch, train_one
from nf_resnets.trained.settings import is_of, type_name
from nf_resnets.trained.transfer import Learn, partly


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a network is trained."""

    epochs: float = 10.0
    """Passes over the training images."""
    batch_size: int = 64
    """Images in a step."""
    learning_rate: Annotated[float, tyro.conf.arg(name="peak-lr")] = 0.1
    """The rate of the first half, after a warm-up of one epoch (or half of the run, if that is
    shorter); then it is halved ten times."""
    optimizer: optim.Name = "sgd"
    """sgd; adamw, lion or muon, which want smaller rates: the schemes' own recipes are SGD's."""
    momentum: float = 0.9
    """The fraction of the last update's velocity that is kept; AdamW's and Lion's beta_1."""
    weight_decay: float = 5e-4
    """The coefficient of L2 in the gradient, with SGD; with the others decay is decoupled."""
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
    """Refuses fields of a recipe of another type, or not positive and finite, or 0 to a limit.

    Raises:
      ValueError: that names the first of them.
    """
    for name, hint in get_type_hints(type(recipe)).items():
        value = getattr(recipe, name)
        if not (isinstance(value, float) and hint is float) and not is_of(value, hint):
            raise ValueError(f"{name}={value!r} found; expected {type_name(hint)}.")
    for name in (*positive, *below):
        value, high = getattr(recipe, name), below.get(name, math.inf)
        if not 0 <= value < high or (name in positive and value == 0):
            expected = "more than 0" if name in positive else f"0 <= {name} < {high}"
            raise ValueError(f"{name}={value} found; expected {expected}.")


def fit(
    model: Any,
    dataset: data.Dataset,
    recipe: Recipe,
    *,
    variables: Any = None,
    learn: Learn = "all",
    watch: Watch = Watch(),  # noqa: B008 (a frozen value)
) -> Trained:
    """Trains a network, and tests it after every epoch.

    Args:
      model: a network for images.
      dataset: what it is trained and tested on.
      recipe: how.
      variables: the parameters, and BatchNorm's statistics, with which it starts; by default those
        of its scheme. Schemes that are no draw of their own change He's (fan_in), with which the
        sweeps and most experiments begin.
      learn: which leaves; see :func:`nf_resnets.trained.transfer.label_tree`.
      watch: who is told, and where the training is saved.

    Returns:
      The network after the last step; its notes have ``recipe``, ``steps``, and ``test_accuracy``
      and ``test_loss`` on the whole test split.

    Raises:
      TrainedError: if the run diverges, or was told to stop and is saved.
      ValueError: if the batch does not fit the data, the checkpoints are of another training, or a
        label is no class.
    """
    inputs, side = Images.of(dataset), min(dataset.train.images.shape[1:3])
    if recipe.padding >= side:
        raise ValueError(f"padding={recipe.padding} found; expected less than a side, {side}.")
    classes = getattr(model, "num_classes", dataset.num_classes)
    if classes != dataset.num_classes:
        raise ValueError(
            f"the model has num_classes={classes}; expected {dataset.num_classes}, the classes of "
            f"{dataset.name}."
        )
    per_epoch = data.steps_per_epoch(len(dataset.train.labels), recipe.batch_size)
    steps = total_steps(recipe.epochs, per_epoch)

    def optimizer(hyper: dict[str, Any]) -> Any:
        rate = optim.halving(hyper["learning_rate"], steps)
        rule, _ = optim.OPTIMIZERS[recipe.optimizer]
        made = rule(
            optim.warmup(rate, min(per_epoch, steps // 2), steps),
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
            scheme=model.scheme,
        )
        return partly(made, learn)

    scheme, hyper = schemes.get(model.scheme), {"learning_rate": recipe.learning_rate}
    start: training.Start | training.TrainState = training.Start(scheme, recipe.seed, hyper)
    if variables is not None:
        statistics = variables.get("batch_stats")
        start = training.create_state(
            variables["params"], optimizer, hyper, batch_stats=statistics, seed=recipe.seed
        )
    # With BatchNorm a device holds whole slices of the batch, by default one of all.
    slices = model.bn_groups if scheme.anatomy.has_batch_norm else recipe.batch_size
    augmentation = data.Augmentation(recipe.padding, recipe.flip)
    program = training.image_program(
        model,
        dataset,
        optimizer,
        mesh_for(math.gcd(slices, recipe.batch_size)),
        training.ImageTraining(recipe.batch_size, steps, augmentation),
        start,
    )
    plan = watch.plan(model, recipe, data.fingerprint(dataset), steps, per_epoch)
    state, row = train_one(program, start, plan, watch)
    found = {"params": state.params}
    if state.batch_stats:
        found["batch_stats"] = state.batch_stats
    notes = {"recipe": dataclasses.asdict(recipe), "steps": steps}
    notes |= {name: row[name] for name in ("test_accuracy", "test_loss")}
    return Trained(model, found, inputs, notes)


def mesh_for(slices: int) -> Mesh:
    """As many devices as divide a number of slices; on a CPU one, for all share its cores."""
    devices = jax.devices()
    count = 1 if devices[0].platform == "cpu" else math.gcd(slices, len(devices))
    return training.make_mesh(devices=devices[:count])


__all__ = ["Recipe", "fit", "mesh_for", "refuse_outside"]
