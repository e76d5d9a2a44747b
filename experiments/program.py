"""The compiled functions that all runs of one architecture share, and where they run."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from nf_resnets import data, init, schemes, training

CALIBRATION_IMAGES = 128  # RescaleNet's authors found that many to be enough


@dataclasses.dataclass(frozen=True)
class Program:
    """What all runs of one architecture share: the compiled functions, and where they run.

    Attributes:
      model: the network.
      mesh: the devices.
      batch_size: examples in a step.
      steps: steps of a run.
      optimizer: ``optimizer(hyper)`` gives the optax transformation.
      initial: ``initial(scheme, key)`` gives the variables of a network before its first step.
      step: the training step.
      estimate: BatchNorm's statistics at the final weights; None to test with the running ones.
      evaluate: loss and accuracy on a split.
      train_data: the training split, on the mesh.
      test_data: the test split, on the mesh.
      average_decay: how much of the parameters' moving average a step keeps; the average then is
        what is tested. None to test the parameters themselves.
    """

    model: Any
    mesh: jax.sharding.Mesh
    batch_size: int
    steps: int
    optimizer: Callable[[dict[str, Any]], Any]
    initial: Callable[[schemes.Scheme, jax.Array], Any]
    step: Any
    estimate: Any
    evaluate: Any
    train_data: data.DeviceData
    test_data: data.DeviceData
    average_decay: float | None = None


def build_program(
    model: Any,
    dataset: data.Dataset,
    optimizer: Callable[[dict[str, Any]], Any],
    *,
    batch_size: int,
    steps: int | None,
    augmentation: data.Augmentation = data.Augmentation(),  # noqa: B008 (a frozen value)
    bn_estimate_batches: int = 0,
    eval_batch_size: int = 500,
    draw: Literal["fan_in", "fan_out", "own"] = "fan_in",
    label_smoothing: float = 0.0,
    average_decay: float | None = None,
) -> Program:
    """Builds what the runs of one architecture need; everything is compiled at its first call.

    Args:
      model: a network of :mod:`nf_resnets.models`, whose scheme gives the anatomy.
      dataset: what it is trained and tested on.
      optimizer: ``optimizer(hyper)`` gives the optax transformation.
      batch_size: examples in a step.
      steps: steps of a run; None for one epoch.
      augmentation: what is done to the training images.
      bn_estimate_batches: from how many training batches BatchNorm's statistics are estimated at
        the final weights; 0 to test with the running ones.
      eval_batch_size: examples in a batch of the test.
      draw: the weights of all schemes come from one draw, He (fan_in or fan_out), which a scheme
        only changes, but for those that are a draw of their own (Xavier, LSUV); with ``"own"``
        each scheme draws as it was published.
      label_smoothing: how much of a label is spread over all classes in training.
      average_decay: how much of the parameters' moving average, which is tested, a step keeps; None
        to test the parameters themselves.
    """
    batch_norm = schemes.get(model.scheme).anatomy.has_batch_norm
    # As many devices as divide the batch, and, for BatchNorm, the batch's slices.
    slices = model.bn_groups if batch_norm else batch_size
    devices = math.gcd(math.gcd(slices, batch_size), len(jax.devices()))
    mesh = training.make_mesh(devices=jax.devices()[:devices])
    apply_fn = training.train_apply(model, shards=devices)
    estimate = None
    if batch_norm and bn_estimate_batches:
        estimate = training.make_estimate_batch_stats(
            apply_fn, mesh, batch_size=batch_size, batches=bn_estimate_batches
        )
    return Program(
        model=model,
        mesh=mesh,
        batch_size=batch_size,
        steps=steps or data.steps_per_epoch(dataset.train.labels.shape[0], batch_size),
        optimizer=optimizer,
        initial=_make_initial(model, dataset, draw),
        step=training.make_train_step(
            apply_fn,
            optimizer,
            mesh,
            batch_size=batch_size,
            augmentation=augmentation,
            label_smoothing=label_smoothing,
        ),
        estimate=estimate,
        evaluate=training.make_evaluate(
            training.eval_apply(model), mesh, batch_size=eval_batch_size
        ),
        train_data=training.replicate(data.DeviceData.of(dataset, dataset.train), mesh),
        test_data=training.replicate(data.DeviceData.of(dataset, dataset.test), mesh),
        average_decay=average_decay,
    )


def _make_initial(
    model: Any, dataset: data.Dataset, draw: Literal["fan_in", "fan_out", "own"]
) -> Callable[[schemes.Scheme, jax.Array], Any]:
    image = jnp.zeros((1, *dataset.train.images.shape[1:]))
    # It runs once a run, for milliseconds: what counts is how long it takes to compile.
    on_cpu = jax.default_backend() == "cpu"
    quickly = {"xla_backend_optimization_level": 0} if on_cpu else None

    @functools.partial(jax.jit, static_argnums=0, compiler_options=quickly)
    def drawn(scheme: schemes.Scheme, key: jax.Array) -> Any:
        variables = model.init(key, image)
        params = variables["params"]
        if draw == "own" or scheme.own_draw:
            return {**variables, "params": scheme.init(params, model.num_branches, key=key)}
        params = init.he(params, key, mode=draw)
        return {**variables, "params": scheme.init(params, model.num_branches)}

    def initial(scheme: schemes.Scheme, key: jax.Array) -> Any:
        variables = drawn(scheme, key)
        if scheme.calibrate is None:
            return variables
        images = jnp.asarray(dataset.train.images[:CALIBRATION_IMAGES])
        images = data.normalize(images, jnp.asarray(dataset.mean), jnp.asarray(dataset.std))
        return {**variables, "params": scheme.calibrate(model.apply, variables["params"], images)}

    return initial


__all__ = ["CALIBRATION_IMAGES", "Program", "build_program"]
