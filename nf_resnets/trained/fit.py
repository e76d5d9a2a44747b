"""The training of one network for images: a wave of one run of a sweep's task."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from typing import Any

import jax
from flax import linen as nn
from jax.sharding import Mesh

from nf_resnets import data, training
from nf_resnets.sweep.grid import UNREAD, refuse_without_effect
from nf_resnets.sweep.image_task import ImageTask
from nf_resnets.sweep.overrides import Load, Optimizer, Overrides, named, overrides_of
from nf_resnets.sweep.settings import RunSettings, make
from nf_resnets.trained.file import Trained, to_json
from nf_resnets.trained.inputs import Images
from nf_resnets.trained.predict import images_of, refuse_other_network
from nf_resnets.trained.run import Watch, train_one
from nf_resnets.trained.transfer import Learn, partly
from nf_resnets.training.display import Display

SETTINGS = RunSettings(warmup_epochs=1.0)
"""The settings of a training, where they are not given."""


def fit(
    dataset: data.Dataset | str | os.PathLike[str],
    *,
    network: Any = None,
    optimizer: Optimizer = None,
    learn: Learn = "all",
    callback: Any = None,
    show: bool = True,
    **settings: Any,
) -> Trained:
    """Trains a network for images without normalization, and tests it after every epoch.

    Args:
      dataset: a :class:`nf_resnets.data.Dataset`, or its name or path, see
        :func:`nf_resnets.data.load`.
      network: in place of the settings ``model`` and ``scheme``: a network of
        :mod:`nf_resnets.models`; a trained one, which goes on from its weights; or, of any other
        library, what :func:`nf_resnets.training.functions_of` takes.
      optimizer: an optax transformation; or ``optimizer(settings)`` that gives one, where
        ``settings["learning_rate"]`` is the schedule of the run's rate; or the name of one.
      learn: which leaves; see :func:`nf_resnets.trained.transfer.label_tree`.
      callback: receives the events of the training (:class:`nf_resnets.sweep.Callback`).
      show: whether the progress is printed.
      **settings: those of :class:`nf_resnets.sweep.RunSettings`: ``model``, ``epochs``,
        ``peak_lr``, ``flip``, ... By default the warm-up is an epoch. It is at most half of the
        run, and a batch of the default size at most the data set.

    Returns:
      The network after the last step, or the average of its parameters, as it was tested; its notes
      have ``settings``, ``steps``, ``test_accuracy`` and ``test_loss`` on the whole test split.
      ``save(path)`` writes one of this library into a file.

    Raises:
      TrainedError: if the run diverges.
      ValueError: if an argument is not in order, or does not fit the data.

    Example:
      >>> network = nf_resnets.fit("photos@32", epochs=20, flip=True)         # doctest: +SKIP
      >>> nf_resnets.predict(network, ["new/1.jpg"])                          # doctest: +SKIP
      [('cat', 0.97)]
    """
    settings["dataset"], load = named(dataset)
    if isinstance(optimizer, str):
        settings["optimizer"], optimizer = optimizer, None
    overrides = run_overrides(network, optimizer, learn, settings)
    values = make({"warmup_epochs": SETTINGS.warmup_epochs, **overrides.settings, **settings})
    task, values = task_of(values, overrides, load)
    callbacks = [callback] if callback else []
    with contextlib.ExitStack() as stack:
        if show:
            callbacks.append(stack.enter_context(Display()))
        return fit_one(task, values, Watch(tuple(callbacks)))


def run_overrides(
    network: Any, optimizer: Optimizer = None, learn: Learn = "all", settings: Any = ()
) -> Overrides:
    """The network and the optimizer in place of those that settings name; see :func:`fit`."""
    variables, names = None, dict[str, Any]()
    if isinstance(network, Trained):
        images_of(network)
        refuse_other_network(network)
        names["weights"] = data.fingerprint(jax.tree.leaves(network.variables))
        variables, network = network.variables, network.model
        if not isinstance(network, nn.Module):  # another library's, of which the calls are kept
            network = training.Functions(lambda key, images: variables, network)
    if learn != "all":
        names["learn"] = learn
    overrides = overrides_of(
        network, optimizer, settings=settings, variables=variables,
        wrap=lambda rule: partly(rule, learn),
    )  # fmt: skip
    if network is not None and not overrides.is_other:
        names["network"] = json.dumps(to_json(network), sort_keys=True)
    return dataclasses.replace(overrides, names={**names, **overrides.names})


def task_of(
    settings: RunSettings, overrides: Overrides, load: Load = data.load
) -> tuple[ImageTask, RunSettings]:
    """The task of one run, and its settings as they fit the data, all checked; see :func:`fit`."""
    dataset = load(settings.dataset)
    Images.of(dataset)  # a trained network says what it takes: refuses what it could not say
    images = len(dataset.train.labels)
    if settings.batch_size == RunSettings.batch_size:
        settings = dataclasses.replace(settings, batch_size=min(settings.batch_size, images))
    per_epoch = data.steps_per_epoch(images, settings.batch_size)
    epochs = settings.steps / per_epoch if settings.steps else settings.epochs
    warmup = min(settings.warmup_epochs, epochs / 2)
    settings = dataclasses.replace(settings, warmup_epochs=warmup)
    task = ImageTask(lambda name: dataset, ("model", "scheme"), overrides)
    task.kind(settings)
    for name in UNREAD:
        refuse_without_effect(name, (getattr(settings, name),), [settings], overrides.scheme)
    return task, settings


def fit_one(task: ImageTask, settings: RunSettings, watch: Watch) -> Trained:
    """Trains the one run of a task; see :func:`fit`."""
    plan = task.plan(settings)
    _, kind, dataset = task.of(plan)
    # With BatchNorm a device holds whole slices of the batch.
    parts = kind.model.bn_groups if kind.scheme.anatomy.has_batch_norm else settings.batch_size
    mesh = mesh_for(parts // kind.how.micro_batches)
    task.check(plan, mesh.size)
    program = task.build(plan, mesh)
    state, row = train_one(program, task.start(plan), plan, watch)
    variables = {"params": state.tested_params}
    if state.batch_stats:
        # Those that it was tested with, of which the notes tell.
        states, (split, _) = program.begin([state]), training.device_splits(dataset, mesh)
        stats = training.tested_stats(program.model, mesh, kind.how, split, states)(states)
        variables["batch_stats"] = training.unstack(jax.device_get(stats), 0)
    passed = ("network", "weights", "scalar_factor")
    default = vars(RunSettings())
    changed = {n: x for n, x in plan.settings.items() if n not in passed and x != default.get(n)}
    notes = {
        "network": plan.settings["model"], "dataset": dataset.name, "settings": changed,
        "steps": plan.num_steps, "test_accuracy": row["test_accuracy"],
        "test_loss": row["test_loss"],
    }  # fmt: skip
    return Trained(program.model, variables, Images.of(dataset), notes)


def mesh_for(slices: int) -> Mesh:
    """As many devices as divide a number of slices; on a CPU one, for all share its cores."""
    devices = jax.devices()
    count = 1 if devices[0].platform == "cpu" else math.gcd(slices, len(devices))
    return training.make_mesh(devices=devices[:count])
