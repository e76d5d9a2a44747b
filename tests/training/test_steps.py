"""Many steps in one call: the numbers of single steps, each run as far as it is told."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

from nf_resnets import training
from nf_resnets.training import mesh as meshes
from tests.training import small

BATCH = 16
COUNT = 48  # three steps an epoch


@functools.cache
def setting(scheme):
    model = small.wide_resnet(scheme)
    return model, small.he_variables(model)


def states_of(scheme, seeds=(3,), **hyper):
    _, variables = setting(scheme)
    return [small.state_of(variables, seed=seed, **hyper) for seed in seeds]


def make(scheme, mesh, *, micro_batches=1, **options):
    model, _ = setting(scheme)
    shards = mesh.shape[meshes.DATA] * micro_batches
    return training.make_train_steps(
        training.train_apply(model, shards=shards),
        small.sgd,
        mesh,
        batch_size=BATCH,
        micro_batches=micro_batches,
        longest=4,
        **options,
    )


def call(steps, states, counts, mesh, split):
    states = training.shard_runs(training.stack(states), mesh)
    data = training.replicate(split, mesh)
    counts = training.shard_runs(np.asarray(counts, np.int32), mesh)
    return jax.block_until_ready(steps(states, data, counts))


def one_mesh(sweep=1, data=1):
    return training.make_mesh(sweep, data, devices=jax.devices()[: sweep * data])


@functools.cache
def single_steps(scheme, num_steps, seed=3, rate=0.1):
    """The reference: the same steps, each a call of its own, with orders made outside."""
    model, _ = setting(scheme)
    mesh = one_mesh()
    step = training.make_train_step(training.train_apply(model), small.sgd, mesh, batch_size=BATCH)
    states = states_of(scheme, (seed,), learning_rate=rate)
    states, curves = small.train(
        step, states, small.split(COUNT), mesh, num_steps=num_steps, batch_size=BATCH
    )
    return small.host(states), curves


def assert_state(found, run, expected):
    # Another program of the same operations: XLA may fuse them differently, so float32 sums differ
    # in their last bits; a wrong batch or rate differs by 1e-2 and more.
    got = small.host(jax.tree.map(lambda leaf: leaf[run], found))
    small.assert_close(got, jax.tree.map(lambda leaf: leaf[0], expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scheme", ["fixup", pytest.param("batchnorm", marks=pytest.mark.slow)])
def test_the_numbers_are_those_of_single_steps(scheme):
    mesh, split = one_mesh(), small.split(COUNT)
    steps = make(scheme, mesh)
    made = call(steps, states_of(scheme), [2], mesh, split)
    assert made.counts.tolist() == [2] and not made.diverged[0]
    made = steps(made.states, training.replicate(split, mesh), np.array([4], np.int32))
    # The epoch has three steps: it stops at its end, and the next call begins the next epoch.
    assert made.counts.tolist() == [1]
    made = steps(made.states, training.replicate(split, mesh), np.array([2], np.int32))
    states, curves = single_steps(scheme, 5)
    assert_state(made.states, 0, states)
    assert int(made.states.step[0]) == 5
    loss = np.asarray(made.curve["loss"])
    np.testing.assert_allclose(loss[0, :2], curves["loss"][3:, 0], rtol=1e-4)
    assert np.isnan(loss[0, 2:]).all()


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("sweep", "data", "vectorize"), [(2, 2, "vmap"), (1, 1, "loop"), (1, 1, "vmap"), (4, 1, "auto")]
)
def test_each_run_goes_as_far_as_it_is_told(sweep, data, vectorize):
    mesh, split = one_mesh(sweep, data), small.split(COUNT)
    rates = [0.1, 0.2, 0.1, 0.05]
    states = [
        states_of("fixup", (seed,), learning_rate=rate)[0]
        for seed, rate in zip((3, 3, 4, 3), rates, strict=True)
    ]
    made = call(make("fixup", mesh, vectorize=vectorize), states, [2, 0, 1, 3], mesh, split)
    assert made.counts.tolist() == [2, 0, 1, 3]
    assert made.states.step.tolist() == [2, 0, 1, 3]
    for run, (seed, count) in enumerate([(3, 2), (3, 0), (4, 1), (3, 3)]):
        if count:
            assert_state(made.states, run, single_steps("fixup", count, seed, rates[run])[0])


def test_a_diverged_run_stops_at_its_step_and_its_neighbours_do_not_notice():
    mesh, split = one_mesh(2), small.split(COUNT)
    rates = (0.1, 1e15)
    states = [states_of("fixup", learning_rate=rate)[0] for rate in rates]
    made = call(make("fixup", mesh), states, [3, 3], mesh, split)
    assert made.diverged.tolist() == [False, True]
    # The first update is finite, but the second step sees weights of 1e14.
    assert made.counts.tolist() == [3, 2]
    last = [float(np.asarray(values)[1, 1]) for values in made.curve.values()]
    assert not np.isfinite(last).all()
    assert_state(made.states, 0, single_steps("fixup", 3)[0])


@pytest.mark.parametrize(
    ("scheme", "data"),
    [
        pytest.param("batchnorm", 2, marks=pytest.mark.slow),
        pytest.param("batchnorm", 1, marks=pytest.mark.slow),
        ("fixup", 1),
    ],
)
def test_a_batch_in_parts_has_the_gradients_of_the_whole(scheme, data):
    mesh, split = one_mesh(1, data), small.split(COUNT)
    made = call(make(scheme, mesh, micro_batches=2), states_of(scheme), [3], mesh, split)
    states, curves = single_steps(scheme, 3)
    assert_state(made.states, 0, states)
    loss = np.asarray(made.curve["loss"])[0, :3]
    np.testing.assert_allclose(loss, curves["loss"][:, 0], rtol=1e-4)


def test_what_cannot_be_is_refused_in_one_sentence():
    mesh, split = one_mesh(), small.split(COUNT)
    with pytest.raises(ValueError, match=r"batch_size=16 does not divide .* micro_batches=3"):
        make("fixup", mesh, micro_batches=3)
    with pytest.raises(ValueError, match=r"vectorize='pmap' found"):
        make("fixup", mesh, vectorize="pmap")
    model, _ = setting("fixup")
    with pytest.raises(ValueError, match=r"longest=0 found; expected at least 1"):
        training.make_train_steps(
            training.train_apply(model), small.sgd, mesh, batch_size=BATCH, longest=0
        )
    steps = make("fixup", mesh)
    states = training.stack(states_of("fixup"))
    with pytest.raises(ValueError, match=r"counts of shape \(2,\) found; expected \(1,\)"):
        steps(states, training.replicate(split, mesh), np.array([1, 1], np.int32))
