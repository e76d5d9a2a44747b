"""A lock on a folder, which the system releases when the process ends, however it ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from pathlib import Path
from typing import IO

from nf_resnets import places

LOCK = "lock"
"""The file in the folder that is locked; it names the process that holds it, for people to read."""

READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}
"""What the system answers where nothing can be written."""


class HeldError(Exception):
    """Another process holds the folder; one sentence says which."""


class FolderLock:
    """A lock that belongs to the process and not to its forks; all threads of a process share it.

    Attributes:
      thread: a lock among the threads of this process.
    """

    def __init__(self, folder: Path, inode: tuple[int, int]) -> None:
        self.inode = inode
        self.process = os.getpid()
        self.thread = threading.RLock()
        self.users = 0
        self.file: IO[bytes] | None = None
        try:
            file = places.open_own(folder / LOCK)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            return
        try:
            _lock(file, folder)
        except BaseException:
            file.close()
            raise
        self.file = file

    @property
    def writable(self) -> bool:
        """Whether the folder can be written; a read-only one needs no lock."""
        return self.file is not None

    def holds(self, folder: Path) -> bool:
        """Whether this process still holds the folder that is there now."""
        try:
            here = self.inode == _inode(folder) and self.process == os.getpid()
            return here and self.writable
        except OSError:
            return False


# Closing any descriptor of a file releases all locks that this process has on it. So there is one
# descriptor a folder, and the guard keeps it open while another thread takes the lock.
_LOCKS: dict[tuple[int, int], FolderLock] = {}
_GUARD = threading.RLock()


def acquire(folder: Path) -> FolderLock:
    """Locks a folder for this process.

    Raises:
      HeldError: if another process holds it.
      OSError: if there is no such folder.
    """
    with _GUARD:
        inode = _inode(folder)
        lock = _LOCKS.get(inode)
        if lock is None or not lock.holds(folder):
            lock = _LOCKS[inode] = FolderLock(folder, inode)
        lock.users += 1
        return lock


def release(lock: FolderLock) -> None:
    """Gives up the lock, once all that acquired it in this process have released it."""
    with _GUARD:
        lock.users -= 1
        if lock.users == 0:
            if _LOCKS.get(lock.inode) is lock:
                del _LOCKS[lock.inode]
            if lock.file is not None:
                lock.file.close()


def _lock(file: IO[bytes], folder: Path) -> None:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        file.seek(0)
        holder = file.read(100).decode(errors="replace").strip() or "another process"
        raise HeldError(
            f"the checkpoints in {folder} are in use by {holder}; wait for it to end, or end it."
        ) from None
    if not os.path.samestat(os.fstat(file.fileno()), os.stat(folder / LOCK)):
        raise HeldError(f"the checkpoints in {folder} are just being deleted; try again.")
    # On a full disk the name of the holder is left out.
    with contextlib.suppress(OSError):
        file.truncate(0)
        file.write(f"process {os.getpid()} on {os.uname().nodename}\n".encode())


def _inode(folder: Path) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


__all__ = ["LOCK", "READ_ONLY", "FolderLock", "HeldError", "acquire", "release"]
