"""Softmax regression on random images: real training, whose program compiles in a second."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import data, optim, training
from nf_resnets.training.run import Plan
from tests.training import small

COUNT, BATCH, STEPS = 48, 8, 14  # six steps are an epoch


def apply(params, batch_stats, images, keys):
    """Logits, with dropout of single ones, to see that the keys come along."""
    logits = images.reshape(images.shape[0], -1) @ params["head"]["kernel"]
    if keys is None:
        return logits, batch_stats
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, 0.9, logits.shape[1:]))(keys)
    return logits * kept, batch_stats


def optimizer(hyper):
    """SGD, whose update is not a number at ``bad_step``, counted from 0."""

    def rate(step):
        return jnp.where(step == hyper["bad_step"], jnp.nan, hyper["learning_rate"])

    return optim.sgd(rate, weight_decay=5e-4)


@functools.cache
def dataset(seed=0):
    parts = (small.split(count, seed=seed + count) for count in (COUNT, 20))
    splits = [data.Split(part.images, part.labels) for part in parts]
    return data.from_splits("noise", *splits, class_names=tuple("abcdefghij"))


def state(seed=0, peak_lr=0.01, bad_step=-1, step=0):
    kernel = 0.1 * np.random.default_rng(seed).standard_normal((64, 10))
    params = {"head": {"kernel": jnp.asarray(kernel, jnp.float32)}}
    hyper = {"learning_rate": peak_lr, "bad_step": bad_step}
    found = training.create_state(params, optimizer, hyper, seed=seed)
    return found.replace(step=jnp.int32(step))


def settings(steps=STEPS):
    augmentation = data.Augmentation(padding=1, flip=True)
    return training.ImageTraining(batch_size=BATCH, num_steps=steps, augmentation=augmentation)


@functools.cache
def program(runs=1, steps=STEPS, sweep=1, along=1):
    """For so many runs on each of ``sweep`` times ``along`` devices."""
    return training.image_program(
        apply, dataset(), optimizer, small.mesh_of(sweep, along), settings(steps), state(),
        runs_per_device=runs,
    )  # fmt: skip


def plan(steps=STEPS, **values):
    label = ", ".join(f"{name} {value}" for name, value in values.items())
    return Plan(values, label, steps, COUNT // BATCH, program=f"linear-{steps}")
