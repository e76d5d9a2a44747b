"""Where results go and files come from: a path is expanded and tried, or refused, in one place."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

# Longer than any name that a command writes below its folder, those of checkpoints included.
LONGEST_BELOW = 120


_KINDS = {
    stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"
}  # fmt: skip


class PlaceError(ValueError):
    """A path that cannot be written or read as it is meant to; one sentence says why."""


def expanded(path: str | os.PathLike[str], option: str = "") -> Path:
    """Puts the home folder in place of a leading ``~`` or ``~name``.

    Args:
      path: a path.
      option: what the user called it, such as ``--out``.

    Raises:
      PlaceError: if there is no such home folder, or the path is none.

    Example:
      >>> expanded("~/runs") == Path.home() / "runs"
      True
    """
    if not isinstance(path, str | os.PathLike):
        raise PlaceError(f"{option or 'path'} is a {type(path).__name__}; expected a path.")
    text = os.fspath(path)
    if not text or "\0" in text:
        raise PlaceError(f"{option} {text!r} found; expected a path.".lstrip())
    home, *below = Path(text).parts or (".",)
    if not home.startswith("~"):
        return Path(text)
    try:
        folder = Path(home).expanduser()
    except RuntimeError:
        folder = Path(home)
    if not folder.is_dir():
        raise PlaceError(f"{option} {text}: {home} is nobody's home folder here.".lstrip())
    return folder.joinpath(*below)


def try_folder(path: str | os.PathLike[str], option: str = "") -> Path:
    """Makes a folder if it is missing, and writes, syncs, renames and removes a file in it.

    Args:
      path: of the folder; ``~`` is expanded.
      option: what the user called it.

    Returns:
      The folder, expanded.

    Raises:
      PlaceError: if it cannot be made or written to; what was made of it is removed.
    """
    path = expanded(path, option)
    with (
        _refusing(path, option, "a folder that can be made and written to"),
        _created(path, keep=True),
    ):
        _try(path, LONGEST_BELOW)
    return path


def try_file(
    path: str | os.PathLike[str], option: str = "", *, overwrite: bool = False, ending: str = ""
) -> Path:
    """Refuses the path of a file that cannot be written there; leaves everything as it was.

    A file of as long a name is written, synced, renamed and removed in its folder, which is made
    for that if it is missing.

    Args:
      path: of the file; ``~`` is expanded.
      option: what the user called it.
      overwrite: whether a file that is there may be replaced.
      ending: what else is written beside it under its name with that ending.

    Returns:
      The path, expanded.

    Raises:
      PlaceError: if something is there, or it cannot be written.
    """
    path = expanded(path, option)
    refuse_taken(path, option, overwrite=overwrite)
    with _refusing(path, option), _created(path.parent, keep=False):
        _try(path.parent, len(os.fsencode(path.name + ending)))
    return path


def refuse_taken(path: Path, option: str = "", *, overwrite: bool = False) -> None:
    """Refuses a path where something is: anything but a file, and a file not to be overwritten.

    Raises:
      PlaceError: that says what is there.
    """
    with _refusing(path, option):
        there = kind(path)
    what = f"{option} {path}".lstrip()
    if there not in (None, "file", "link to nothing"):
        raise PlaceError(f"{what} is a {there}; expected the name of a file.")
    if there is not None and not overwrite:
        raise PlaceError(
            f"{what} is there already, and is left as it is; choose another name, or ask for it to "
            "be overwritten."
        )


def write_whole(path: Path, data: bytes, *, overwrite: bool) -> None:
    """Writes a file whole or not at all: beside it first, then under its name.

    Raises:
      PlaceError: if it is there already and must not be overwritten, or cannot be written.
    """
    refuse_taken(path, overwrite=overwrite)
    # Of a name that does not grow with the file's, which may be as long as names can be.
    part = path.with_name(f".part-{uuid.uuid4().hex}")
    with _refusing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(part, "xb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            _put_in_place(part, path, overwrite=overwrite)
        finally:
            part.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _put_in_place(part: Path, path: Path, *, overwrite: bool) -> None:
    if not overwrite:
        # A link, unlike a rename, does not replace what another process has put there meanwhile.
        try:
            os.link(part, path)
            return
        except FileExistsError:
            refuse_taken(path)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
                raise
            refuse_taken(path)
    os.replace(part, path)


def kind(path: Path) -> str | None:
    """What is there: ``"file"``, ``"folder"``, ``"pipe"``, ``"device"``, ...; None for nothing."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        # A link that leads nowhere is a name that somebody has taken, too.
        return "link to nothing" if os.path.lexists(path) else None
    return _KINDS.get(stat.S_IFMT(mode), "device")


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Reads a file; see :func:`open_file`."""
    with open_file(path) as stream:
        return stream.read()


@contextlib.contextmanager
def open_file(path: str | os.PathLike[str]) -> Iterator[io.BufferedReader]:
    """Opens a file to read; a pipe or a device, which may never end, is refused.

    Raises:
      PlaceError: if it is neither a file nor a folder.
      OSError: if it cannot be opened, a folder among others.
    """
    # Without O_NONBLOCK a pipe that nobody writes to would hold this process for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        raise PlaceError(f"{path} is a {_KINDS.get(stat.S_IFMT(mode), 'device')}; expected a file.")
    with os.fdopen(descriptor, "rb") as stream:
        yield stream


def open_own(path: str | os.PathLike[str]) -> io.FileIO:
    """Opens a file of the program's own, such as a lock, to read and write; made where missing.

    Raises:
      PlaceError: if it is a link, whose other end is somebody else's, or anything but a file.
      OSError: if it cannot be opened.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = io.FileIO(os.open(path, flags, 0o666), "r+")
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    else:
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode) and status.st_nlink < 2:
            return file
        file.close()
    raise PlaceError(f"{path} is a link, or no file; expected a file that only this program has.")


@contextlib.contextmanager
def _refusing(
    path: Path, option: str = "", expected: str = "a file that can be made"
) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            reason = "it does not lie in a folder"
        what = f"{option} {path}".lstrip()
        raise PlaceError(f"{what} cannot be written: {reason}; expected {expected}.") from None


@contextlib.contextmanager
def _created(folder: Path, *, keep: bool) -> Iterator[None]:
    """Makes a folder and its parents; those that were missing go again, but for a kept one."""
    missing = [each for each in (folder, *folder.parents) if not os.path.lexists(each)]
    done = False
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
        done = True
    finally:
        if not (done and keep):
            # Another process may have put something there meanwhile.
            with contextlib.suppress(OSError):
                for each in missing:
                    each.rmdir()


def _try(folder: Path, length: int) -> None:
    """Writes, syncs, renames and removes a file; its second name has as many bytes as asked for."""
    descriptor, first = tempfile.mkstemp(prefix=".trial-", dir=folder)
    try:
        try:
            # More than a file system keeps beside its folders.
            os.write(descriptor, bytes(1 << 14))
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        second = first + "x" * (length - len(Path(first).name))
        os.rename(first, second)
        first = second
    finally:
        os.unlink(first)


__all__ = [
    "PlaceError", "expanded", "kind", "open_file", "open_own", "read_file", "refuse_taken",
    "try_file", "try_folder", "write_whole",
]  # fmt: skip
