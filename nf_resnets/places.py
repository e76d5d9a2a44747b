"""Output paths, tried before anything is computed for them; files held, read and written whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path


def try_folder(path: str | os.PathLike[str]) -> Path:
    """Expands ``~``, makes the folder where it is missing, and writes a trial file in it."""
    folder = Path(path).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(bytes(1 << 14))  # more than a file system keeps beside its folders
        file.flush()
    return folder


def try_file(path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Expands ``~``, and tries whether a file can be written there."""
    file = Path(path).expanduser()
    if os.path.lexists(file) and not file.is_file():
        raise OSError(f"{file} is a folder, a broken link or no file; expected a file name.")
    if file.exists() and not overwrite:
        raise FileExistsError(f"{file} is there already; expected a new name, or overwrite.")
    try_folder(file.parent)
    return file


def write_whole(path: Path, data: bytes, *, overwrite: bool) -> None:
    """Writes a file whole or not at all: beside it first, then under its name."""
    path = try_file(path, overwrite=overwrite)
    part = path.with_name(f".part-{uuid.uuid4().hex}")
    try:
        with open(part, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def held(path: Path) -> Iterator[int]:
    """Opens a file and holds it until the block, or the process, ends.

    Raises:
      BlockingIOError: if another process holds the file.
      OSError: if it is a link, or cannot be opened.
    """
    if path.is_symlink() or (path.exists() and path.stat().st_nlink > 1):
        raise OSError(f"{path} is a link; expected a file that only this program has.")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    finally:
        os.close(descriptor)


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Reads a file; a pipe or a device, which may never end, is refused."""
    file = Path(path).expanduser()
    if file.exists() and not file.is_file():
        raise OSError(f"{file} is a folder or no regular file; expected a file.")
    return file.read_bytes()
