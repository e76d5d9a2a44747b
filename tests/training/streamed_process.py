"""A run on streamed photographs, alone or with another process: not started by hand.

Usage: python -m tests.training.streamed_process DATA_DIR FOLDER PORT PROCESS
"""

import functools
import hashlib
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nf_resnets import data, optim, training
from nf_resnets.training import hosts
from nf_resnets.training.checkpoint import Checkpoints
from tests.training import linear
from tests.training.small import Log

SIZE, BATCH, STEPS, CLASSES = 12, 16, 14, 8  # nine steps are an epoch


def adam(hyper):
    return optax.adam(optim.step_decay(hyper["learning_rate"], (10,), 0.5))


def begin(seed=3, rate=0.01):
    rng = np.random.default_rng(0)
    kernel = 0.01 * rng.standard_normal((SIZE * SIZE * 3, CLASSES))
    params = {"head": {"kernel": jnp.asarray(kernel, jnp.float32)}}
    return training.create_state(params, adam, {"learning_rate": rate}, seed=seed)


@functools.cache
def program(data_dir, devices, threads):
    settings = training.ImageTraining(
        BATCH, STEPS, data.Augmentation(mixup=0.3), label_smoothing=0.1
    )
    mesh = training.make_mesh(devices=jax.devices()[:devices])
    encoded = data.open_encoded(data_dir)
    dataset = training.Streamed(encoded, data.RandomCrop(size=SIZE), 16, threads)
    return training.streamed_program(linear.apply, dataset, adam, mesh, settings, begin())


def run(data_dir, folder=None, log=None, *, devices=1, threads=3):
    """A run; saved after every call, of a step each, where there is a folder."""
    options = {}
    if folder is not None:
        options = {"checkpoints": Checkpoints(folder), "save_seconds": 0.0, "call_seconds": 0.0}
    log = log or Log()
    (found,) = training.train(
        program(data_dir, devices, threads), [begin()], hooks=log.hooks, keep_states=True, **options
    )
    return found


def digest(state):
    leaves = jax.tree.leaves((state.step, state.params, state.opt_state))
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()


def main(data_dir, folder, port, process):
    hosts.initialize(f"127.0.0.1:{port}", 2, int(process))
    found = run(data_dir, Path(folder), devices=jax.device_count())
    losses = found.column("loss", found.first_step).tolist()
    said = {"first_step": found.first_step, "digest": digest(found.state), "loss": losses}
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
