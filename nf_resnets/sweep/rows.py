"""The results of a sweep: files of JSON lines to which processes append; a key counts once.

Every process has a file of its own, which ``pandas.read_json(path, lines=True)`` reads as well. The
last field of a line is the CRC of the others. A line that was cut by a kill, or damaged later, is
passed over, and its run is made again, with the same numbers.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nf_resnets.places import held

NESTED = ("history", "measures", "resolved", "traceback", "made", "data")
"""What is no column of a table: lists, mappings and long texts."""

FAILED = ("failed", "oom")
"""The states of runs that raised, or ran out of memory."""

RESULTS = (
    *NESTED, "key", "program", "state", "message", "steps_done", "seconds", "test_accuracy",
    "test_loss", "train_loss", "train_accuracy",
)  # fmt: skip
"""What a row has besides the settings of its run."""


def check_shard(shard: tuple[int, int]) -> None:
    """Refuses a part of a sweep that it does not have."""
    index, count = shard
    if not 0 <= index < count:
        raise ValueError(f"--shard {index} {count} found; expected I N with 0 <= I < N.")


class Rows:
    """The rows of a folder, where all processes of a sweep write.

    Args:
      folder: of the sweep.
      shard: which of how many parts of the sweep this process makes; its file is named by it.
      writes: whether this process writes; of those that work as one, only process 0 does.

    Attributes:
      damaged: the lines that are passed over, as ``FILE, line N``.
    """

    def __init__(
        self, folder: Path, shard: tuple[int, int] = (0, 1), *, writes: bool = True
    ) -> None:
        check_shard(shard)
        self.folder, self.shard, self._writes = folder, shard, writes
        self.path = folder / f"rows-{shard[0]}-of-{shard[1]}.jsonl"
        self.damaged: list[str] = []
        self._lock, self._file = threading.Lock(), -1
        self._over = set(self.read())

    def read(self) -> dict[str, dict[str, Any]]:
        """The rows of all processes by key: the last one, and a failure only without others."""
        by_key: dict[str, dict[str, Any]] = {}
        self.damaged = []
        for path in sorted(self.folder.glob("rows-*.jsonl")):
            for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
                text, mark, _ = line.rpartition(b',"crc":')
                if mark and line == _with_crc(text):
                    row = json.loads(text + b"}")
                    # A run that was tried again may have its row in the file of another shard.
                    other = by_key.get(row["key"], row)
                    if row["state"] not in FAILED or other["state"] in FAILED:
                        by_key[row["key"]] = row
                elif line:
                    self.damaged.append(f"{path}, line {number}")
        return by_key

    @contextlib.contextmanager
    def open(self) -> Iterator[Rows]:
        """Holds this process's file while the block appends to it.

        Raises:
          OSError: if another process holds it, the folder has rows of other shards, or the file
            cannot be written.
        """
        if not self._writes:
            yield self
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        index, count = self.shard
        for path in self.folder.glob("rows-*.jsonl"):
            match = re.fullmatch(r"rows-\d+-of-(\d+)", path.stem)
            if match is not None and int(match[1]) != count:
                raise OSError(
                    f"{path} is of {match[1]} shards, and --shard {index} {count} found; expected "
                    "the same number of shards in one folder."
                )
        with contextlib.ExitStack() as stack:
            try:
                self._file = stack.enter_context(held(self.path))
            except BlockingIOError:
                raise OSError(
                    f"another process is writing {self.path}; wait for it, or choose another "
                    "folder with --out."
                ) from None
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                os.pwrite(self._file, b"\n", size)  # after a line that was cut
            self._over = set(self.read())  # what another process wrote before it let go
            try:
                yield self
            finally:
                self._file = -1  # a number that another file may get

    def keys(self) -> list[str]:
        """The keys of the runs that are over."""
        return sorted(self._over)

    def follow(self, keys: Iterable[str]) -> None:
        """Takes just these runs to be over: those that process 0 knows."""
        self._over = set(keys)

    def retry(self) -> None:
        """Lets runs be made again that failed or ran out of memory."""
        rows = self.read().items()
        self._over = {key for key, row in rows if row["state"] not in FAILED}

    def __contains__(self, key: str) -> bool:
        return key in self._over

    def add(self, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Appends rows of runs that are not over; returns them once on disk, or raises OSError."""
        with self._lock:
            new = [row for row in rows if row["key"] not in self._over]
            if new and self._writes:
                texts = [json.dumps(plain(row), separators=(",", ":"))[:-1].encode() for row in new]
                self._append(b"".join(_with_crc(text) + b"\n" for text in texts))
            self._over |= {row["key"] for row in new}
            return new

    def _append(self, lines: bytes) -> None:
        """Writes lines, all or none, to the file that has the name."""
        there = os.fstat(self._file)
        try:
            if not os.path.samestat(there, os.stat(self.path)):
                raise OSError("another file is in its place")
            made = 0
            while made < len(lines):
                made += os.pwrite(self._file, lines[made:], there.st_size + made)
            os.fsync(self._file)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, there.st_size)  # half a line would damage the next one
            raise OSError(f"{self.path} cannot be written: {error.strerror or error}.") from error


def _with_crc(text: bytes) -> bytes:
    """A line, from the text of a row but for its closing brace."""
    return b'%b,"crc":"%08x"}' % (text, zlib.crc32(text))


def plain(value: Any) -> Any:
    """A value in JSON's terms: arrays are lists; None stands for what is not finite."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """What is a cell of a table, for spreadsheets and pandas."""
    cells = {name: x for name, x in row.items() if name not in NESTED}
    return {name: str(x).lower() if isinstance(x, bool) else x for name, x in cells.items()}
