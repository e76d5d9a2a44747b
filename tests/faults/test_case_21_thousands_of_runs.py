"""Case 21: thousands of finished runs. Reporting is near-linear, and SIGTERM ends it in 2 seconds.

The runs are rows that are put into the ledger, and none is trained. What is done with them is
counted in calls of functions and SQL statements, which do not depend on how busy the machine is.
"""

from __future__ import annotations

import cProfile
import os
import signal
import subprocess
import sys
import time

import pytest
import sqlalchemy as sa
import tyro

from nf_resnets.sweep import __main__ as main
from nf_resnets.sweep import image_task, open_ledger, results, settings, worker
from tests.faults import sweeping
from tests.faults.sweeping import ROOT

CASE = "21 thousands of finished runs"
SECONDS = 2.0  # in which a signal is answered
FEW = ("--model", "wrn-10-1", "--stem-channels", "2", "--epochs", "1")


def command(folder, runs):
    axes = ("peak_lr=2^-8:2^1", f"seed=0:{runs // 10}")
    return ["--grid", *axes, *FEW, "--workers", "1", "--out", str(folder)]


def fill(folder, runs):
    """A folder whose ledger says that all runs are finished."""
    folder.mkdir()
    base = {"model": "wrn-10-1", "stem_channels": 2, "epochs": 1.0}
    sweep = image_task.make_sweep(settings.parse(command(folder, runs)[1:3]), base)
    assert len(sweep.runs) == runs
    with open_ledger(folder / "ledger.db") as book:
        worker.enter(sweep.runs, book)
        me = worker.this_worker("cpu", {"jax": "0.10.2"})
        while claims := book.claim(me, limit=500):
            for number, claim in enumerate(claims):
                result = {"steps": 22, "test_accuracy": number / 500, "train_loss": 1.0}
                book.finish(claim, me, "finished", {**result, "seconds": 1.0}, [{"epoch": 1}])
    return folder


def cost(folder, runs):
    """Calls of Python functions and SQL statements of the command on finished runs."""
    wanted = tyro.cli(main.Command, args=command(folder, runs))
    statements = [0]

    def count(*_):
        statements[0] += 1

    profile = cProfile.Profile()
    sa.event.listen(sa.Engine, "before_cursor_execute", count)
    try:
        profile.enable()
        assert main.main(wanted) == 0
    finally:
        profile.disable()
        sa.event.remove(sa.Engine, "before_cursor_execute", count)
    return sum(entry.callcount for entry in profile.getstats()), statements[0]


def grows_linearly(folder, few):
    many = 10 * few
    cost(fill(folder / "first", 10), 10)  # what is imported at the first call
    calls, statements = cost(fill(folder / "few", few), few)
    more_calls, more_statements = cost(fill(folder / "many", many), many)
    # Ten times as many runs: a fifth is left for what is sorted.
    assert more_calls < 12 * calls, (calls, more_calls)
    # Lists of keys are handed over in parts of a thousand.
    assert more_statements <= statements + 10 * many / 1000


def test_reporting_grows_with_the_runs(tmp_path, monkeypatch, capsys):
    # Figures are looked at by the slow test.
    monkeypatch.setattr(results.plotting, "sweep_figures", lambda *args, **kwargs: [])
    grows_linearly(tmp_path, 10)


@pytest.mark.slow
def test_reporting_of_5000_runs_with_figures_takes_ten_times_that_of_500(tmp_path, capsys):
    grows_linearly(tmp_path, 500)


def ended_after(process):
    start = time.monotonic()
    process.send_signal(signal.SIGTERM)
    code = process.wait(60)
    return time.monotonic() - start, code


def told_to_stop(folder, runs, after):
    """Seconds and code of the end of a command that has said its first line some time before."""
    process = subprocess.Popen(
        [sys.executable, "-m", "nf_resnets.sweep", *command(folder, runs)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=1"},
    )  # fmt: skip
    try:
        assert "runs, 1 program on" in process.stdout.readline()
        time.sleep(after)
        return ended_after(process)
    finally:
        process.kill()
        process.stdout.close()


@pytest.mark.slow
def test_sigterm_ends_reporting(tmp_path):
    folder = fill(tmp_path / "runs", 200)
    seconds, code = told_to_stop(folder, 200, 0.3)
    assert seconds < SECONDS and code in (143, -signal.SIGTERM)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    return fill(tmp_path_factory.mktemp("many") / "runs", 5000)


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0])
def test_sigterm_ends_the_command_at_every_moment(many, after):
    seconds, code = told_to_stop(many, 5000, after)
    # With a machine so slow that it was still at work; else it has ended by itself.
    assert seconds < SECONDS and code in (0, 143, -signal.SIGTERM)


def compile_for_long():
    """Has every program take a minute, of which nothing can be made shorter."""
    from nf_resnets.sweep import image_task

    image_task.ImageTask.build = lambda *args, **kwargs: time.sleep(60)


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_does_not_wait_for_a_compilation(tmp_path, workers):
    axes = ["seed=0:3", "batch_size=32,64"]
    prepare = "tests.faults.test_case_21_thousands_of_runs:compile_for_long"
    process = sweeping.start(tmp_path, axes, prepare=prepare, workers=workers)
    process.until("compile_begin", count=workers)
    start = time.monotonic()
    process.send(signal.SIGTERM)
    assert process.wait(30) == 143, process.said()
    assert time.monotonic() - start < SECONDS
    with sweeping.opened(tmp_path) as book:
        assert book.counts()["waiting"] == 6
        assert [each["outcome"] for each in book.attempts()] == ["released"] * workers
