"""The programs that are compiled for TPUs, and lowered for GPUs, without any: name and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nf_resnets import models, optim, schemes, training
from nf_resnets.data.batch import DeviceData
from nf_resnets.training.host_steps import host_step
from nf_resnets.training.images import make_train_steps
from nf_resnets.training.mesh import DATA
from nf_resnets.training.program import state_shapes
from nf_resnets.training.streamed import mixed

HYPER = {"learning_rate": 0.1, "weight_decay": 5e-4}
EXAMPLES, CLASSES = 640, 10
TINY = {"stem_channels": 4, "num_classes": CLASSES}


class Program(NamedTuple):
    """A function that ``jax.jit`` made, and the shapes and shardings of its arguments."""

    function: Any
    arguments: tuple[Any, ...]

    @property
    def states(self) -> training.TrainState:
        return self.arguments[0]


def sgd(hyper: Any) -> Any:
    return optim.sgd(hyper["learning_rate"], weight_decay=hyper["weight_decay"])


def shaped(mesh: Mesh, shape: Sequence[int], dtype: Any, *axes: str) -> jax.ShapeDtypeStruct:
    sharding = NamedSharding(mesh, PartitionSpec(*axes))
    return jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=sharding)


def states_of(model: Any, mesh: Mesh, example: tuple[Any, ...], runs: int) -> Any:
    start = training.Start(schemes.get(model.scheme), 0, HYPER)
    initial = training.make_initial(model, example, sgd, draw="model")
    return state_shapes(mesh, initial, start, runs)


def image_steps(
    model: Any, devices: Any, sweep: int, *, batch: int = 64, runs: int = 1, side: int = 8
) -> Program:
    """Many steps on images in memory, of so many runs for each of the mesh's ``sweep`` axis."""
    mesh = training.make_mesh(sweep, devices=devices)
    how = training.ImageTraining(batch, num_steps=1)
    function = make_train_steps(model, sgd, mesh, how, vectorize="vmap")
    images = jnp.zeros((1, side, side, 3))
    states = states_of(model, mesh, (images,), sweep * runs)
    split = DeviceData(
        images=shaped(mesh, (EXAMPLES, side, side, 3), np.uint8),
        labels=shaped(mesh, (EXAMPLES,), np.int32),
        mean=shaped(mesh, (3,), np.float32),
        std=shaped(mesh, (3,), np.float32),
    )
    counts = shaped(mesh, (sweep * runs,), np.int32, "sweep")
    return Program(function, (states, counts, split))


def sweep(devices: Any) -> Program:
    """Several runs on each chip of a group, and their batches spread over the groups of chips."""
    model = models.WideResNet(depth=10, scheme="fixup", **TINY)
    return image_steps(model, devices, 4 if len(devices) > 8 else 2, runs=2)


def ghost_batch_norm(devices: Any) -> Program:
    """BatchNorm over slices of the batch, two on each chip."""
    groups = 2 * len(devices)
    model = models.WideResNet(depth=10, scheme="batchnorm", bn_groups=groups, **TINY)
    return image_steps(model, devices, 1)


def streamed(devices: Any) -> Program:
    """A step on images from the host, mixed with each other over all chips."""
    mesh, batch, side = training.make_mesh(devices=devices), 32, 32
    model = models.WideResNet(depth=10, scheme="fixup", **TINY)
    loss = training.ImageTraining(batch, num_steps=1).loss(model, mesh)
    function = host_step(loss, mixed(batch, mixup=0.7), sgd, mesh)
    arrays = {
        "image": shaped(mesh, (batch, side, side, 3), np.uint8, DATA),
        "label": shaped(mesh, (batch,), np.int32, DATA),
        "index": shaped(mesh, (batch,), np.int32, DATA),
    }
    states = states_of(model, mesh, (jnp.zeros((1, side, side, 3)),), 1)
    return Program(function, (states, arrays))
