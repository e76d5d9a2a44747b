"""Output paths, tried before anything is computed for them; files held, read and written whole."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


def try_folder(path: str | os.PathLike[str]) -> Path:
    """Expands ``~``, makes the folder where it is missing, and writes a trial file in it."""
    folder = Path(path).expanduser()
    if os.path.lexists(folder) and not folder.is_dir():
        raise FileExistsError(f"{folder} is no folder; expected a folder, or a new name.")
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
    """Writes a file whole or not at all, and onto the disk."""
    path = try_file(path, overwrite=overwrite)
    with whole_file(path) as new, open(new, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A file to write to, which replaces the path's at the end of the block; links are replaced.

    What is written beside it, such as a figure's SVG, replaces the file of that name.
    """
    path = Path(path)
    try:
        # In a folder of its own, where no link can lie under a name that is written to.
        with tempfile.TemporaryDirectory(
            prefix=".new-", dir=path.parent, ignore_cleanup_errors=True
        ) as folder:
            yield Path(folder, path.name)
            for each in Path(folder).iterdir():
                os.replace(each, path.with_name(each.name))
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows as a table, in which what a row lacks is empty; nothing where there are none."""
    if rows:
        columns = list(dict.fromkeys(name for row in rows for name in row))
        with whole_file(path) as new, open(new, "w", newline="") as file:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


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
