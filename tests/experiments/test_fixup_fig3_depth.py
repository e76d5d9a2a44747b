"""Fixup's figure 3 as a user runs it: commands, bad input, an interrupted run that goes on."""

import csv
import gc
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from experiments import fixup_fig3_depth as fig3
from experiments import grid
from nf_resnets import schemes
from tests.experiments.as_a_user import one_device

ROOT = Path(__file__).parents[2]


def command(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "experiments.fixup_fig3_depth", *map(str, arguments)],
        cwd=ROOT,
        env=one_device(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def rows_of(folder):
    with open(folder / "rows.csv", newline="") as stream:
        return list(csv.DictReader(stream))


SINGLE = ("--steps", "--workers", "--out")
SMALL = ("--scale", "smoke", "--depths", 10, "--schemes", "fixup", "sqrt_half")


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_like_its_twin(tmp_path):
    twin, cut = tmp_path / "twin", tmp_path / "cut"
    process = command(*SMALL, "--out", twin)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    assert str(twin) in output and "figure.png" in output

    process = command(*SMALL, "--out", cut, "--workers", 1)
    deadline = time.monotonic() + 240
    while not (cut / "rows.csv").exists():
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    first = rows_of(cut)
    assert len(first) == 1

    process = command(*SMALL, "--out", cut)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    rows = rows_of(cut)
    # The finished row was not made again, and the results are those of the uninterrupted twin. The
    # numbers are equal to the last digit: same program, same inputs, same number of threads.
    assert rows[0] == first[0]
    timing = ("seconds", "seconds_per_step")
    strip = [{k: v for k, v in row.items() if k not in timing} for row in rows]
    twin_rows = [{k: v for k, v in row.items() if k not in timing} for row in rows_of(twin)]
    assert sorted(strip, key=str) == sorted(twin_rows, key=str)
    assert Image.open(cut / "figure.png").size[0] > 800


@pytest.mark.slow
def test_the_claimed_columns_are_filled(tmp_path):
    settings = fig3.SCALES["smoke"]
    dataset = fig3.data.load("digits")
    scheme = schemes.get("fixup")
    program = fig3.make_program(settings, dataset, 10, scheme)
    made = []
    row = fig3.run(settings, program, scheme, 0, lambda step, metrics: made.append(step))
    assert tuple(row) == fig3.COLUMNS
    assert made == list(range(1, settings.steps + 1))
    assert row["branches"] == 3 and row["status"] == "finished"
    # Fixup's head is zero, so that the first loss is ln 10 but for float32's rounding.
    assert row["first_loss"] == pytest.approx(2.302585, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--depths", 11), "depth=11 found; a WRN-n-k has n = 6N + 4 layers"),
        (("--depths", 10, 10), "expected no repetition"),
        (("--schemes", "fixupp"), "did you mean 'fixup'?"),
        (("--seeds", -1), "expected 0 <= seed"),
        (("--steps", -3), "--steps -3 found; expected at least 1"),
        (("--workers", -1), "--workers -1 found; expected at least 1"),
        (("--out", Path("")), "--out names no folder"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence):
    fields = {arguments[0][2:]: arguments[1] if arguments[0] in SINGLE else arguments[1:]}
    with pytest.raises(SystemExit) as refused:
        fig3.resolve(fig3.Command(scale="smoke", **fields))
    assert sentence in str(refused.value)


def test_a_missing_data_set_is_refused_before_anything_is_made(tmp_path):
    out = tmp_path / "out"
    process = command("--scale", "paper", "--data-dir", tmp_path / "nothing", "--out", out)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "cifar10" in errors and "download_and_prepare" in errors
    assert "Traceback" not in errors
    assert not out.exists()


@pytest.fixture
def signals():
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def test_a_run_that_raises_does_not_take_the_others_with_it(tmp_path, monkeypatch, signals, capsys):
    def run(settings, program, scheme, seed, on_step):
        if scheme.name in failing:
            raise RuntimeError("out of memory [tf-allocator] in [/device:GPU:0]")
        made = dict.fromkeys(fig3.COLUMNS, 0.5)
        return made | {
            "scheme": scheme.name, "title": scheme.title, "seed": seed, "depth": 10,
            "status": "finished",
        }  # fmt: skip

    monkeypatch.setattr(fig3, "run", run)
    command = fig3.Command(
        scale="smoke", depths=(10,), schemes=("fixup", "sqrt_half"), out=tmp_path / "out"
    )
    failing = ("fixup",)
    assert fig3.main(command) == 1
    shown = capsys.readouterr().out
    assert "failed with RuntimeError: out of memory [tf-allocator] in [/device:GPU:0]" in shown
    assert "[2/2]" in shown
    assert "RuntimeError" in (tmp_path / "out" / "failures.txt").read_text()
    assert [row["scheme"] for row in rows_of(tmp_path / "out")] == ["sqrt_half"]

    failing = ()
    gc.collect()  # ends the first start's hold on the folder, as the end of its process would
    assert fig3.main(command) == 0
    assert not (tmp_path / "out" / "failures.txt").exists()
    assert len(rows_of(tmp_path / "out")) == 2
    gc.collect()
    assert fig3.main(command) == 0
    assert "All 2 runs are there already." in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_at_once_with_one_sentence(tmp_path, number):
    process = command(*SMALL, "--out", tmp_path / "out")
    for line in process.stdout:
        if "results in" in line:  # the handlers are there
            break
    time.sleep(0.5)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "the same command makes what is missing" in errors
    assert "Traceback" not in errors


def test_jobs_share_a_program_by_anatomy_and_skip_what_is_there(tmp_path):
    settings = fig3.SCALES["smoke"]

    class Folder:
        def has(self, **key):
            return key["depth"] == 10

    jobs = grid.jobs_of(fig3.points(settings), Folder())
    assert {point.key["depth"] for job in jobs for point in job} == {16}
    names = [[point.key["scheme"] for point in job] for job in jobs]
    together = next(job for job in names if "skipinit" in job)
    assert "alpha_one" in together
    assert sum(map(len, names)) == len(settings.schemes)


def test_the_table_shows_means_gaps_and_divergence():
    settings = fig3.Settings("digits", (10, 16), ("fixup", "alpha_one"), seeds=(0, 1))

    def row(scheme, depth, seed, accuracy, status="finished"):
        return {
            "scheme": scheme, "depth": depth, "seed": seed,
            "test_accuracy": accuracy, "status": status,
        }  # fmt: skip

    rows = [
        row("fixup", 10, 0, 0.5), row("fixup", 10, 1, 0.7), row("fixup", 16, 0, 0.9),
        row("alpha_one", 10, 0, "nan", "diverged"),
    ]  # fmt: skip
    lines = fig3.table(rows, settings).splitlines()
    assert lines[1].split() == ["Fixup", "60.0", "90.0"]
    assert lines[2].split() == ["α", "=", "1", "(1", "diverged)", "-"]
