"""TensorBoard logs of runs: a folder for each."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

MOST_POINTS = 1000
"""Of longer runs every second, third, ... step is logged, so that no curve has more points."""

LONGEST_NAME = 180
"""Characters of a run's label in the name of its folder."""

_DIGITS = 10
_EPOCH_TAGS = {
    "test_loss": "test/loss",
    "test_accuracy": "test/accuracy",
    "test_bleu": "test/bleu",
    "train_loss": "epoch/train_loss",
    "train_accuracy": "epoch/train_accuracy",
}


def run_name(key: str, label: str) -> str:
    """The name of a run's folder: its label, and the beginning of its key.

    Example:
      >>> run_name("0123456789abcdef", "fixup, rate 2^-3")
      'fixup,rate_2^-3-0123456789'
    """
    name = re.sub(r"[^A-Za-z0-9.,=^+-]+", "_", label.replace(", ", ","))
    return f"{name[:LONGEST_NAME]}-{key[:_DIGITS]}"


def points(
    step: int, curve: Mapping[str, Any], every: int
) -> Iterator[tuple[int, dict[str, float], bool]]:
    """Of the steps of a call of ``on_step`` those that are due, and the last one.

    Args:
      step: steps made.
      curve: the metrics of the last steps, [n] each.
      every: of how many steps one is due; the first step is, too.

    Yields:
      The step, its metrics by their tags, and whether it is due.

    Example:
      >>> list(points(4, {"loss": [0.5, 0.25, 0.125]}, 2))
      [(2, {'train/loss': 0.5}, True), (4, {'train/loss': 0.125}, True)]
    """
    count = min((len(values) for values in curve.values()), default=0)
    for place in range(count):
        at = step - count + 1 + place
        is_due = at == 1 or at % every == 0
        if is_due or place == count - 1:
            values = {f"train/{name}": float(column[place]) for name, column in curve.items()}
            yield at, values, is_due


def epoch_values(row: Mapping[str, Any]) -> dict[str, float]:
    """What is logged of an epoch, by its tags.

    Example:
      >>> epoch_values({"train_loss": 0.5, "test_loss": None, "seconds": 3.0})
      {'epoch/train_loss': 0.5}
    """
    values = {tag: row.get(name) for name, tag in _EPOCH_TAGS.items()}
    return {tag: float(value) for tag, value in values.items() if value is not None}


@dataclasses.dataclass
class _Log:
    """The log of a run."""

    writer: Any
    every: int  # of how many steps one is logged
    last: tuple[int, dict[str, float]] | None = None  # the newest step that was not logged


