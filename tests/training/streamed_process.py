"""A run on streamed photographs, killed or not, alone or with another: not started by hand.

Usage: python -m tests.training.streamed_process DATA_DIR FOLDER KILL_AT [PORT PROCESS]
"""

import functools
import hashlib
import json
import os
import signal
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from nf_resnets.training.streamed_loop import train_streamed

from nf_resnets import optim, training
from nf_resnets.data import imagenet, stream
from nf_resnets.data.crop import RandomCrop
from nf_resnets.training import hosts
from nf_resnets.training.checkpoint import Checkpoints
from nf_resnets.training.streamed import make_streamed_step

SIZE, BATCH, STEPS, CLASSES = 12, 16, 14, 8  # nine steps are an epoch
CROP = RandomCrop(size=SIZE)


def linear(params, batch_stats, images, keys=None):
    """Softmax regression on the pixels; dropout of single logits, to see that keys come along."""
    logits = images.reshape(images.shape[0], -1) @ params["head"]["kernel"]
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, 0.9, (CLASSES,)))(keys)
    return logits * kept, batch_stats


def adam(hyper):
    return optax.adam(optim.step_decay(hyper["learning_rate"], (10,), 0.5))


def begin(seed=3):
    rng = np.random.default_rng(0)
    kernel = 0.01 * rng.standard_normal((SIZE * SIZE * 3, CLASSES))
    params = {"head": {"kernel": jnp.asarray(kernel, jnp.float32)}}
    return training.create_state(params, adam, {"learning_rate": 0.01}, seed=seed)


@functools.cache
def compiled(devices):
    mesh = training.make_mesh(devices=jax.devices()[:devices])
    step = make_streamed_step(
        linear,
        adam,
        mesh,
        batch_size=BATCH,
        mean=imagenet.IMAGENET_MEAN,
        std=imagenet.IMAGENET_STD,
        mixup=0.3,
        label_smoothing=0.1,
    )
    return mesh, step


def run(data_dir, folder=None, *, devices=1, reading=stream.Reading(threads=3), **options):  # noqa: B008
    mesh, step = compiled(devices)
    split = imagenet.open_encoded(data_dir).split("train")

    def batches(first_step, rows):
        return stream.training_stream(
            split,
            seed=3,
            batch_size=BATCH,
            num_steps=STEPS,
            first_step=first_step,
            rows=rows,
            crop=CROP,
            reading=reading,
        )

    checkpoints = None if folder is None else Checkpoints(folder, {"run": "photographs"})
    options = {"save_every": 4, **options}
    try:
        return train_streamed(
            step,
            begin(),
            batches,
            mesh,
            num_steps=STEPS,
            batch_size=BATCH,
            checkpoints=checkpoints,
            **options,
        )
    finally:
        if checkpoints is not None:
            checkpoints.close()


def digest(state):
    leaves = jax.tree.leaves((state.step, state.params, state.opt_state))
    return hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest()


def main(data_dir, folder, kill_at, port=None, process="0"):
    if port is not None:
        hosts.initialize(f"127.0.0.1:{port}", 2, int(process))

    def on_step(made, metrics):
        if made == int(kill_at):
            os.kill(os.getpid(), signal.SIGKILL)

    made = run(data_dir, folder or None, devices=jax.device_count(), on_step=on_step)
    kernel = np.asarray(made.state.params["head"]["kernel"])
    print(
        json.dumps(
            {
                "status": made.status,
                "first_step": made.first_step,
                "digest": digest(made.state),
                "loss": [metrics["loss"] for metrics in made.curve],
                "norm": float(np.linalg.norm(kernel)),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
