"""What is missing of a sweep is made, once, whatever happens to some of its runs."""

import dataclasses
import itertools

import jax
import pytest

from nf_resnets import data
from nf_resnets.sweep import Rows, engine
from nf_resnets.sweep.image_task import ImageTask
from nf_resnets.sweep.settings import make as make_settings
from nf_resnets.training.checkpoint import Checkpoints
from tests.sweep.small import Linear, plans, run
from tests.training.small import WIDTH, Log, assert_rows_alike

OOM = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 68719476736 bytes.")


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    """Five runs, one after another, uninterrupted."""
    rows, outcome, _ = run(tmp_path_factory.mktemp("twin"), plans(5))
    assert not outcome.stopped and outcome.programs == 1
    return rows


def left(folder):
    place = folder / "checkpoints"
    return sorted(path.name for path in place.iterdir()) if place.is_dir() else []


def test_only_what_is_missing_is_made(tmp_path, twin):
    first, _, _ = run(tmp_path, plans(2))
    assert len(first) == 2
    rows, outcome, log = run(tmp_path, plans(5))
    keys = [plan.key for plan in plans(5)]
    assert [event[0] for event in log.of("on_run_begin")] == keys[2:]
    assert_rows_alike(rows, twin)
    assert outcome.rows.keys() == set(keys) and left(tmp_path) == []
    assert {"device", "date", "jax"} <= rows[keys[4]]["made"].keys()
    # All are there: nothing is built or begun.
    rows, outcome, log = run(tmp_path, plans(5))
    assert not log.events and outcome.programs == 0 and len(outcome.rows) == 5
    # Of fewer that are asked for, the others are no result.
    assert len(run(tmp_path, plans(3))[1].rows) == 3


def test_checkpoints_of_others_stay(tmp_path):
    Checkpoints(tmp_path / "checkpoints" / "mine").save(7, {}, {"by": "another program"})
    # Another shard tries a failed run again.
    with Rows(tmp_path).open() as rows:
        rows.add([{"key": "retried", "state": "failed"}])
    wave = "5" * 20
    Checkpoints(tmp_path / "checkpoints" / wave).save(7, {}, {"keys": ["retried"]})
    run(tmp_path, plans(1))
    assert left(tmp_path) == [wave, "mine"]
    assert Checkpoints(tmp_path / "checkpoints" / "mine").steps() == [7]


def test_rows_are_finite_or_diverged_at_the_step(tmp_path, twin):
    bad = [
        dataclasses.replace(plan, settings={**plan.settings, "bad_step": 7}) for plan in plans(1)
    ]
    rows, _, log = run(tmp_path, [*plans(3), *bad], runs_per_device=2)
    (gone,) = (row for row in rows.values() if row["state"] == "diverged")
    assert (gone["steps_done"], gone["message"]) == (8, "update_norm nan at step 8")
    rows.pop(gone["key"])
    assert_rows_alike(rows, {key: twin[key] for key in rows}, WIDTH)
    # Nor is it tried again, whatever is retried.
    _, _, log = run(tmp_path, [*plans(3), *bad], retry=True)
    assert not log.events


@pytest.fixture
def one_step_a_call(monkeypatch):
    real = engine.train
    monkeypatch.setattr(
        engine, "train", lambda *args, **options: real(*args, call_seconds=0.0, **options)
    )


@pytest.mark.parametrize(
    ("options", "then"),
    [
        ({"workers": 2}, {}),
        ({"runs_per_device": 3}, {}),
        ({}, {"devices": 4}),
        ({"devices": 4}, {}),
    ],
)
def test_told_to_stop_it_saves_and_goes_on(tmp_path, twin, one_step_a_call, options, then):
    """Threads, slots and devices change no number."""
    rows, outcome, _ = run(tmp_path, plans(5), log=Log(stop_at=8), **options)
    assert outcome.stopped and len(rows) < 5
    assert all(Checkpoints(path).steps() for path in (tmp_path / "checkpoints").iterdir())
    rows, outcome, log = run(tmp_path, plans(5), **(then or options))
    assert 8 in [event[3] for event in log.of("on_run_begin")]
    assert not outcome.stopped and left(tmp_path) == []
    # Threads share a program, and the last wave is as wide as it must be.
    assert len(log.of("on_compile_end")) == outcome.programs <= 2
    assert_rows_alike(rows, twin, WIDTH if "runs_per_device" in options else 0.0)


