"""Several processes: joined, values broadcast from process 0, whole arrays on each.

When a process dies, a collective that waits for it raises at once, and a process outside of one is
ended by JAX (SIGABRT) after the heartbeat timeout, or at once if process 0 died.
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import pickle
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


def initialize(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    **options: Any,
) -> None:
    """Joins this process with the others of a run; a program calls it first.

    A Cloud TPU needs no arguments. Elsewhere every process is started with the same first two
    arguments and its own index; without arguments it stays alone. A second call does nothing. JAX's
    preemption service is turned off, since it would swallow SIGTERM.

    Args:
      coordinator: ``HOST:PORT`` of process 0, as the others reach it; any free port.
      num_processes: how many processes there are.
      process_id: the index of this one, from 0.
      **options: of ``jax.distributed.initialize``.

    Raises:
      ValueError: by JAX, if only some of the three are given.
      OSError: if JAX cannot join the processes; it may also end this one by SIGABRT.
    """
    is_alone = (coordinator, num_processes, process_id) == (None, None, None)
    if jax.distributed.is_initialized() or (is_alone and not _on_a_tpu()):
        return
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(coordinator, num_processes, process_id, **options)
    except jax.errors.JaxRuntimeError as error:
        raise OSError(f"the processes of {coordinator} cannot be joined: {error}.") from None
    except ValueError:
        # A TPU outside a pod: JAX asks for the coordinator that it could not find.
        if not is_alone:
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
    """Gives process 0's value to every process; all call it in the order of their collectives."""
    if jax.process_count() == 1:
        return value
    content = pickle.dumps(value) if is_process_zero() else b""
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(content))))
    # A power of two, so that messages of all lengths compile a handful of programs.
    buffer = np.zeros(1 << (length - 1).bit_length(), np.uint8)
    buffer[: len(content)] = np.frombuffer(content, np.uint8)
    whole = np.asarray(multihost_utils.broadcast_one_to_all(buffer), np.uint8)
    return pickle.loads(whole[:length].tobytes())


def any_process(flag: bool) -> bool:
    """Whether the flag is set on any process; all processes call it and get the same answer."""
    if jax.process_count() == 1:
        return bool(flag)
    return bool(multihost_utils.process_allgather(np.array(flag, np.uint8)).any())


def gather(tree: Any) -> Any:
    """Copies a tree of arrays to the host, whole on every process; all processes call it.

    The NumPy arrays share no memory with the devices: the arrays may be donated.
    """

    def whole(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array) and not (
            leaf.is_fully_addressable or leaf.is_fully_replicated
        ):
            return multihost_utils.process_allgather(leaf, tiled=True)
        return leaf

    return jax.tree.map(np.array, jax.device_get(jax.tree.map(whole, tree)))


@contextlib.contextmanager
def abort_on_error() -> Iterator[None]:
    """Ends this process at once, with exit code 1, if the block raises, so that the others notice.

    It would otherwise wait for the others as it leaves, while they wait for it in a collective.
    ``SystemExit`` passes, since all processes agree on it; a process alone raises as usual.
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
