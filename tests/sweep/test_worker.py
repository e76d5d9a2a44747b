"""Runs that share a program: same numbers alone and together, one compilation, slots refilled."""

from __future__ import annotations

import gc
import math
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from nf_resnets import training
from nf_resnets.sweep import LedgerError, claims, enter, image_task, open_ledger, worker
from nf_resnets.sweep.image_task import refuse_other_settings
from nf_resnets.sweep.ledger import this_worker
from nf_resnets.sweep.programs import Programs
from nf_resnets.sweep.settings import FIELDS, make
from nf_resnets.sweep.task import filled
from nf_resnets.training.checkpoint import Checkpoints
from tests.sweep import small

AXES = {"scheme": ("skipinit", "alpha_one"), "peak_lr": (0.125, 2.0, 0.25), "seed": (0, 1)}


@pytest.fixture(scope="module")
def built():
    """The programs of ``four``, and whether they were let go of."""
    return []


@pytest.fixture(scope="module")
def four(tmp_path_factory, built):
    axes = {**AXES, "peak_lr": (0.125, 2.0), "seed": (0,)}

    class Observed(Programs):
        def release(self, name):
            program = self.built[name]
            super().release(name)
            built.append((program, name in self.built))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "Programs", Observed)
        return small.run(tmp_path_factory.mktemp("four"), small.make(axes))


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory):
    """The sweep on one device, a run after another: what all others are compared with."""
    return small.run(tmp_path_factory.mktemp("one"), small.make(AXES))


@pytest.fixture(scope="module")
def on_eight(tmp_path_factory):
    return small.run(tmp_path_factory.mktemp("eight"), small.make(AXES), devices=8)


def test_every_run_is_made_once_and_says_what_came_of_it(four):
    rows, outcome, log = four
    assert len(rows) == 4
    assert outcome.counts["finished"] + outcome.counts["diverged"] == 4
    assert [row["attempts"] for row in rows] == [1] * 4
    assert len(log.of("on_run_begin")) == len(log.of("on_run_end")) == 4
    for row in rows:
        if row["state"] == "finished":
            assert row["steps_done"] == row["resolved"]["num_steps"] == 44
            assert 0 <= row["test_accuracy"] <= 1 and math.isfinite(row["test_loss"])
    # Something was learnt, so that "the same numbers" below means something.
    assert max(row["test_accuracy"] or 0 for row in rows) > 0.3


@pytest.mark.slow
def test_schemes_of_one_anatomy_rates_and_seeds_share_one_compiled_program(one_by_one, on_eight):
    for _, outcome, log in (one_by_one, on_eight):
        assert len(outcome.programs) == 1
        assert len(log.of("on_compile_end")) == 1


def test_a_program_is_let_go_of_after_its_last_run_and_does_not_compile_again(four, built):
    ((made, is_kept),) = built
    assert not is_kept and len(four[1].programs) == 1
    two = jax.tree.map(lambda leaf: np.zeros((2, *leaf.shape), leaf.dtype), made.like)
    with pytest.raises(TypeError):
        made.steps(two, np.array([1, 1]))


@pytest.mark.slow
def test_on_eight_devices_the_numbers_are_those_of_one(one_by_one, on_eight):
    # Each run is whole on one device, by the same operations: equal to the last bit here. The
    # tolerance is for compilers that order float32 sums otherwise.
    rows, others = one_by_one[0], {row["key"]: row for row in on_eight[0]}
    (program,) = on_eight[1].programs.values()
    assert program.slots == 8
    for row in rows:
        other = others[row["key"]]
        assert (row["state"], row["steps_done"]) == (other["state"], other["steps_done"])
        for name in ("test_accuracy", "test_loss", "train_loss"):
            if row[name] is not None:
                assert other[name] == pytest.approx(row[name], rel=1e-4)


