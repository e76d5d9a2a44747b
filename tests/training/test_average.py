"""The moving average of the parameters: its closed form, in a step, and in checkpoints."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nf_resnets import training
from nf_resnets.training.checkpoint import CheckpointError, Checkpoints

DECAY = 0.8
HYPER = {"learning_rate": 0.5, "weight_decay": 0.0}
BATCH = {
    "image": np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32),
    "label": np.arange(8, dtype=np.int32) % 2,
}


def network(params, batch_stats, images, keys):
    return images @ params["head"]["kernel"], batch_stats


def optimizer(hyper):
    return optax.sgd(hyper["learning_rate"])


def state_of(decay=DECAY):
    params = {"head": {"kernel": jnp.ones((3, 2))}}
    return training.create_state(params, optimizer, HYPER, average_decay=decay)


@functools.cache
def step():
    return jax.jit(functools.partial(training.replica_step, apply_fn=network, optimizer=optimizer))


def test_closed_form_over_the_steps_of_a_run():
    state, path = state_of(), []
    for _ in range(5):
        state, _ = step()(state, BATCH)
        path.append(np.float64(state.params["head"]["kernel"]))
    expected = DECAY**5 * np.ones((3, 2)) + (1 - DECAY) * sum(
        DECAY ** (4 - t) * value for t, value in enumerate(path)
    )
    # Five updates in float32 of numbers of order 1.
    found = state.average.params["head"]["kernel"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert np.abs(found - path[-1]).max() > 0.01
    assert state.tested_params is state.average.params


def test_parameters_and_metrics_are_those_of_a_run_without():
    state, metrics = step()(state_of(), BATCH)
    plain, others = step()(state_of(None), BATCH)
    assert plain.average is None and plain.tested_params is plain.params
    np.testing.assert_array_equal(state.params["head"]["kernel"], plain.params["head"]["kernel"])
    assert {name: float(value) for name, value in metrics.items()} == {
        name: float(value) for name, value in others.items()
    }


def test_parameters_of_few_bits_are_averaged_in_float32():
    average = training.start_average({"w": jnp.ones(2, jnp.bfloat16)}, 0.999)
    for _ in range(3):
        average = training.moved_average(average, {"w": jnp.zeros(2, jnp.bfloat16)})
    assert average.params["w"].dtype == jnp.float32
    np.testing.assert_allclose(average.params["w"], 0.999**3, rtol=1e-6)


def test_it_survives_a_checkpoint_and_an_older_one_is_refused(tmp_path):
    state, _ = step()(state_of(), BATCH)
    with_average = Checkpoints(tmp_path / "with", {})
    with_average.save(1, state)
    _, restored = with_average.restore(state_of())
    for got, want in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(got, want)
    after, _ = step()(jax.tree.map(jnp.asarray, restored), BATCH)
    expected, _ = step()(state, BATCH)
    np.testing.assert_array_equal(
        after.average.params["head"]["kernel"], expected.average.params["head"]["kernel"]
    )

    without = Checkpoints(tmp_path / "without", {})
    without.save(1, step()(state_of(None), BATCH)[0])
    assert without.restore(state_of(None))[0] == 1
    with pytest.raises(CheckpointError, match="leaves; expected .* average/params/head/kernel"):
        without.restore(state_of())


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_out_of_range_is_refused(decay):
    with pytest.raises(
        ValueError, match=r"average_decay=.* found; expected 0 <= average_decay < 1"
    ):
        state_of(decay)
