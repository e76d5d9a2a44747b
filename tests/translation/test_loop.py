"""The loop: a run that goes on is the run that was not cut; a run that diverges stops."""

import jax
import numpy as np
import pytest

from nf_resnets import training
from nf_resnets.training.checkpoint import Checkpoints
from nf_resnets.translation import (
    adam,
    batch_shapes,
    epoch_batches,
    make_train_step,
    mean_likelihood,
    train,
)
from tests.translation.small import corpus, random_params, transformer

MODEL = transformer()
PAIRS = corpus(count=24, longest=12, max_length=12)
MESH = training.make_mesh(devices=jax.devices()[:1])


def optimizer(hyper):
    return adam(hyper["learning_rate"])


STEP = make_train_step(MODEL, optimizer, MESH)


def state_of(rate):
    params = random_params(MODEL, 2)
    return training.create_state(params, optimizer, {"learning_rate": rate}, seed=5)


def run(state, steps, **options):
    options = {"num_steps": steps, "max_tokens": 60} | options
    return train(STEP, state, PAIRS, MESH, **options)


def test_a_run_in_two_parts_is_the_run_in_one():
    shapes = batch_shapes(PAIRS, max_tokens=60)
    per_epoch = len(epoch_batches(PAIRS, 5, 0, shapes))
    steps = 2 * per_epoch + 1
    counted = []
    whole = run(state_of(0.01), steps, on_step=lambda made, metrics: counted.append(made))
    first = run(state_of(0.01), per_epoch + 2)
    second = run(first.state, steps)
    assert whole.status == second.status == "finished"
    assert counted == list(range(1, steps + 1)) and first.curve + second.curve == whole.curve
    same = jax.tree.map(lambda a, b: np.array_equal(a, b), whole.state, second.state)
    assert all(jax.tree.leaves(same))
    # Every epoch has all tokens.
    tokens = [metrics["tokens"] for metrics in whole.curve]
    everything = sum(map(len, PAIRS.target))
    assert sum(tokens[:per_epoch]) == sum(tokens[per_epoch : 2 * per_epoch]) == everything


def test_a_run_that_is_cut_goes_on_from_its_checkpoint(tmp_path):
    def cut(made, metrics):
        if made == 5:
            raise KeyboardInterrupt

    whole = run(state_of(0.01), 7)
    with pytest.raises(KeyboardInterrupt):
        run(state_of(0.01), 7, checkpoints=Checkpoints(tmp_path, {}), save_every=2, on_step=cut)
    resumed = run(state_of(0.01), 7, checkpoints=Checkpoints(tmp_path, {}))
    assert resumed.first_step == 4 and resumed.curve == whole.curve[4:]
    jax.tree.map(np.testing.assert_array_equal, resumed.state, whole.state)


def test_it_learns_by_heart():
    before = mean_likelihood(MODEL, random_params(MODEL, 2), PAIRS, max_tokens=100)
    state = run(state_of(0.01), 60).state
    assert mean_likelihood(MODEL, state.params, PAIRS, max_tokens=100) < before - 1


def test_a_diverged_run_stops_at_its_step():
    found = run(state_of(float("inf")), 20)
    # The first step's loss is still that of the state it began with; its update is not finite.
    assert found.status == "diverged" and len(found.curve) == 1
    assert np.isfinite(found.curve[-1]["loss"])
    assert not np.isfinite(found.curve[-1]["update_norm"])


def test_a_state_that_is_further_on_is_refused():
    state = state_of(1e-3).replace(step=np.int32(3))
    with pytest.raises(ValueError, match="^num_steps=2 found; expected at least the 3 made"):
        run(state, 2)
