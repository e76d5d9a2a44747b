"""Two processes that work as one: runs spread over all devices, or one run over all of them."""

from __future__ import annotations

import csv
import signal

import jax
import pytest
import tyro

from nf_resnets.cli.sweep import Sweep
from tests.training.pair import Pair

GRID = ("--grid", "peak_lr=2^-4:2^-2", "scheme=fixup", "--model", "wrn-10-1",
        "--stem-channels", "2")  # fmt: skip


def start(out, *arguments):
    """Starts the two; the second one has a folder of its own, as on another machine."""

    def command(port, index):
        place = out if index == 0 else out.with_name(f"{out.name}-other")
        words = ("--coordinator", f"127.0.0.1:{port}", "--num-processes", 2, "--process-id", index)
        return ("nf_resnets", "sweep", *GRID, *arguments, "--out", place, *words)

    return Pair(out.parent, command, devices=2)


def rows(out):
    with open(out / "rows.csv", newline="") as stream:
        return {row["key"]: row for row in csv.DictReader(stream)}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "out"
    first = jax.devices()[:1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "devices", lambda *_: first)
        assert tyro.cli(Sweep, args=[*GRID, "--epochs", "2", "--out", str(out)])() == 0
    return rows(out)


@pytest.mark.slow
@pytest.mark.parametrize("devices_per_run", [1, 4])
def test_the_numbers_are_those_of_one_process(devices_per_run, alone, tmp_path):
    out = tmp_path / "out"
    with start(out, "--epochs", "2", "--devices-per-run", devices_per_run) as two:
        assert two.codes() == [0, 0], two.said()
    texts = two.said()
    assert "3 finished" in texts[0]
    assert "finished" not in texts[1]  # one tells, and one writes
    assert not (tmp_path / "out-other").exists()
    found = rows(out)
    assert set(found) == set(alone)
    for key, row in found.items():
        assert (row["state"], row["steps_done"]) == ("finished", "44")
        for name in ("test_accuracy", "test_loss", "train_loss"):
            # A run on one device is the same run. One over four sums float32 in another order,
            # carried through 44 steps.
            allowed = 1e-6 if devices_per_run == 1 else 1e-2
            assert float(row[name]) == pytest.approx(float(alone[key][name]), rel=allowed)


def saved(out):
    """The newest step of the wave that has begun; all three runs are in it."""
    return max((int(path.stem) for path in (out / "checkpoints").glob("*/*.npz")), default=0)


@pytest.mark.slow  # two starts of two processes
def test_a_signal_to_one_stops_both_and_they_go_on_where_they_stood(tmp_path):
    out, step = tmp_path / "out", 0
    for told in (1, 0):  # the one that does not lead, and the one that does
        with start(out, "--epochs", "300", "--save-seconds", "0") as two:
            two.until(lambda: saved(out) > step)  # noqa: B023
            two.processes[told].send_signal(signal.SIGTERM)
            assert two.codes() == [143, 143], two.said()
        assert "goes on" in two.said()[0]
        step = saved(out)
