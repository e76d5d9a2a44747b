"""One of the two processes of a run on two hosts: started by test_devices.py, not by hand.

Usage: python -m tests.training.two_processes PORT PROCESS SCHEME FOLDER
"""

import json
import sys

import jax
import numpy as np

# Imported before jax.distributed.initialize: importing the library must not touch a device.
from nf_resnets import training
from nf_resnets.data.batch import Augmentation
from tests.training import small


def on_one_run(scheme, mesh):
    """Four steps of one run whose batch the two processes share."""
    model = small.wide_resnet(scheme)
    steps = training.make_train_steps(
        training.train_apply(model, shards=2),
        small.sgd,
        mesh,
        batch_size=16,
        augmentation=Augmentation(padding=1, flip=True),
    )
    state = small.state_of(small.he_variables(model))
    return small.train(steps, [state], small.split(), mesh, num_steps=4)


def on_two_runs():
    """Two runs, one in each process, gathered on both."""
    mesh = training.make_mesh(sweep=2)
    runs = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}
    spread = training.shard_runs(runs, mesh)
    assert not spread["w"].is_fully_addressable
    # Both from arrays of which this process holds a half.
    again, whole = training.shard_runs(spread, mesh), training.replicate(spread, mesh)
    (shard,) = again["w"].addressable_shards
    assert np.array_equal(shard.data, runs["w"][jax.process_index()][None]), shard.data
    assert np.array_equal(whole["w"], runs["w"]), whole


def main(port, process, scheme, folder):
    jax.distributed.initialize(f"127.0.0.1:{port}", 2, process)
    assert jax.device_count() == 2 and jax.local_device_count() == 1, jax.devices()
    mesh = training.make_mesh()
    states, metrics = on_one_run(scheme, mesh)
    on_two_runs()
    np.savez(f"{folder}/{process}.npz", *jax.tree.leaves((states.params, states.batch_stats)))
    print(json.dumps({name: curve[:, 0].tolist() for name, curve in metrics.items()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
