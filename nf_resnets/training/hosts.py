"""Several processes: joined, values broadcast from process 0, whole arrays on each.

When a process dies (measured with two CPU processes over gloo, JAX 0.10.2 and 0.12), a collective
that waits for it raises at once. A process outside a collective is ended by JAX (SIGABRT) after the
heartbeat timeout, or at once if process 0 died. A process that raises waits for the others as it
leaves, and they wait for it, until ``shutdown_seconds`` are over; :func:`abort_on_error` ends it at
once.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import importlib.util
import json
import math
import os
import re
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def initialize(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    heartbeat_seconds: int = 100,
    shutdown_seconds: int = 300,
) -> None:
    """Joins this process with the others of a run; a program calls it first.

    A Cloud TPU needs no arguments. Elsewhere every process is started with the same first two
    arguments and its own index; without arguments it stays alone. A second call does nothing. JAX's
    preemption service is turned off, since it would swallow SIGTERM.

    Args:
      coordinator: ``HOST:PORT`` of process 0, as the others reach it; any free port.
      num_processes: how many processes there are.
      process_id: the index of this one, from 0.
      heartbeat_seconds: after so long without a heartbeat a process counts as dead, and the others
        are ended.
      shutdown_seconds: how long a process that has finished waits for the others.

    Raises:
      ValueError: if only some of the three are given, one is out of its range, or this process is
        already joined as another.
      OSError: if JAX cannot join the processes. (Where the coordinator does not answer, or the
        others do not come, it may end the process by SIGABRT.)
      RuntimeError: if a device has been used before.

    Example:
      >>> initialize("HOST:1234", 4, 0)  # of four processes the first  # doctest: +SKIP
      >>> is_process_zero()
      True
    """
    given = [value is not None for value in (coordinator, num_processes, process_id)]
    if any(given) and not all(given):
        raise ValueError(
            f"coordinator={coordinator!r}, num_processes={num_processes}, process_id={process_id} "
            "found; expected all three, or none on a Cloud TPU and for a process by itself."
        )
    if coordinator is not None and num_processes is not None and process_id is not None:
        if not 0 <= process_id < num_processes:
            raise ValueError(
                f"process_id={process_id} of num_processes={num_processes} found; expected "
                "0 <= process_id < num_processes."
            )
        if not re.fullmatch(r".+:\d{1,5}", coordinator, re.A):
            raise ValueError(
                f"coordinator={coordinator!r} found; expected HOST:PORT, such as 10.0.0.1:1234."
            )
        if jax.distributed.is_initialized():
            found = (jax.process_index(), jax.process_count())
            if found != (process_id, num_processes):
                raise ValueError(
                    f"process_id={process_id} of num_processes={num_processes} found, but this "
                    f"process is already joined as {found[0]} of {found[1]}."
                )
            return
    elif jax.distributed.is_initialized() or not _on_a_tpu():
        return

    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            heartbeat_timeout_seconds=heartbeat_seconds,
            shutdown_timeout_seconds=shutdown_seconds,
        )
    except jax.errors.JaxRuntimeError as error:
        raise OSError(f"the processes of {coordinator} cannot be joined: {error}.") from None
    except RuntimeError:
        raise RuntimeError(
            "a device was used before hosts.initialize was called; expected it to be the first "
            "thing that the program does, since the devices of all processes are found once."
        ) from None
    except ValueError:
        # A TPU outside a pod: JAX asks for the coordinator that it could not find.
        if coordinator is not None:
            raise


def _on_a_tpu() -> bool:
    """Whether there are TPU chips that JAX would use, found without starting them."""
    platforms = jax.config.jax_platforms  # type: ignore[attr-defined]
    if platforms and "tpu" not in platforms.split(","):
        return False
    chips = glob.glob("/dev/accel[0-9]*") + glob.glob("/dev/vfio/[0-9]*")
    return bool(chips) and importlib.util.find_spec("libtpu") is not None


def is_process_zero() -> bool:
    """Whether this is process 0, which decides, writes and prints."""
    return jax.process_index() == 0


def broadcast(value: Any) -> Any:
    """Gives the value of process 0 to every process; those of the others are ignored.

    All processes call it, in the same order as their other collectives.

    A JSON value comes back as JSON gives it back: tuples as lists, keys as text.

    Example:
      >>> broadcast({"rate": 0.1, "shape": (2, 3)})
      {'rate': 0.1, 'shape': [2, 3]}
    """
    text = json.dumps(value).encode() if is_process_zero() else b""
    if jax.process_count() > 1:
        length = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
        # A power of two, so that messages of all lengths compile a handful of programs.
        buffer = np.zeros(1 << (length - 1).bit_length(), np.uint8)
        buffer[: len(text)] = np.frombuffer(text, np.uint8)
        whole = np.asarray(multihost_utils.broadcast_one_to_all(buffer), np.uint8)
        text = whole[:length].tobytes()
    return json.loads(text)


def broadcast_tree(found: Any, like: Any) -> Any:
    """Gives a tree of arrays of process 0 to every process, or None if it has none.

    Args:
      found: on process 0, a tree of arrays or None; ignored on the others.
      like: on every process, a tree of the same structure with shapes and dtypes.
    """
    if jax.process_count() == 1 or not broadcast(found is not None):
        return found if is_process_zero() else None

    def as_bytes(leaf: Any) -> np.ndarray:
        if is_process_zero():
            return np.frombuffer(np.asarray(leaf).tobytes(), np.uint8)
        return np.zeros(math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize, np.uint8)

    # As bytes, since JAX sums what the processes have, and -0.0 + 0 is 0.
    whole = multihost_utils.broadcast_one_to_all(
        jax.tree.map(as_bytes, found if is_process_zero() else like)
    )

    def as_before(part: Any, leaf: Any) -> np.ndarray:
        content = np.asarray(part, np.uint8).tobytes()
        return np.frombuffer(content, np.dtype(leaf.dtype)).reshape(leaf.shape)

    return found if is_process_zero() else jax.tree.map(as_before, whole, like)


def any_process(flag: bool) -> bool:
    """Whether the flag is set on any process; all processes call it and get the same answer."""
    if jax.process_count() == 1:
        return bool(flag)
    return bool(multihost_utils.process_allgather(np.array(flag, np.uint8)).any())


def gather(tree: Any) -> Any:
    """Copies a tree of arrays to the host, whole on every process.

    All processes call it where leaves are sharded over them, with trees of one structure. The NumPy
    arrays share no memory with the devices: the arrays may be donated.
    """
    leaves, structure = jax.tree.flatten(tree)
    spread: dict[Any, list[int]] = {}
    for index, leaf in enumerate(leaves):
        if isinstance(leaf, jax.Array) and not (
            leaf.is_fully_addressable or leaf.is_fully_replicated
        ):
            sharding: Any = leaf.sharding  # of a mesh
            spread.setdefault(sharding.mesh, []).append(index)
    for mesh, indices in spread.items():
        whole = _replicate(mesh)([leaves[index] for index in indices])
        for index, leaf in zip(indices, whole, strict=True):
            leaves[index] = leaf
    return jax.tree.unflatten(structure, [np.array(leaf) for leaf in jax.device_get(leaves)])


@functools.cache
def _replicate(mesh: Mesh) -> Any:
    """One program for all leaves, compiled once for a tree's shapes."""
    return jax.jit(lambda leaves: leaves, out_shardings=NamedSharding(mesh, PartitionSpec()))


@contextlib.contextmanager
def abort_on_error() -> Iterator[None]:
    """Ends this process at once if the block raises, so that the others notice.

    A process that raises would wait for the others as it leaves, while they wait for it in a
    collective. Here the traceback is printed and the exit code is 1, without outer ``finally``
    blocks and ``atexit``. ``SystemExit`` passes, since all processes agree on it; a process alone
    raises as usual.
    """
    try:
        yield
    except SystemExit:
        raise
    except BaseException:
        if not jax.distributed.is_initialized():
            raise
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


__all__ = [
    "abort_on_error", "any_process", "broadcast", "broadcast_tree", "gather", "initialize",
    "is_process_zero",
]  # fmt: skip