@pytest.mark.slow
def test_a_diverged_run_says_at_which_step_and_its_slot_is_refilled(one_by_one, on_eight):
    rows = one_by_one[0]
    gone = [row for row in rows if row["state"] == "diverged"]
    assert gone, "a rate of 2 should be too large for alpha = 1"
    for row in gone:
        assert row["test_accuracy"] is None
        assert 0 < row["steps_done"] <= 44
        assert row["message"].endswith(f"at step {row['steps_done']}")
    # Eight slots for twelve runs: four sat down where others had got up.
    began = [event[0] for event in on_eight[2].of("on_run_begin")]
    ended_before = [
        event for event in on_eight[2].events[: on_eight[2].events.index(
            ("on_run_begin", *on_eight[2].of("on_run_begin")[8]))] if event[0] == "on_run_end"
    ]  # fmt: skip
    assert len(began) == 12 and ended_before


@pytest.mark.slow
def test_the_batch_of_a_run_can_be_spread_over_devices(one_by_one, tmp_path):
    axes = {"scheme": ("skipinit",), "peak_lr": (0.125,), "seed": (0, 1)}
    rows, outcome, _ = small.run(tmp_path, small.make(axes), devices=4, devices_per_run=2)
    (program,) = outcome.programs.values()
    assert program.mesh.shape == {"sweep": 2, "data": 2}
    expected = small.results(one_by_one[0])
    for row in rows:
        state, steps, accuracy, *losses = expected[row["key"]]
        assert (row["state"], row["steps_done"]) == (state, steps)
        # float32 sums over two halves of a batch, carried through 44 steps.
        assert row["test_accuracy"] == pytest.approx(accuracy, abs=0.02)
        assert row["train_loss"] == pytest.approx(losses[1], rel=1e-2)


@pytest.mark.slow
def test_a_second_start_makes_only_what_is_new(one_by_one, tmp_path):
    axes = {**AXES, "scheme": ("skipinit",), "seed": (0,)}
    first, _, _ = small.run(tmp_path, small.make({**axes, "peak_lr": (0.125,)}))
    rows, outcome, log = small.run(tmp_path, small.make(axes))
    assert len(first) == 1 and len(rows) == 3
    assert len(log.of("on_run_begin")) == 2
    expected = small.results(one_by_one[0])
    assert small.results(rows) == {row["key"]: expected[row["key"]] for row in rows}
    _, outcome, log = small.run(tmp_path, small.make(axes))
    assert not log.events and not outcome.programs


@pytest.mark.slow
def test_alpha_and_the_scale_of_the_branches_are_numbers_of_a_run():
    task = image_task.ImageTask(small.load)
    runs = [
        task.resolve({**small.BASE, "scheme": scheme, **more})
        for scheme, more in (
            ("skipinit", {}), ("skipinit", {"alpha": 0.5}), ("alpha_one", {}),
            ("skipinit", {"branch_scale": 0.1}), ("skipinit", {"weight_decay": 0.0, "seed": 3}),
        )
    ]  # fmt: skip
    assert len({run.program for run in runs}) == 1
    other = task.resolve({**small.BASE, "scheme": "skipinit", "batch_size": 32})
    assert other.program != runs[0].program
    program = task.build(runs[0], training.make_mesh(devices=jax.devices()[:1]))
    states = [program.take(program.begin(program.empty(), 0, task.start(run)), 0) for run in runs]
    alphas = [float(state.params["stage_1"]["first"]["alpha"]) for state in states]
    assert alphas == [0.0, 0.5, 1.0, 0.0, 0.0]
    kernels = [np.asarray(state.params["stage_1"]["first"]["conv_1"]["kernel"]) for state in states]
    # float32: 0.1 is not one of its numbers.
    np.testing.assert_allclose(kernels[3], 0.1 * kernels[0], rtol=1e-6)
    assert np.abs(kernels[4] - kernels[0]).max() > 0.1  # another seed, another draw
    assert float(states[4].hyper["weight_decay"]) == 0


