"""Who a worker is: a process on a machine, which others on that machine can know to be dead."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import secrets
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path

__all__ = ["Worker", "is_dead", "this_worker"]


@dataclasses.dataclass(frozen=True)
class Worker:
    """A process that claims runs.

    Attributes:
      id: no two workers ever have the same.
      host: the machine's name.
      boot: tells one start of a machine, and one container on it, from all others.
      pid: number of the process.
      start: when the process started, in clock ticks since the boot; None where that is unknown.
      device: what the runs run on.
      versions: JSON of the versions of what computes.
    """

    id: str
    host: str
    boot: str
    pid: int
    start: int | None
    device: str
    versions: str


def this_worker(device: str, versions: Mapping[str, str]) -> Worker:
    """A worker for the present process.

    Args:
      device: what the runs run on, as `jax.devices()[0].device_kind` says it.
      versions: a version for each name.

    Returns:
      A worker with an identity of its own: two calls make two workers.
    """
    host, pid = socket.gethostname(), os.getpid()
    return Worker(
        id=f"{host}-{pid}-{secrets.token_hex(4)}",
        host=host,
        boot=_boot(),
        pid=pid,
        start=_start(pid)[0],
        device=device,
        versions=json.dumps(dict(versions), sort_keys=True),
    )


@functools.cache
def _boot() -> str:
    """What tells this machine since its boot, and this container, from all others.

    Host names repeat between containers, and so do the numbers of processes, which belong to a
    namespace; its inode is one of the boot.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        # No Linux: the hardware address, and no containers.
        return f"{uuid.getnode():012x}"


def _start(pid: int) -> tuple[int | None, str]:
    """When a process started, and its state; None and "" where the system does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None, ""
    # The name of the program, in parentheses, may itself hold spaces and parentheses.
    fields = stat.rpartition(")")[2].split()
    return int(fields[19]), fields[0]


def is_dead(worker: Worker) -> bool:
    """Whether a worker is known to run no more, which only a process of its own machine can know.

    Args:
      worker: any worker.

    Returns:
      True if it ran on this machine, since its last boot, and is gone; False if it lives or
      nothing is known about it.
    """
    if (worker.host, worker.boot) != (socket.gethostname(), _boot()):
        return False
    try:
        os.kill(worker.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        # It is there, and another user's.
        pass
    start, state = _start(worker.pid)
    # Z and X: it has ended, and its parent has not asked how.
    return state in ("Z", "X") or (
        start is not None and worker.start is not None and start != worker.start
    )
