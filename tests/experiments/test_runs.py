"""The runs of an experiment as a sweep: what names them, what fails, what is read back."""

import dataclasses
import functools
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import pytest

from experiments import fixup_fig3_depth as fig3
from experiments.experiment import Point, standard_columns, thinned
from experiments.folder import ResultsFolder
from experiments.main import main
from experiments.runs import Drawer, ExperimentTask, RowWriter, divisible_mesh
from nf_resnets import data, models, training
from nf_resnets.sweep import Execution
from tests.experiments.as_a_user import ROOT, lines_of, one_device

SETTINGS = fig3.SCALES["smoke"]
digits = functools.cache(lambda: data.load("digits"))


def point(name, program, steps=1, priority=0):
    return Point({"name": name}, name, None, program, steps, 1, priority=priority)


def test_low_priorities_come_first_and_of_one_priority_the_longest_program():
    points = [
        point("deep", "p", 9, priority=100), point("cheap", "q"), point("one", "r", 2),
        point("two", "r", 2),
    ]  # fmt: skip
    found = ExperimentTask(fig3.EXPERIMENT, SETTINGS, digits()).add(points)
    assert [run.label for run in found] == ["one", "two", "cheap", "deep"]
    assert len({run.program for run in found}) == 3 and found[0].program == found[1].program


def test_a_run_is_named_by_its_settings_and_not_by_the_grid():
    def runs_of(**changes):
        settings = dataclasses.replace(SETTINGS, **changes)
        task = ExperimentTask(fig3.EXPERIMENT, settings, digits())
        return {run.label: run for run in task.add(fig3.points(settings, digits(), ()))}

    few, many, other = runs_of(depths=(10,)), runs_of(), runs_of(depths=(10,), learning_rate=0.2)
    for label, run in few.items():
        assert run.key == many[label].key != other[label].key
    assert len({run.key for run in many.values()}) == 12
    # SkipInit and alpha = 1 compile alike.
    assert len({run.program for run in few.values()}) == 5
    task = ExperimentTask(fig3.EXPERIMENT, SETTINGS, digits())
    (run,) = task.add(fig3.points(SETTINGS, digits(), ())[:1])
    assert task.start(run).scheme.name == "fixup"


def test_other_data_are_other_runs():
    digits_ = digits()
    images = digits_.train.images.copy()
    images[7, 0, 0, 0] += 1
    other = dataclasses.replace(digits_, train=data.Split(images, digits_.train.labels))
    keys = [
        ExperimentTask(fig3.EXPERIMENT, SETTINGS, each).add([point("a run", "p")])[0].key
        for each in (digits_, other)
    ]
    assert keys[0] != keys[1]


def test_a_programs_name_is_that_of_every_process():
    """Schemes such as RescaleNet have functions, whose addresses differ."""

    def made_anew():
        def constant(k, L):
            return k / L

        return functools.partial(constant, L=3)

    one, other = made_anew(), made_anew()
    assert repr(one) != repr(other)
    named = [
        ExperimentTask(fig3.EXPERIMENT, SETTINGS, digits()).add([point("run", program)])[0].program
        for program in (one, other, functools.partial(one.func, L=4))
    ]
    assert named[0] == named[1] != named[2]
    with pytest.raises(ValueError, match="two programs are .*constant.*; expected functions of"):
        ExperimentTask(fig3.EXPERIMENT, SETTINGS, digits()).add(
            [point("run", one), point("run 2", other)]
        )


def test_a_run_has_as_many_devices_as_divide_its_batch_and_its_slices():
    mesh = training.make_mesh(devices=jax.devices()[:8])

    def devices(scheme, batch_size, micro_batches=1, groups=1):
        model = models.CifarResNet(depth=8, scheme=scheme, bn_groups=groups)
        run = dataclasses.replace(point("x", "p"), batch_size=batch_size)
        return divisible_mesh(mesh, model, run, micro_batches).size

    assert devices("fixup", 64) == 8 and devices("fixup", 12) == 4
    assert devices("fixup", 64, micro_batches=16) == 4
    assert devices("batchnorm", 64) == 1 and devices("batchnorm", 64, groups=2) == 2


