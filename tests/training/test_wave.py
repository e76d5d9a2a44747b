"""A wave of runs: together as alone, resumed as uninterrupted, and what ends one of them."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from nf_resnets import data, training
from nf_resnets.training import Stopped
from nf_resnets.training.checkpoint import Checkpoints
from nf_resnets.training.run import thinned
from tests.training import linear, small
from tests.training.linear import STEPS, program, state
from tests.training.small import Log

STARTS = tuple({"seed": seed, "peak_lr": rate} for seed, rate in ((0, 0.1), (1, 0.01), (2, 0.3)))


def plans(starts=STARTS, steps=STEPS, **fields):
    found = [linear.plan(steps, **start) for start in starts]
    return [dataclasses.replace(plan, **fields) for plan in found]


def train(starts=STARTS, folder=None, log=None, made=None, **options):
    """The runs and the log; saved after every call, of a step each, where there is a folder."""
    log = log or Log()
    checkpoints = None if folder is None else Checkpoints(folder)
    if folder is not None:
        options = {"save_seconds": 0.0, "call_seconds": 0.0, **options}
    runs = training.train(
        made or program(len(starts)), [state(**start) for start in starts],
        options.pop("plans", None) or plans(starts), checkpoints=checkpoints, hooks=log.hooks,
        keep_states=True, **options,
    )  # fmt: skip
    return runs, log


def assert_twins(found, expected, rel=0.0):
    """Every number of every row, curve and state is equal; to the last bit where ``rel`` is 0."""
    (runs, log), (others, other_log) = found, expected
    for run, other in zip(runs, others, strict=True):
        assert (run.status, run.step, run.diverged) == (other.status, other.step, other.diverged)
        np.testing.assert_allclose(run.curve, other.curve, rel, 0)
        jax.tree.map(lambda *x: np.testing.assert_allclose(*x, rel, 0), run.state, other.state)
    rows, other_rows = ({row["key"]: row for row in each.rows} for each in (log, other_log))
    assert len(rows) == len(runs)
    small.assert_rows_alike(rows, other_rows, rel)


@pytest.fixture(scope="module")
def whole():
    """What nothing interrupted, in calls of many steps."""
    return train()


def test_a_wave_of_three_is_three_waves_of_one(whole):
    alone = [train((start,)) for start in STARTS]
    log = Log()
    log.rows = [row for _, each in alone for row in each.rows]
    assert_twins(([run for (run,), _ in alone], log), whole, small.WIDTH)
    losses = [row["test_loss"] for row in log.rows]
    assert len(set(losses)) == 3 and all(map(math.isfinite, losses))


def test_a_network_of_ones_own_trains_and_is_tested(whole):
    (run, *_), log = whole
    assert (run.status, run.step, run.curve.shape) == ("finished", STEPS, (STEPS, 4))
    split = data.DeviceData.of(linear.dataset(), linear.dataset().train)
    augmentation = data.Augmentation(padding=1, flip=True)
    found, curve = small.reference(
        linear.apply, state(**STARTS[0]), split, num_steps=STEPS, batch_size=linear.BATCH,
        augmentation=augmentation, optimizer=linear.optimizer,
    )  # fmt: skip
    # Another program: what XLA fuses otherwise is rounded otherwise.
    small.assert_close(run.state.params, training.unstack(found.params, 0), 1e-5, 1e-6)
    np.testing.assert_allclose(run.column("loss"), curve["loss"][:, 0], rtol=1e-5)
    row = log.rows[0]
    test = linear.dataset().test
    images = data.normalize(test.images, linear.dataset().mean, linear.dataset().std)
    logits, _ = linear.apply(run.state.params, {}, images, None)
    right = (np.asarray(logits).argmax(1) == test.labels).mean()
    assert row["test_accuracy"] == pytest.approx(right, abs=1e-6)
    assert [(each["epoch"], each["step"]) for each in row["history"]] == [(1, 6), (2, 12), (3, 14)]
    ends = [6, 12, 14]
    for start, end, each in zip([0, *ends], ends, row["history"], strict=False):
        assert each["train_loss"] == pytest.approx(run.curve[start:end, 0].mean(), rel=1e-6)
    assert row["measures"]["first_loss"] == run.column("loss")[0] and row["steps_done"] == STEPS


# Within an epoch, at its end, and one step from the last.
@pytest.mark.parametrize("stops", [(5,), (6,), (1, 7, 13)], ids=str)
def test_resumed_at_any_step_it_ends_as_the_uninterrupted_twin(whole, tmp_path, stops):
    for step in stops:
        with pytest.raises(Stopped):
            train(folder=tmp_path, log=Log(stop_at=step))
        assert Checkpoints(tmp_path).steps()[-1] == step
    found = train(folder=tmp_path)
    assert [run.first_step for run in found[0]] == [stops[-1]] * 3
    assert [event[3] for event in found[1].of("on_run_begin")] == [stops[-1]] * 3
    assert_twins(found, whole)


def test_it_goes_on_from_a_state(whole):
    """As a notebook does, which keeps the state of a run that it stopped."""
    log, start = Log(stop_at=5), STARTS[:1]
    made = program(1)
    states = made.begin([state(**start[0])])
    states = made.steps(states, np.array([5])).states
    (run,) = training.train(made, [training.unstack(states, 0)], plans(start), keep_states=True)
    jax.tree.map(np.testing.assert_array_equal, run.state, whole[0][0].state)
    assert run.first_step == 5 and np.isnan(run.curve[:5]).all() and not log.rows
    assert run.history[0]["train_loss"] == run.curve[5, 0]  # of the epoch's last step, made here
    for step in (14, 15):
        with pytest.raises(ValueError, match=f"^num_steps=14 found; expected more than the {step}"):
            training.train(made, [state(step=step)])


def test_a_run_that_diverges_stops_at_its_step_and_the_others_go_on(whole, tmp_path):
    starts = (STARTS[0], {**STARTS[1], "bad_step": 7}, STARTS[2])
    for folder in (None, tmp_path):
        log = Log()
        if folder is not None:  # told to stop when it has diverged, and resumed
            with pytest.raises(Stopped):
                train(starts, folder, log=Log(stop_at=10))
        (one, bad, other), _ = train(starts, folder, log=log)
        assert (bad.status, bad.step) == ("diverged", 8)
        assert bad.diverged == "update_norm nan at step 8"
        assert np.isnan(bad.curve[7:, -1]).all() and np.isfinite(bad.curve[:7]).all()
        for run, twin in ((one, whole[0][0]), (other, whole[0][2])):
            np.testing.assert_array_equal(run.curve, twin.curve)
            assert run.status == "finished"
        (row,) = (row for row in log.rows if row["state"] == "diverged")
        assert row["message"] == bad.diverged and row["test_accuracy"] is None
        assert [each["epoch"] for each in row["history"]] == [1] and len(log.rows) == 3


def test_a_test_loss_that_is_not_finite_is_divergence():
    """The last update itself may have made the parameters diverge."""
    made = program(3)
    test = lambda states: {**made.test(states), "loss": np.array([1.0, np.nan, np.inf])}  # noqa: E731
    runs, log = train(made=dataclasses.replace(made, test=test))
    assert [run.status for run in runs] == ["finished", "diverged", "diverged"]
    assert [run.step for run in runs] == [STEPS, 6, 6]
    assert runs[1].diverged == "the test loss is nan at step 6"
    found = {row["state"]: row["test_loss"] for row in log.rows}
    assert found == {"finished": 1.0, "diverged": None}


def test_a_label_that_is_no_class_is_an_error_and_no_divergence():
    splits = training.device_splits(linear.dataset(), small.mesh_of())
    bad = [dataclasses.replace(each, labels=each.labels.at[7].set(10)) for each in splits]
    for given, where in (([bad[0], splits[1]], "batch of step 3"), ([splits[0], bad[1]], "test")):
        made = training.image_program(
            linear.apply, linear.dataset(), linear.optimizer, small.mesh_of(), linear.settings(),
            state(), splits=given,
        )  # fmt: skip
        with pytest.raises(ValueError, match=f"^a label in the {where}"):
            train(STARTS[:1], made=made)


def test_probe_and_finish_see_the_states(tmp_path):
    probed, finished = [], []

    def probe(program, plan, state, step):
        probed.append((plan.key, step))
        assert int(state.step) == step
        return {"norm": float(np.linalg.norm(state.params["head"]["kernel"]))}

    def finish(program, plan, state):
        finished.append(plan.key)
        return {"last": int(state.step)}

    def log(**more):
        return Log(probe=probe, finish=finish, **more)

    found = train(log=log())
    keys = [plan.key for plan in plans()]
    assert probed == [(key, step) for step in (0, 6, 12, 14) for key in keys]
    assert finished == keys
    for row in found[1].rows:
        assert [each["step"] for each in row["history"]] == [0, 6, 12, 14]
        assert len({each["measures"]["norm"] for each in row["history"]}) == 4
        assert row["measures"]["last"] == STEPS
    # Resumed, the epochs that are over are not probed again.
    probed.clear()
    with pytest.raises(Stopped):
        train(folder=tmp_path, log=log(stop_at=8))
    assert_twins(train(folder=tmp_path, log=log()), found)
    assert probed == [(key, step) for step in (0, 6, 12, 14) for key in keys]


def test_tests_and_rows_of_the_history_are_made_when_they_are_due():
    """Epochs of the data have 6 steps; the numbers are the same whatever is looked at."""
    for every, tested in ((2, [2, 4]), (0, [4])):
        fields = {"evaluate_every": every, "steps_per_epoch": 4}
        _, log = train(STARTS[:1], plans=plans(STARTS[:1], **fields))
        history = log.rows[0]["history"]
        assert [(row["epoch"], row["step"]) for row in history] == [
            (1, 4), (2, 8), (3, 12), (4, 14)
        ]  # fmt: skip
        assert [row["epoch"] for row in history if row["test_loss"] is not None] == tested
    curve, expected = (each.rows[0]["measures"]["curve"] for each in (log, train(STARTS[:1])[1]))
    assert curve == expected
    assert history[1]["train_loss"] == pytest.approx(sum(curve["loss"][4:8]) / 4)


@pytest.mark.filterwarnings("error")
def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    """Of other settings, of other data, of another number of runs, and of another network."""
    with pytest.raises(Stopped):
        train(folder=tmp_path, log=Log(stop_at=3))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    seeds = [{**start, "seed": 5} for start in STARTS]
    deeper = state().replace(params={"hidden": np.zeros(3), **state().params})
    for other in (
        {"starts": seeds}, {"plans": plans(data="others")}, {"starts": STARTS[:2]},
        {"made": program(3, STEPS + 6)},
        {"made": dataclasses.replace(program(3), like=deeper)},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"^{tmp_path} holds a run of other settings, data"):
            train(folder=tmp_path, **other)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_without_plans_a_checkpoint_of_another_rate_or_seed_is_refused(tmp_path):
    options = {"checkpoints": Checkpoints(tmp_path), "save_seconds": 0.0, "call_seconds": 0.0}
    with pytest.raises(Stopped):
        training.train(program(1), [state()], hooks=Log(stop_at=3).hooks, **options)
    for other in ({"seed": 1}, {"peak_lr": 0.1}):
        with pytest.raises(ValueError, match="holds a run of other settings, data"):
            training.train(program(1), [state(**other)], **options)
    (run,) = training.train(program(1), [state()], **options)
    assert run.first_step == 3


def test_a_checkpoint_that_cannot_be_saved_is_said_and_training_goes_on(
    whole, tmp_path, monkeypatch
):
    def full(self, step, tree, facts):
        raise OSError(28, "No space left on device", str(self.folder))

    monkeypatch.setattr(Checkpoints, "save", full)
    found = train(folder=tmp_path)
    assert_twins(found, whole)
    ((said,),) = {*found[1].of("on_message")}
    assert f"No space left on device: '{tmp_path}'; training goes on without" in said
    # Told to stop, it says that nothing was kept.
    with pytest.raises(OSError, match="No space left"):
        train(folder=tmp_path, log=Log(stop_at=3))


def test_a_curve_is_thinned_to_the_same_points_for_runs_that_diverged():
    def points(step):
        return thinned({"step": [*range(1, step + 1)]}, 7, num_steps=60)["step"]

    assert points(60) == [9, 18, 27, 36, 45, 54, 60]
    assert points(40) == [9, 18, 27, 36, 40] and points(3) == [3]
