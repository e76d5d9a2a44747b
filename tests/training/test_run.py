"""The loop over a run's steps: cut and resumed it ends where it would have; divergence ends it."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import training
from nf_resnets.training.checkpoint import Checkpoints
from tests.training import small

COUNT, BATCH, STEPS = 48, 8, 14  # six steps are an epoch


def linear(params, batch_stats, images, keys=None):
    """Softmax regression; dropout of single logits, to see that the keys come along."""
    logits = images.reshape(images.shape[0], -1) @ params["head"]["kernel"]
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, 0.9, (10,)))(keys)
    return logits * kept, batch_stats


@functools.cache
def compiled():
    mesh = training.make_mesh(devices=jax.devices()[:1])
    step = training.make_train_step(linear, small.sgd, mesh, batch_size=BATCH)
    return mesh, step, training.replicate(small.split(COUNT), mesh)


def begin():
    kernel = 0.1 * np.random.default_rng(0).standard_normal((64, 10))
    params = {"params": {"head": {"kernel": jnp.asarray(kernel, jnp.float32)}}}
    return small.state_of(params, learning_rate=0.01)


def train(state=None, steps=STEPS, **options):
    mesh, step, split = compiled()
    return training.train(
        step, state or begin(), split, mesh, num_steps=steps, batch_size=BATCH, **options
    )


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one.state, other.state)


class Cut(Exception):
    """What a killed process does not live to raise."""


def cut_at(step):
    def on_step(made, metrics):
        if made == step:
            raise Cut

    return on_step


def test_a_run_that_is_cut_goes_on_from_its_newest_checkpoint(tmp_path):
    whole = train()
    assert whole.status == "finished" and whole.first_step == 0 and len(whole.curve) == STEPS
    with pytest.raises(Cut):
        train(checkpoints=Checkpoints(tmp_path, {}), save_every=4, on_step=cut_at(11))
    resumed = train(checkpoints=Checkpoints(tmp_path, {}), save_every=4)
    assert resumed.first_step == 8 and resumed.curve == whole.curve[8:]
    assert_same(resumed, whole)
    # It is finished now: nothing is made again.
    again = train(checkpoints=Checkpoints(tmp_path, {}))
    assert (again.status, again.first_step, again.curve) == ("finished", STEPS, ())
    assert_same(again, whole)


def test_a_run_that_is_told_to_stop_saves_first(tmp_path):
    class Told:
        requested = False

    def tell(made, metrics):
        Told.requested = made == 5

    stopped = train(checkpoints=Checkpoints(tmp_path, {}), stop=Told, on_step=tell)
    # The signal came in step 5's report; on a CPU it is seen after the next step.
    assert (stopped.status, len(stopped.curve)) == ("stopped", 6)
    assert Checkpoints(tmp_path, {}).steps() == [6]
    resumed = train(checkpoints=Checkpoints(tmp_path, {}))
    assert resumed.first_step == 6
    assert_same(resumed, train())


def test_a_state_that_is_not_finite_is_never_saved(tmp_path):
    begun = begin()
    begun = begun.replace(hyper={**begun.hyper, "learning_rate": jnp.float32(np.inf)})
    made = train(begun, checkpoints=Checkpoints(tmp_path, {}), save_every=1)
    assert made.status == "diverged" and len(made.curve) == 1
    assert not all(math.isfinite(value) for value in made.curve[-1].values())
    assert Checkpoints(tmp_path, {}).steps() == []


def test_what_is_out_of_range_is_refused():
    with pytest.raises(ValueError, match="^num_steps=0 found; expected at least 1"):
        train(steps=0)
    with pytest.raises(ValueError, match="^save_every=-1 found; expected at least 0"):
        train(save_every=-1)
    ahead = begin().replace(step=np.int32(3))
    with pytest.raises(ValueError, match="^num_steps=2 found; expected at least the 3 made"):
        train(ahead, steps=2)