@pytest.mark.parametrize("scheme", ["fixup", "rescalenet"])
def test_rescalenets_biases_and_multipliers_do_not_decay(scheme):
    kind = image_task.kind_of(make({**small.BASE, "scheme": scheme}), small.load("digits"))
    model = image_task.make_model(kind, small.load("digits"))
    shapes = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, 8, 8, 1)))["params"]
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), shapes)
    optimizer = image_task.optimizer(kind, image_task.hyper_of(kind.settings))
    zeros = jax.tree.map(np.zeros_like, params)
    updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    for path, update in jax.tree_util.tree_flatten_with_path(updates)[0]:
        # Without a gradient, whatever moves has decayed; Fixup's code decays all.
        expected = scheme == "fixup" or path[-1].key == "kernel"
        assert bool(np.abs(update).max() > 0) == expected, jax.tree_util.keystr(path)


def test_what_follows_from_the_settings_is_kept(four):
    resolved = four[0][0]["resolved"]
    assert resolved["steps_per_epoch"] == 22
    steps = [step for step, _ in resolved["rates"]]
    assert steps[:3] == [0, 22, 25]  # half of 44 steps, then ten parts of 2.2
    assert resolved["rates"][0][1] == 0.125 and resolved["rates"][1][1] == 0.0625


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"batch_size": 2048}, "batch_size=2048 is larger than the training split of 1437"),
        ({"micro_batch": 24}, "micro_batch=24 found; expected a divisor of batch_size=64"),
        ({"warmup_epochs": 3.0}, "warmup_epochs=3 found, 66 steps; expected no more than"),
        ({"scheme": "batchnorm", "batch_size": 96}, "ghost_batch=64 found; expected a divisor"),
        ({"scheme": "fixupp"}, "did you mean 'fixup'?"),
        ({"scheme": "layernorm_pre"}, "layernorm_pre"),
        ({"model": "resnet-110"}, "did you mean 'cifar-resnet-110'?"),
        ({"model": "transformer-6"}, "expected a network for images"),
        ({"dataset": "digit"}, "digits"),
        ({"alpha": 0.5}, "alpha=0.5 found, but scheme='fixup' has no alpha, nor has another"),
        ({"dropout": 0.1}, "dropout=0.1 found, but scheme='fixup' has no dropout"),
        ({"padding": 8}, "padding=8 found; expected less than the 8 pixels of an image's side"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(settings, sentence):
    with pytest.raises(ValueError) as caught:
        small.make({"seed": (0, 1)}, **settings)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_fixed_settings_than_the_ledgers_are_refused_with_the_difference(tmp_path):
    sweep = small.make({"seed": (0,), "peak_lr": (0.1,)})
    with open_ledger(tmp_path / "ledger.db") as book:
        enter(sweep.runs, book)
        with pytest.raises(ValueError) as caught:
            refuse_other_settings(small.make({"seed": (0,)}, momentum=0.8, epochs=4.0), book)
        assert "momentum: 0.9 there, 0.8 now" in str(caught.value)
        assert "epochs: 2.0 there, 4.0 now" in str(caught.value)
        # An axis may grow, and a fixed setting become one.
        wider = small.make({"seed": (0, 1), "momentum": (0.8, 0.9), "peak_lr": (1e-1,)})
        refuse_other_settings(wider, book)
        assert enter(wider.runs, book) == 3


def test_memory_that_ran_out_is_told_from_other_errors():
    class XlaRuntimeError(RuntimeError):
        pass

    assert claims.is_out_of_memory(XlaRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating"))
    assert claims.is_out_of_memory(MemoryError())
    assert not claims.is_out_of_memory(XlaRuntimeError("INTERNAL: something else"))
    assert not claims.is_out_of_memory(ValueError("out of memory"))


def test_the_ledger_has_the_settings_as_they_are(four):
    row = four[0][0]
    assert small.key({name: filled(row)[name] for name in FIELDS}) == row["key"]


def test_a_dropout_of_zero_is_no_dropout_and_none_the_published():
    dataset = small.load("digits")
    rates = []
    for dropout in (0.0, 0.25, None):
        settings = make({**small.BASE, "scheme": "regularized_skipinit", "dropout": dropout})
        rates.append(image_task.make_model(image_task.kind_of(settings, dataset), dataset).dropout)
    assert rates == [0.0, 0.25, 0.6]


def test_a_ledger_that_is_gone_ends_the_worker_with_a_sentence(tmp_path):
    with open_ledger(tmp_path / "ledger.db") as book:
        enter(small.make({"seed": (0,)}).runs, book)
        (tmp_path / "ledger.db").unlink()
        with pytest.raises(LedgerError, match=r"was removed or replaced while it was in use"):
            book.heartbeat(this_worker("cpu", {}), ["k"])


def test_what_raised_is_said_in_its_own_words(tmp_path, monkeypatch):
    """JAX adds a note to what passes through it."""
    sweep = small.make({"seed": (0,)}, stem_channels=2)

    def broken(*_):
        raise ValueError("images of shape (1, 8, 8, 1) found")

    monkeypatch.setattr(sweep.task, "start", lambda run: jax.jit(broken)(0.0))
    rows, _, _ = small.run(tmp_path, sweep, max_attempts=1)
    assert rows[0]["state"] == "failed"
    assert rows[0]["message"] == "ValueError: images of shape (1, 8, 8, 1) found"


def test_retry_leaves_runs_of_other_grids_alone(tmp_path):
    with open_ledger(tmp_path / "ledger.db") as book:
        enter(small.make({"seed": (0, 1)}).runs, book)
        me = this_worker("cpu", {})
        for claim in book.claim(me, limit=2):
            book.fail(claim, me, "Traceback", max_attempts=1)
        assert book.retry(keys=small.make({"seed": (1,)}).keys) == 1
        assert [row["state"] for row in book.rows()] == ["failed", "waiting"]


@pytest.mark.slow
@pytest.mark.parametrize(("fraction", "saves"), [(1.0, 4), (0.02, 1)])
def test_checkpoints_take_no_more_than_their_fraction(tmp_path, monkeypatch, fraction, saves):
    made = []
    save = Checkpoints.save

    def slow(self, step, tree):
        time.sleep(0.2)  # far longer than 2% of the epochs in between, of milliseconds
        made.append(step)
        return save(self, step, tree)

    monkeypatch.setattr(Checkpoints, "save", slow)
    rows, _, _ = small.run(tmp_path, small.make({}, epochs=5.0), checkpoint_fraction=fraction)
    assert len(made) == saves
    (row,) = rows
    assert row["state"] == "finished"
    with open_ledger(tmp_path / "ledger.db") as book:
        # Whether saved or not, every epoch has its row.
        assert [each["epoch"] for each in book.epochs()] == [1, 2, 3, 4, 5]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux says it")
def test_programs_give_their_memory_back(tmp_path):
    found = []

    class Counting(small.Log):
        def on_compile_begin(self, *_):
            gc.collect()
            found.append(len(Path("/proc/self/maps").read_text().splitlines()))

    axes = {"batch_size": (16, 24, 32)}
    small.run(tmp_path, small.make(axes, model="wrn-10-1", epochs=0.1), callback=Counting())
    # A program of this network has about 900.
    assert len(found) == 3 and found[2] < found[1] + 450


def test_a_run_may_have_one_step():
    sweep = small.make({"seed": (0,)}, steps=1, epochs=0.0)
    assert [run.num_steps for run in sweep.runs] == [1]


def test_an_axis_that_makes_the_same_runs_twice_is_refused():
    with pytest.raises(
        ValueError, match=r"^scalar_factor=0.1 found, but scheme='skipinit' has no "
    ):
        small.make({"scalar_factor": (0.1, 1.0)}, scheme="skipinit")
    assert small.make({"scalar_factor": (0.1, 1.0), "scheme": ("skipinit", "fixup")}).size == 4
