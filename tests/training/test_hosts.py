"""Several processes: joined, with values broadcast and arrays gathered, and dying.

Run by hand, as ``python -m tests.training.test_hosts PORT PROCESS CASE``, the file is one of two
processes.
"""

import signal
import sys
import time

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

# Imported before initialize: importing the library must not touch a device.
from nf_resnets import training
from nf_resnets.training import hosts
from tests.training.pair import Pair

# What process 0 says: of every kind, and of lengths that are, and are not, powers of two.
SAID = [None, {"rate": 0.1, "text": "é\n", "list": [1, [2.5, True]], "none": None}]
SAID += ["x" * length for length in (0, 254, 255, 100_000)]


def talk(process):
    """What processes tell each other, and that both have the same of it."""
    assert hosts.is_process_zero() == (process == 0)
    for value in SAID:
        found = hosts.broadcast(value if process == 0 else ["not", process, "this"])
        assert found == value and type(found) is type(value), (found, value)
    # What the others would say may be no message at all.
    assert hosts.broadcast(2 if process == 0 else object()) == 2
    assert [hosts.any_process(flag) for flag in (False, process == 1, True)] == [False, True, True]


def gather(process):
    """Leaves spread over runs and over a batch, replicated ones, local ones, of many dtypes."""
    mesh = training.make_mesh(2, 2)
    runs = {
        "kernel": np.arange(24, dtype=np.float32).reshape(4, 2, 3),
        "step": np.arange(4, dtype=np.int32),
        "half": np.arange(4).astype(jax.numpy.bfloat16),
    }
    spread = training.shard_runs(runs, mesh)
    assert not any(leaf.is_fully_addressable for leaf in jax.tree.leaves(spread))
    batch = np.arange(8.0, dtype=np.float32)
    over_all = jax.make_array_from_callback(
        batch.shape, NamedSharding(mesh, PartitionSpec(("sweep", "data"))), lambda at: batch[at]
    )
    tree = {
        "runs": spread,
        "batch": over_all,
        "whole": training.replicate(batch, mesh),
        "own": jax.numpy.full(3, process),
        "host": [np.int64(7), 0.5],
    }
    found = hosts.gather(tree)
    expected = {
        "runs": runs,
        "batch": batch,
        "whole": batch,
        "own": np.full(3, process, np.int32),
        "host": [np.array(7), np.array(0.5)],
    }
    jax.tree.map(
        lambda *leaves: np.testing.assert_array_equal(*leaves, strict=True), found, expected
    )
    # Nothing of the host's copy is the device's.
    assert all(leaf.flags.writeable for leaf in jax.tree.leaves(found))


def both(port, process):
    hosts.initialize(f"127.0.0.1:{port}", 2, process)
    hosts.initialize(f"127.0.0.1:{port}", 2, process)
    hosts.initialize()
    assert (jax.process_count(), jax.process_index()) == (2, process)
    assert (jax.device_count(), jax.local_device_count()) == (4, 2)
    talk(process)
    gather(process)


TIMEOUTS = {"heartbeat_timeout_seconds": 3, "shutdown_timeout_seconds": 60}


def joined(port, process):
    hosts.initialize(f"127.0.0.1:{port}", 2, process, **TIMEOUTS)
    hosts.broadcast("both are here")
    print("joined", flush=True)


def waits_in_a_collective(port, process):
    """The peer is killed while this one waits for its word."""
    joined(port, process)
    with hosts.abort_on_error():
        if process == 1:
            time.sleep(60)
        hosts.broadcast("never heard")


def waits_by_itself(port, process):
    """The peer is killed, and this one is in no collective."""
    joined(port, process)
    time.sleep(60)


def raises(port, process):
    """The peer raises, while this one waits for its word."""
    joined(port, process)
    with hosts.abort_on_error():
        if process == 1:
            raise ZeroDivisionError("only here")
        hosts.broadcast("never heard")


def pair(case, folder):
    command = "tests.training.test_hosts"
    return Pair(folder, lambda port, index: (command, port, index, case), devices=2)


def test_two_processes(tmp_path):
    with pair("both", tmp_path) as both:
        assert both.codes() == [0, 0], both.said()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "sent", "codes"),
    [
        # A process that is ended by JAX for a peer's death, in a collective or out of one, ends
        # long before the 60 s for which the peer, or its leaving, would be waited for.
        ("waits_in_a_collective", signal.SIGKILL, [1, -signal.SIGKILL]),
        ("waits_by_itself", signal.SIGKILL, [-signal.SIGABRT, -signal.SIGKILL]),
        # SIGTERM is not swallowed: JAX's preemption service would.
        ("waits_in_a_collective", signal.SIGTERM, [1, -signal.SIGTERM]),
        ("raises", None, [1, 1]),
    ],
)
def test_a_dying_process_ends_the_other(case, sent, codes, tmp_path):
    with pair(case, tmp_path) as two:
        if sent is not None:
            two.until(lambda: all("joined" in said for said in two.said()))
            two.processes[1].send_signal(sent)
        start = time.monotonic()
        # Where the peer leaves by itself, JAX may end the waiting process first.
        either = [codes, [-signal.SIGABRT, 1]] if case == "raises" else [codes]
        assert two.codes(60) in either, two.said()
        # 3 s of heartbeat timeout, and what two busy cores need; for the last, the imports too.
        assert time.monotonic() - start < 30
        if case == "raises":
            assert "ZeroDivisionError: only here" in two.said()[1]


def test_a_tpu_needs_no_arguments(monkeypatch):
    asked = []
    monkeypatch.setattr(hosts, "_on_a_tpu", lambda: True)
    monkeypatch.setattr(jax.config, "update", lambda *setting: asked.append(setting))
    monkeypatch.setattr(jax.distributed, "initialize", lambda *given: asked.append(given))
    hosts.initialize()
    assert asked == [("jax_enable_preemption_service", False), (None, None, None)]


CASES = {case.__name__: case for case in (both, waits_in_a_collective, waits_by_itself, raises)}

if __name__ == "__main__":
    CASES[sys.argv[3]](int(sys.argv[1]), int(sys.argv[2]))