def test_the_figure_is_drawn_again_as_runs_end(tmp_path):
    """In another thread; what cannot be drawn yet is no fault, and is tried after the next run."""
    told, drawn, calls = [], [], threading.Semaphore(0)

    def draw():
        calls.release()
        drawn.append(threading.current_thread().name)
        if len(drawn) == 1:
            raise KeyError("a row that is missing")

    with Drawer(draw, told.append, tmp_path / "figure.png") as drawer:
        drawer.on_step("key", 1, {})
        assert not calls.acquire(timeout=0.1)
        for _ in range(3):
            drawer.on_run_end("key", "finished", {})
            assert calls.acquire(timeout=10)
    assert drawn == ["drawer"] * 3
    assert told == [f"The figure so far, drawn again as runs end: {tmp_path / 'figure.png'}"]


def test_drawing_takes_a_twentieth_of_the_time_at_most(tmp_path):
    times = []

    def draw():
        times.append(time.monotonic())
        time.sleep(0.01)

    with Drawer(draw, lambda text: None, tmp_path) as drawer:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            drawer.on_run_end("key", "finished", {})
            time.sleep(0.001)
    assert 1 < len(times) <= 3 and min(np.diff(times)) >= 0.2


RUN = {
    "state": "finished", "steps_done": 4, "test_accuracy": 0.5, "test_loss": 1.0, "seconds": 1.234,
    "measures": {"first_loss": 3.0, "last_loss": None, "last_grad_norm": 2.0,
                 "seconds_per_step": 0.1},
}  # fmt: skip


def test_a_row_that_cannot_be_made_does_not_take_the_others_with_it(tmp_path):
    task = ExperimentTask(fig3.EXPERIMENT, SETTINGS, digits())
    good, bad = task.add(fig3.points(SETTINGS, digits(), ())[:2])
    rows = [{**RUN, "key": good.key}, {**RUN, "key": bad.key, "measures": None}]
    folder = ResultsFolder(
        tmp_path, {}, grid=(), columns=fig3.EXPERIMENT.columns, key=fig3.EXPERIMENT.key
    )
    writer = RowWriter(task, folder, {})
    writer.write(rows)
    writer.on_run_end(good.key, "finished", rows[0])
    writer.on_epoch("whatever else", "is passed over")
    (row,) = folder.rows
    assert (row["branches"], row["batch_size"], row["seconds"]) == ("3", "64", "1.23")
    assert row["last_loss"] == "nan" and row["status"] == "finished"
    assert list(writer.failures) == [bad.label] and "AttributeError" in writer.failures[bad.label]


def test_a_diverged_run_has_no_accuracy():
    run = RUN | {"state": "diverged", "test_accuracy": None, "test_loss": None}
    row = standard_columns(point("x", "p"), models.CifarResNet(depth=8), run)
    assert row["status"] == "diverged" and np.isnan([row["test_accuracy"], row["test_loss"]]).all()


def test_a_thinned_curve_keeps_the_mean():
    losses = np.random.default_rng(0).uniform(size=60)
    curve = {"step": list(range(1, 61)), "loss": losses.tolist()}
    for points in (1, 7, 20, 60, 100):
        found = thinned(curve, points, 60)
        assert len(found) <= points and found[-1]["step"] == 60
        weights = np.diff([0, *(line["step"] for line in found)])
        means = [line["loss"] for line in found]
        np.testing.assert_allclose(np.average(means, weights=weights), losses.mean(), rtol=1e-12)
    assert thinned({"step": [], "loss": []}, 5, 60) == []


@pytest.mark.parametrize("spacing", [1, 4])
@pytest.mark.parametrize("made", [3, 46, 59])
def test_the_curve_of_a_run_that_diverged_is_thinned_as_a_whole_one(made, spacing):
    def curve(steps):
        ends = [min(start + spacing, steps) for start in range(0, steps, spacing)]
        return {"step": ends, "loss": [0.5] * len(ends)}

    whole, part = (
        [line["step"] for line in thinned(curve(steps), 7, num_steps=60)] for steps in (60, made)
    )
    assert part == [*[step for step in whole if step < made], made]


