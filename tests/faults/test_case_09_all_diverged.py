"""Case 9: all runs diverge. The sweep ends, and says that there is no best rate."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from nf_resnets.sweep.select import optima
from tests.faults import sweeping
from tests.faults.sweeping import ROOT

CASE = "9 all runs of a sweep diverge"
AXES = ["scheme=fixup", "batch_size=64", "peak_lr=2^20,2^30", "seed=0:2"]


# Rates that no network stands, and runs that diverge as they are told.
NETWORKS = pytest.param(None, marks=pytest.mark.slow, id="networks")


@pytest.mark.parametrize("counting", [{"diverges_at": 30}, NETWORKS])
def test_there_is_no_best(tmp_path, record_property, counting):
    process = sweeping.run(tmp_path, AXES, workers=1, counting=counting)
    record_property("tries", 4)
    (left,) = process.events("left")
    assert {state: n for state, n in left["counts"].items() if n} == {"diverged": 4}
    with sweeping.opened(tmp_path) as book:
        rows = book.rows()
    for metric in ("test_accuracy", "train_loss"):
        (found,) = optima(rows, metric=metric)
        assert found.best is None and found.at_edge is None
        assert [rate.diverged for rate in found.rates] == [2, 2]
    assert all("at step" in row["message"] for row in rows)
    assert sweeping.left_behind(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("rates", ["2^20,2^30", "2^-3,2^30"])
def test_the_command_says_so(tmp_path, rates):
    """Negative control: not when one has finished."""
    done = subprocess.run(
        [
            sys.executable, "-m", "nf_resnets.sweep", "--grid", f"peak_lr={rates}",
            "--model", "wrn-10-1", "--stem-channels", "4", "--epochs", "2", "--extend", "2",
            "--out", str(tmp_path / "out"),
        ],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=1"},
        capture_output=True,
        text=True,
        timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert ("All runs diverged" in done.stdout) == (rates == "2^20,2^30")
