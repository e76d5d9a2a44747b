"""Runs a command on a machine that may vanish, and keeps a copy of its results in a bucket.

    python experiments/cloud/keep.py runs/lr-sweep /results -- python -m nf_resnets.sweep ...

A sweep needs a disk with locks and atomic renames of folders, which a mounted bucket does not have:
after a kill, no checkpoint written through an rclone mount was whole. So the command works on the
local disk. If ``/results/lr-sweep.tar`` exists, it is unpacked first. Every five minutes, and when
the command ends, the folder is packed into that file. The same line runs on every host of a slice:
only the host whose folder changes, that of process 0, writes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

SQLITE = b"SQLite format 3\0"
LOGS = ("-wal", "-shm", "-journal")


def is_sqlite(file: Path) -> bool:
    with contextlib.suppress(OSError), open(file, "rb") as stream:
        return stream.read(len(SQLITE)) == SQLITE
    return False


def pack(folder: Path, archive: Path) -> None:
    """Packs a folder that is being written to, so that every file in the archive is whole.

    Checkpoints are written once and renamed; one that is removed meanwhile is the oldest, and is
    left out. SQLite's own backup copies the ledgers. They come last: a ledger may be ahead of the
    checkpoints (the difference is trained again), but must not be behind them.
    """
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    ledgers = [file for file in files if is_sqlite(file)]
    logs = {Path(f"{ledger}{suffix}") for ledger in ledgers for suffix in LOGS}
    with tempfile.TemporaryDirectory() as scratch, tarfile.open(archive, "w") as tar:
        for file in files:
            if file not in logs and file not in ledgers:
                with contextlib.suppress(FileNotFoundError):
                    tar.add(file, file.relative_to(folder))
        for ledger in ledgers:
            copy = Path(scratch, "ledger")
            copy.unlink(missing_ok=True)
            with (
                contextlib.closing(sqlite3.connect(ledger, timeout=60)) as source,
                contextlib.closing(sqlite3.connect(copy)) as target,
            ):
                source.backup(target)
            tar.add(copy, ledger.relative_to(folder))


def take(folder: Path, kept: Path) -> None:
    """Unpacks what an earlier machine kept, unless the folder is there already."""
    if kept.exists() and not folder.exists():
        part = folder.with_name(f"{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        with tarfile.open(kept) as tar:
            tar.extractall(part, filter="data")
        part.rename(folder)


def keep(folder: Path, kept: Path) -> bool:
    """Replaces what is kept by the folder as it is now; says whether that could be done."""
    try:
        with tempfile.TemporaryDirectory() as scratch:
            archive = Path(scratch, "archive.tar")
            pack(folder, archive)
            part = kept.with_name(f"{kept.name}.part")
            part.unlink(missing_ok=True)  # which a copy would follow, were it a link
            shutil.copyfile(archive, part)
            os.replace(part, kept)
            return True
    except (OSError, sqlite3.Error, tarfile.TarError) as error:
        print(f"{folder} could not be copied to {kept}: {error}.", file=sys.stderr, flush=True)
        return False


def newest(folder: Path) -> float:
    """When the folder last changed; compiled programs, which all hosts write, do not count."""
    times = [0.0]
    for file in folder.rglob("*"):
        if "compiled" not in file.relative_to(folder).parts:
            with contextlib.suppress(FileNotFoundError):
                times.append(file.stat().st_mtime)
    return max(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="the command's results folder, on a local disk")
    parser.add_argument("bucket", type=Path, help="the folder at which the bucket is mounted")
    parser.add_argument("--every", type=float, default=300, help="seconds between two copies")
    parser.add_argument("command", nargs="+", metavar="-- COMMAND")
    options = parser.parse_args()
    if not options.bucket.is_dir():
        parser.error(f"{options.bucket} is no folder; expected the one where the bucket is mounted")
    kept = options.bucket / f"{options.folder.name}.tar"
    options.folder.parent.mkdir(parents=True, exist_ok=True)
    take(options.folder, kept)
    last = newest(options.folder)
    command = subprocess.Popen(options.command)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: command.send_signal(number))
    code = None
    while code is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = command.wait(options.every)
        changed = newest(options.folder)
        if changed > last:
            if keep(options.folder, kept):
                last = changed
            else:
                code = code or (code if code is None else 1)  # what is not kept is not done
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    raise SystemExit(main())