def test_what_failed_is_tried_again_and_what_is_there_is_not(
    tmp_path, monkeypatch, as_before, capsys
):
    """A whole experiment in this process; the last start has the sweep's rows and no table."""
    setup = fig3.setup

    def failing(settings, dataset, point):
        if point.key["scheme"] in broken:
            raise RuntimeError("out of luck [tf-allocator] in [/device:GPU:0]")
        # A smaller network than any of the figure.
        model = models.CifarResNet(depth=8, scheme=point.start.scheme, stem_channels=1)
        return setup(settings, dataset, point)._replace(model=model)

    out = tmp_path / "out"
    command = fig3.Command(
        scale="smoke", depths=(10,), schemes=("fixup", "sqrt_half"), steps=2, out=out,
        execution=Execution(workers=1, devices_per_run=1),
    )  # fmt: skip
    experiment = dataclasses.replace(fig3.EXPERIMENT, setup=failing)
    broken = ("sqrt_half",)
    assert main(experiment, command) == 1
    shown = capsys.readouterr().out
    assert "[tf-allocator] in [/device:GPU:0]" in shown
    assert "RuntimeError" in (out / "failures.txt").read_text()
    (row,) = lines_of(out / "rows.csv")
    assert tuple(row) == fig3.EXPERIMENT.columns and row["scheme"] == "fixup"
    # Fixup's head is zero, so that the first loss is ln 10 but for float32's rounding.
    assert float(row["first_loss"]) == pytest.approx(2.302585, abs=1e-6)

    # An earlier version's folder has other files: its rows are not made again.
    broken = ("fixup", "sqrt_half")
    shutil.copytree(out, tmp_path / "old", ignore=shutil.ignore_patterns("rows-*.jsonl"))
    only = dataclasses.replace(command, schemes=("fixup",), out=tmp_path / "old")
    assert main(experiment, only) == 0
    assert "1 run is there already." in capsys.readouterr().out
    assert not (tmp_path / "old" / "failures.txt").exists()

    # Nor is one added to them, which would stand beside what nobody knows.
    with pytest.raises(SystemExit, match=r"rows.csv is there without the rows-\*.jsonl"):
        main(experiment, dataclasses.replace(only, schemes=()))

    # A row that was not written before the process ended is made of the sweep's.
    broken = ()
    (out / "rows.csv").unlink()
    monkeypatch.setattr(training, "image_program", lambda *_: pytest.fail("it is made again"))
    assert main(experiment, dataclasses.replace(only, out=out)) == 0
    assert lines_of(out / "rows.csv") == [row]


def command(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "experiments.fixup_fig3_depth", *map(str, arguments)],
        cwd=ROOT,
        env=one_device(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_two_processes_make_one_table(tmp_path):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        together = ("--coordinator", f"localhost:{free.getsockname()[1]}", "--num-processes", 2)
    small = ("--scale", "smoke", "--depths", 10, "--schemes", "fixup", "--out", tmp_path / "out")
    processes = [command(*small, *together, "--process-id", index) for index in (0, 1)]
    for process in processes:
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors
    (row,) = lines_of(tmp_path / "out" / "rows.csv")
    assert row["status"] == "finished" and row["steps"] == "4"


LONG = ("--scale", "smoke", "--depths", 10, "--schemes", "fixup", "--steps", 1500,
        "--save-seconds", 0)  # fmt: skip


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    out = tmp_path_factory.mktemp("twin")
    _, errors = (process := command(*LONG, "--out", out)).communicate(timeout=600)
    assert process.returncode == 0, errors
    return lines_of(out / "rows.csv")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_cut_off_in_its_middle_goes_on_and_ends_like_its_twin(tmp_path, number, twin):
    out = tmp_path / "out"
    process = command(*LONG, "--out", out)
    deadline = time.monotonic() + 600
    while not list(out.glob("checkpoints/*/*.npz")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert not (out / "rows.csv").exists() and "Traceback" not in errors
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number
        assert "the same command makes what is missing" in errors
    shown, errors = (process := command(*LONG, "--out", out)).communicate(timeout=600)
    assert process.returncode == 0, errors
    timing = ("seconds", "seconds_per_step")
    found, expected = (
        [{name: row[name] for name in row if name not in timing} for row in rows]
        for rows in (lines_of(out / "rows.csv"), twin)
    )
    # Equal to the last digit: the same program on the same inputs, in the same order.
    assert found == expected and not (out / "checkpoints").exists()
