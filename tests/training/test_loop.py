"""The loop over a run's steps: resumed it ends where it would have; divergence ends it unsaved."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import data, schemes, training
from nf_resnets.training import loop, progress
from nf_resnets.training.checkpoint import CheckpointError, Checkpoints
from nf_resnets.training.program import build
from tests.training import small

COUNT, BATCH, STEPS = 48, 8, 14  # six steps are an epoch


def linear(params, batch_stats, images, keys):
    """Softmax regression; dropout of single logits, to see that the keys come along."""
    logits = images.reshape(images.shape[0], -1) @ params["head"]["kernel"]
    if keys is None:
        return logits, batch_stats
    kept = jax.vmap(lambda key: jax.random.bernoulli(key, 0.9, (10,)))(keys)
    return logits * kept, batch_stats


@functools.cache
def dataset():
    parts = (small.split(count, seed=count) for count in (COUNT, 20))
    splits = [data.Split(part.images, part.labels) for part in parts]
    return data.from_splits("noise", *splits, class_names=tuple("abcdefghij"))


def begin(step=0, **hyper):
    kernel = 0.1 * np.random.default_rng(0).standard_normal((64, 10))
    params = {"params": {"head": {"kernel": jnp.asarray(kernel, jnp.float32)}}}
    state = small.state_of(params, learning_rate=0.01)
    hyper = {name: jnp.float32(value) for name, value in hyper.items()}
    return state.replace(step=jnp.int32(step), hyper={**state.hyper, **hyper})


@functools.cache
def program(runs=1, steps=STEPS):
    settings = training.ImageTraining(batch_size=BATCH, num_steps=steps)
    return training.image_program(
        linear, dataset(), small.sgd, small.mesh_of(), settings, begin(), runs_per_device=runs
    )


def train(start=None, **options):
    return training.train(program(), start or begin(), **options)


@pytest.fixture(scope="module")
def whole():
    """The run that nothing interrupted, in calls of many steps."""
    return train()


@pytest.fixture
def one_step_a_call(monkeypatch):
    monkeypatch.setattr(loop, "CALL_SECONDS", 0.0)


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one.state, other.state)


class Cut(Exception):
    """What a killed process does not live to raise."""


def cut_at(step):
    def on_step(made, metrics):
        if made == step:
            raise Cut

    return on_step


def test_a_network_of_ones_own_trains_and_is_tested(whole):
    assert whole.status == "finished" and whole.first_step == 0 and len(whole.curve) == STEPS
    split = data.DeviceData.of(dataset(), dataset().train)
    options = {"num_steps": STEPS, "batch_size": BATCH}
    state, curve = small.reference(linear, begin(), split, **options)
    small.assert_close(whole.state.params, training.unstack(state.params, 0), 1e-5, 1e-6)
    np.testing.assert_allclose([row["loss"] for row in whole.curve], curve["loss"][:, 0], rtol=1e-5)
    ours = program()
    found = ours.test(ours.put(ours.empty(), 0, whole.state))
    images = data.normalize(dataset().test.images, dataset().mean, dataset().std)
    logits, _ = linear(whole.state.params, {}, images, None)
    right = (np.asarray(logits).argmax(1) == dataset().test.labels).mean()
    assert found["accuracy"].tolist() == [pytest.approx(right, abs=1e-6)]


def test_a_run_that_is_cut_resumes_from_its_newest_checkpoint(whole, tmp_path, one_step_a_call):
    with pytest.raises(Cut):
        train(checkpoints=Checkpoints(tmp_path, {}), save_every=4, on_step=cut_at(11))
    resumed = train(checkpoints=Checkpoints(tmp_path, {}), save_every=4)
    assert resumed.first_step == 8 and resumed.curve == whole.curve[8:]
    np.testing.assert_array_equal(resumed.progress.curve, whole.progress.curve)
    assert_same(resumed, whole)
    # It is finished: nothing is made again.
    again = train(checkpoints=Checkpoints(tmp_path, {}))
    assert (again.status, again.first_step, again.curve) == ("finished", STEPS, ())
    assert_same(again, whole)


def test_a_run_that_is_told_to_stop_saves_first(whole, tmp_path, one_step_a_call):
    class Stop:
        requested = False

    def tell(made, metrics):
        Stop.requested = made == 5

    stopped = train(checkpoints=Checkpoints(tmp_path, {}), stop=Stop, on_step=tell)
    assert (stopped.status, len(stopped.curve)) == ("stopped", 5)
    assert Checkpoints(tmp_path, {}).steps() == [5]
    resumed = train(checkpoints=Checkpoints(tmp_path, {}))
    assert resumed.first_step == 5
    assert_same(resumed, whole)
    # Its state is enough to continue without checkpoints.
    assert_same(train(stopped.state), whole)


def test_checkpoints_by_time_and_those_that_fail(whole, tmp_path, one_step_a_call):
    class Full(Checkpoints):
        def save(self, step, tree):
            raise CheckpointError(f"the disk is full at step {step}")

    failed = []
    found = train(checkpoints=Full(tmp_path, {}), save_every=1e-9, save_failed=failed.append)
    assert_same(found, whole)
    assert len(failed) == STEPS
    for every, step in ((4, 4), (np.int64(4), 4), (np.float32(1e-9), 1)):
        with pytest.raises(CheckpointError, match=f"full at step {step}"):
            train(checkpoints=Full(tmp_path, {}), save_every=every)


def test_a_state_that_is_not_finite_is_never_saved(tmp_path):
    found = train(
        begin(learning_rate=math.inf), checkpoints=Checkpoints(tmp_path, {}), save_every=1
    )
    assert found.status == "diverged" and len(found.curve) == 1
    assert not all(math.isfinite(value) for value in found.curve[-1].values())
    assert Checkpoints(tmp_path, {}).steps() == []


def test_a_label_that_is_no_class_is_an_error_and_no_divergence():
    train_split, test_split = training.device_splits(dataset(), small.mesh_of())
    bad = dataclasses.replace(train_split, labels=train_split.labels.at[7].set(10))
    settings = training.ImageTraining(batch_size=BATCH, num_steps=STEPS)
    ours = training.image_program(
        linear, dataset(), small.sgd, small.mesh_of(), settings, begin(), splits=(bad, test_split)
    )
    with pytest.raises(ValueError, match=r"^a label in the batch of step \d is no class"):
        training.train(ours, begin())


def test_the_test_is_compiled_with_the_program_and_first_computed_when_called(monkeypatch):
    traces, computed = [], []

    def counted(params, batch_stats, images, keys):
        traces.append(images.shape)
        jax.debug.callback(lambda: computed.append(keys is None))
        return linear(params, batch_stats, images, keys)

    settings = training.ImageTraining(batch_size=BATCH, num_steps=STEPS)
    ours = training.image_program(counted, dataset(), small.sgd, small.mesh_of(), settings, begin())
    before = len(traces)
    jax.effects_barrier()
    assert before and not computed
    ours.test(ours.put(ours.empty(), 0, begin()))
    jax.effects_barrier()
    assert len(traces) == before and all(computed) and computed


def test_what_is_out_of_range_is_refused():
    with pytest.raises(ValueError, match="^num_steps=0 found; expected at least 1"):
        program(steps=0)
    with pytest.raises(ValueError, match="^num_steps=2.5 found; expected .* a whole number"):
        program(steps=2.5)
    for wrong in (-1, math.nan):
        with pytest.raises(ValueError, match=f"^save_every={wrong} found; expected at least 0"):
            train(save_every=wrong)
    with pytest.raises(ValueError, match="^num_steps=14 found; expected at least the 15 made"):
        train(begin(step=15))
    with pytest.raises(ValueError, match="^a program of 2 slots found; expected one of 1"):
        training.train(program(runs=2), begin())


@pytest.mark.parametrize(
    "name",
    ["batch_size", "micro_batches", "bn_estimate_batches", "eval_batch_size",
     "calibration_examples"],
)  # fmt: skip
def test_a_number_of_examples_that_is_not_whole_is_refused(name):
    for wrong in (2.5, 2.0, "2", True):
        with pytest.raises(TypeError, match=f"^{name}={wrong!r} found; expected a whole number"):
            training.ImageTraining(**{"batch_size": BATCH, "num_steps": STEPS, name: wrong})
    settings = {"batch_size": BATCH, "num_steps": STEPS, name: np.int64(2)}
    assert training.ImageTraining(**settings).metrics
    with pytest.raises(TypeError, match="^runs_per_device=1.5 found; expected a whole number"):
        program(runs=1.5)


def kernel_of(value, **hyper):
    return training.create_state({"head": {"kernel": value}}, small.sgd, dict(small.HYPER, **hyper))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            kernel_of(jnp.ones((1, 10))),
            r"params/head/kernel' of the state is \[1, 10\] float32; ex",
        ),
        (
            kernel_of(jnp.ones((64, 10), jnp.bfloat16)),
            r"\S+ of the state is \[64, 10\] bfloat16; ex",
        ),
        (
            kernel_of(jnp.ones((64, 10)), more=1.0),
            r"hyper/more' of the state is \[\] float32; .* non",
        ),
    ],
    ids=["shape", "dtype", "leaf"],
)
def test_a_state_of_another_program_is_refused_and_not_broadcast(state, message):
    with pytest.raises(ValueError, match=f"^leaf '{message}"):
        train(state)
    with pytest.raises(ValueError, match=f"^leaf '{message}"):
        program().put(program().empty(), 0, state)


def test_a_start_that_is_none_is_refused():
    for wrong in (begin().params, "fixup"):
        with pytest.raises(TypeError, match=r"^start is a \w+; expected a training.Start, or a st"):
            train(wrong)


def test_an_average_that_the_state_does_not_have_is_refused():
    settings = training.ImageTraining(BATCH, STEPS, average_decay=0.5)
    with pytest.raises(ValueError, match=r"^average_decay=0.5 found with a state that has no aver"):
        training.image_program(linear, dataset(), small.sgd, small.mesh_of(), settings, begin())


def test_a_scheme_of_other_parts_than_the_networks_is_refused():
    model = small.wide_resnet("skipinit")
    initial = training.make_initial(model, (jnp.zeros((1, 8, 8, 1)),), small.sgd)
    with pytest.raises(ValueError, match=r"^the scheme 'plain' has alpha=False, and the network"):
        initial(schemes.get("plain"), 0, dict(small.HYPER), None, None, None)


def test_what_is_no_augmentation_is_refused():
    with pytest.raises(TypeError, match=r"^augmentation is a dict; expected a data.Augmentation"):
        training.ImageTraining(BATCH, STEPS, augmentation={"flip": True})
    with pytest.raises(ValueError, match=r"^bn_estimate_batches=-1 found; expected at least 0"):
        training.ImageTraining(BATCH, STEPS, bn_estimate_batches=-1)
    with pytest.raises(ValueError, match=r"^calibration_examples=-1 found; expected at least 1"):
        training.ImageTraining(BATCH, STEPS, calibration_examples=-1)


def test_runs_of_a_model_begin_with_their_scheme_and_seed():
    model = small.wide_resnet("fixup")
    start = training.Start(schemes.get("fixup"), 5, dict(small.HYPER), branch_scale=0.5)
    other = training.Start(schemes.get("fixup"), 5, dict(small.HYPER))
    ours = build(
        small.mesh_of(), training.make_initial(model, (jnp.zeros((1, 8, 8, 1)),), small.sgd), start,
        slots=2, batch=lambda: None, compile_steps=lambda states: None,
        make_test=lambda states: None, num_steps=1, model=model, steps_per_epoch=1, metrics=(),
    )  # fmt: skip
    states = ours.begin(ours.begin(ours.empty(), 0, start), 1, other)
    half, whole = (ours.take(states, slot).params for slot in (0, 1))
    kernel = whole["stage_1"]["first"]["conv_1"]["kernel"]
    np.testing.assert_array_equal(half["stage_1"]["first"]["conv_1"]["kernel"], kernel / 2)
    np.testing.assert_array_equal(half["stem"]["kernel"], whole["stem"]["kernel"])
    assert kernel.std() > 0 and ours.slots == 2 and ours.take(states, 0).seed == 5
    put = ours.put(states, 0, ours.take(states, 1))
    jax.tree.map(np.testing.assert_array_equal, ours.take(put, 0), ours.take(put, 1))


def test_the_curve_of_a_run_that_diverged_has_the_points_of_a_whole_one():
    def points(step):
        curve = np.full((60, 1), 0.5, np.float32)
        return progress.Progress(("loss",), 60, step, curve).thinned(7)["step"]

    assert points(60) == [9, 18, 27, 36, 45, 54, 60]
    assert points(40) == [9, 18, 27, 36, 40] and points(3) == [3]