def test_a_wave_that_has_begun_goes_on_as_it_was_cut(tmp_path, one_step_a_call):
    """When the grid has grown, and a device carries another number of runs."""
    run(tmp_path, plans(4, first=1), log=Log(stop_at=8), runs_per_device=2)
    rows, _, log = run(tmp_path, plans(6), runs_per_device=3)
    began = {event[2]["seed"]: event[3] for event in log.of("on_run_begin")}
    assert began == {1: 8, 2: 8, 0: 0, 3: 0, 4: 0, 5: 0} and left(tmp_path) == []
    whole, _, _ = run(tmp_path / "whole", plans(6))
    assert_rows_alike(rows, whole, WIDTH)


@pytest.mark.parametrize("at", [0, 2])
def test_shards_are_a_partition_whenever_they_begin(tmp_path, twin, one_step_a_call, at):
    """The other one looks when this one is within its first, second or third wave."""
    logs, key = [Log(), Log()], plans(5)[at].key

    def on_step(which, step, curve):
        if (which, step) == (key, 8):
            run(tmp_path, plans(5), log=logs[1], shard=(1, 2))

    logs[0].on_step = on_step
    rows, _, _ = run(tmp_path, plans(5), log=logs[0], shard=(0, 2))
    began = [[event[2]["seed"] for event in log.of("on_run_begin")] for log in logs]
    assert began == [[0, 2, 4], [1, 3]]
    assert_rows_alike(rows, twin)


def test_a_run_that_raises_is_recorded_and_the_others_go_on(tmp_path, twin):
    task = Linear()
    start = task.start

    def broken(plan):
        if plan.settings["seed"] == 1:
            raise ValueError("no weights for seed 1")
        return start(plan)

    task.start = broken
    rows, outcome, log = run(tmp_path, plans(5), task)
    assert [row["state"] for row in rows.values()].count("finished") == 4
    (failed,) = (row for row in rows.values() if row["state"] == "failed")
    assert failed["message"] == "ValueError: no weights for seed 1"
    assert "in broken" in failed["traceback"] and failed["test_accuracy"] is None
    assert (failed["key"], "failed") in [event[:2] for event in log.of("on_run_end")]
    # It is tried again when that is asked for, and not before.
    assert not run(tmp_path, plans(5))[2].events
    rows, _, log = run(tmp_path, plans(5), retry=True)
    assert [event[2]["seed"] for event in log.of("on_run_begin")] == [1]
    assert_rows_alike(rows, twin)


def test_a_program_that_cannot_be_compiled_fails_its_runs_alone(tmp_path, twin):
    others = [dataclasses.replace(plan, program="bad", data="bad") for plan in plans(2)]
    task = Linear(lambda program, plan: RuntimeError("no") if plan.program == "bad" else program)
    rows, outcome, _ = run(tmp_path, [*others, *plans(5)], task, workers=3)
    bad = [rows.pop(plan.key) for plan in others]
    assert [row["message"] for row in bad] == ["RuntimeError: no"] * 2
    assert outcome.programs == 1
    assert_rows_alike(rows, twin)


def test_runs_that_do_not_fit_the_memory_are_tried_in_halves(tmp_path, twin):
    def exhaust(program, plan):
        if program is None or program.slots < 3:
            return program

        def steps(*_):
            raise OOM

        return dataclasses.replace(program, steps=steps)

    rows, _, log = run(tmp_path, plans(5), Linear(exhaust), runs_per_device=5)
    assert_rows_alike(rows, twin, WIDTH)
    assert log.of("on_message") == [
        ("5 runs at a time do not fit the memory",), ("3 runs at a time do not fit the memory",)
    ]  # fmt: skip


def test_a_run_of_images_has_their_fingerprint_in_its_key():
    digits, settings = data.load("digits"), make_settings({})
    images = digits.train.images.copy()
    images[7, 0, 0, 0] += 1
    other = dataclasses.replace(digits, train=data.Split(images, digits.train.labels))
    keys = [ImageTask(lambda _, each=each: each).plan(settings).key for each in (digits, other)]
    again = ImageTask(lambda _: dataclasses.replace(digits, name="by another name"))
    assert keys[0] != keys[1] and again.plan(settings).key == keys[0]


def test_a_disk_that_fails_ends_it_with_a_sentence_and_it_goes_on_later(
    tmp_path, twin, monkeypatch
):
    """It is no fault of the runs: none is counted as failed, and the others are saved."""
    add, count = Rows.add, itertools.count(1)

    def full(self, rows):
        if next(count) > 1:
            raise OSError("rows.jsonl cannot be written: No space left on device.")
        return add(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(Rows, "add", full)
        with pytest.raises(OSError, match="cannot be written: No space"):
            run(tmp_path, plans(5), workers=3)
    assert len(Rows(tmp_path).read()) == 1
    rows, _, _ = run(tmp_path, plans(5), workers=3)
    assert_rows_alike(rows, twin)