class TensorBoard:
    """Logs runs for TensorBoard; a callback and a context manager.

    Per step ``train/loss``, ``train/accuracy`` and whatever else the curve holds; per epoch
    ``test/loss``, ``test/accuracy``, ``epoch/train_loss``, ``epoch/train_accuracy``; once the
    settings, for the HPARAMS page. A run that begins or goes on gets a further file in its folder,
    which tells TensorBoard to forget what older files hold of later steps.

    tensorboardX's ``SummaryWriter`` has a queue and two threads for each run, and blocks for ever
    once the disk is full; this uses the writer below it, which raises.

    Args:
      folder: the runs' folders lie in it; made where missing.
      most_points: of a curve.
      tell: gets one sentence if a log cannot be written, which never stops a run; standard error if
        it is not given.

    Raises:
      ImportError: if tensorboardX is not installed.

    Example:
      >>> import nf_resnets
      >>> with TensorBoard("logs") as log:
      ...     nf_resnets.fit("photos@32", callback=log)  # doctest: +SKIP
    """

    def __init__(
        self, folder: str | Path, *, most_points: int = MOST_POINTS,
        tell: Callable[[str], Any] | None = None,
    ) -> None:  # fmt: skip
        try:
            # Any, as its protocol buffers have no types.
            self._x: dict[str, Any] = {
                name: importlib.import_module(f"tensorboardX.{name}")
                for name in ("event_file_writer", "summary", "proto.event_pb2",
                             "proto.summary_pb2")
            }  # fmt: skip
        except ImportError as error:
            raise ImportError(
                "tensorboardX, which TensorBoard logs are written with, cannot be imported "
                f"({error}); install it with `pip install nf_resnets[tensorboard]`."
            ) from error
        self._folder = Path(folder).expanduser()
        self._most_points = most_points
        self._tell = tell or functools.partial(print, file=sys.stderr)
        self._told = False
        self._logs: dict[str, _Log] = {}

    def on_run_begin(
        self, key: str, label: str, settings: Mapping[str, Any], step: int, num_steps: int
    ) -> None:
        """Begins a file, from which on only the steps up to this one stand."""
        with self._safely(key):
            self._close(key)
            # A run keeps its folder, also when it is called something else now.
            there = self._folder.glob(f"*-{key[:_DIGITS]}")
            folder = next(there, self._folder / run_name(key, label))
            folder.mkdir(parents=True, exist_ok=True)
            # Files are read in the order of their names, which begin with the second.
            suffix = f".{len(list(folder.iterdir())):04d}"
            writer = self._x["event_file_writer"].EventsWriter(str(folder / "events"), suffix)
            self._logs[key] = _Log(writer, max(1, math.ceil(num_steps / self._most_points)))
            log = self._x["proto.event_pb2"].SessionLog
            self._write(writer, step + 1, session_log=log(status=log.START))
            _, start, _ = self._x["summary"].hparams(dict(settings), {})
            self._write(writer, 0, summary=start)

    def on_step(self, key: str, step: int, curve: Mapping[str, Any]) -> None:
        """Logs those of the new steps that are due."""
        with self._safely(key):
            log = self._logs.get(key)
            for at, values, is_due in points(step, curve, log.every) if log else ():
                log.last = at, values  # type: ignore[union-attr]
                if is_due:
                    self._write_last(key)

    def on_epoch(self, key: str, step: int, row: Mapping[str, Any]) -> None:
        """Logs an epoch, and has the file written so far, before a checkpoint of the run is."""
        with self._safely(key):
            if key in self._logs:
                self._write_scalars(key, step, epoch_values(row))
                self._logs[key].writer.flush()

    def on_run_end(self, key: str, state: str, result: Mapping[str, Any]) -> None:
        """Ends the file, with the last step unless the run waits again."""
        with self._safely(key):
            if key in self._logs and state in ("finished", "diverged", "failed", "oom"):
                self._write_last(key)
                values = epoch_values(result.get("measures") or {})
                self._write_scalars(key, result.get("steps_done") or 0, values)
            self._close(key)

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files of the runs that are still being trained."""
        for key in list(self._logs):
            with self._safely(key):
                self._close(key)

    def _close(self, key: str) -> None:
        log = self._logs.pop(key, None)
        if log is not None:
            log.writer.close()

    def _write_last(self, key: str) -> None:
        log = self._logs[key]
        if log.last is not None:
            self._write_scalars(key, *log.last)
            log.last = None

    def _write_scalars(self, key: str, step: int, values: Mapping[str, float]) -> None:
        if values:
            summary = self._x["proto.summary_pb2"].Summary
            points = [summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            self._write(self._logs[key].writer, step, summary=summary(value=points))

    def _write(self, writer: Any, step: int, **content: Any) -> None:
        event = self._x["proto.event_pb2"].Event
        writer.write_event(event(wall_time=time.time(), step=step, **content))

    @contextlib.contextmanager
    def _safely(self, key: str) -> Iterator[None]:
        """Gives up the log of a run, not the run, if something goes wrong with it."""
        try:
            yield
        except Exception as error:
            with contextlib.suppress(Exception):
                self._close(key)
            if not self._told:
                self._told = True
                self._tell(f"TensorBoard logs in {self._folder} are incomplete: {error!r}")


__all__ = ["LONGEST_NAME", "MOST_POINTS", "TensorBoard", "epoch_values", "points", "run_name"]
