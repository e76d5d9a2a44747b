"""A sweep on two nodes of Ray: a killed worker's task and a removed node's go on elsewhere."""

import os
import signal
import subprocess
import sys
import time

import pytest

from nf_resnets.sweep import Rows

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install ray")
psutil = pytest.importorskip("psutil")

GRID = ["--grid", "peak_lr=2^-4:2^-1", "seed=0,1", "--model", "wrn-10-1", "--stem-channels", "2"]
SWEEP = [sys.executable, "-m", "nf_resnets", "sweep", *GRID, "--steps", "220"]
RESULTS = ("state", "test_accuracy", "test_loss", "train_loss", "steps_done")


def environment():
    """That of a user: one device, programs as users compile them."""
    left_out = ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS", "RAY_ADDRESS")
    return {name: value for name, value in os.environ.items() if name not in left_out}


def results(folder):
    """What was measured of each run, by its key."""
    rows = Rows(folder).read()
    return {key: [row[name] for name in RESULTS] for key, row in rows.items()}


@pytest.fixture
def cluster(monkeypatch):
    from ray.cluster_utils import Cluster

    for name in ("XLA_FLAGS", "JAX_DISABLE_MOST_OPTIMIZATIONS"):
        monkeypatch.delenv(name, raising=False)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    yield made
    made.shutdown()


def wait_for_workers(count):
    """The processes of the tasks at work, once so many have begun to train."""
    until = time.monotonic() + 200
    while time.monotonic() < until:
        found = [
            process for process in psutil.process_iter(["cmdline"])
            if "make_shard" in " ".join(process.info["cmdline"] or ())
        ]  # fmt: skip
        if len(found) >= count:
            return found
        time.sleep(0.2)
    raise AssertionError(f"no {count} tasks of Ray at work")


@pytest.mark.slow
def test_two_nodes_make_what_one_machine_makes_through_kills(cluster, tmp_path):
    alone = tmp_path / "alone"
    subprocess.run([*SWEEP, "--out", alone], env=environment(), check=True, timeout=600)
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    options = ["--ray", cluster.address, "--save-seconds", "1", "--out", tmp_path / "ray"]
    sweep = subprocess.Popen([*SWEEP, *options], env=environment())
    try:
        first, *_ = wait_for_workers(2)
        time.sleep(10)
        os.kill(first.pid, signal.SIGKILL)
        time.sleep(20)
        cluster.remove_node(nodes[1])
        cluster.add_node(num_cpus=1)
        assert sweep.wait(timeout=900) == 0
    finally:
        sweep.kill()
    found = results(tmp_path / "ray")
    assert len(found) == 8 and found == results(alone)
