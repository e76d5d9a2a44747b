"""Copies a results folder that is being written, so that each file in the copy is whole.

Usage: python snapshot.py FOLDER COPY

SQLite files are copied by SQLite's own backup, since a file and its log, copied one after the
other, need not fit together; their names are printed, one a line. They come last, and so are never
older than the checkpoints. Other files are written once or replaced whole, and are linked; those
that vanish meanwhile are left out.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import sys
from pathlib import Path

SQLITE = b"SQLite format 3\0"
BESIDE = ("-wal", "-shm", "-journal")


def is_sqlite(file: Path) -> bool:
    try:
        with open(file, "rb") as stream:
            return stream.read(len(SQLITE)) == SQLITE
    except OSError:
        return False


def link(file: Path, target: Path) -> None:
    try:
        os.link(file, target)
    except FileNotFoundError:
        return
    except OSError:  # another file system
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(file, target)


def snapshot(folder: Path, copy: Path) -> list[Path]:
    """Makes the copy anew; returns the SQLite files' names in it."""
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    ledgers = [file for file in files if is_sqlite(file)]
    beside = {Path(f"{ledger}{suffix}") for ledger in ledgers for suffix in BESIDE}
    for file in files:
        (copy / file.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
        if file not in beside and file not in ledgers:
            link(file, copy / file.relative_to(folder))
    for ledger in ledgers:
        with (
            contextlib.closing(sqlite3.connect(ledger, timeout=60)) as source,
            contextlib.closing(sqlite3.connect(copy / ledger.relative_to(folder))) as target,
        ):
            source.backup(target)
    return [ledger.relative_to(folder) for ledger in ledgers]


if __name__ == "__main__":
    if len(sys.argv) != 3 or not Path(sys.argv[1]).is_dir():
        raise SystemExit("usage: python snapshot.py FOLDER COPY, where FOLDER is there.")
    print(*snapshot(Path(sys.argv[1]), Path(sys.argv[2])), sep="\n")
