"""TensorBoard logs of runs: a folder for each."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nf_resnets.machine import needed

MOST_POINTS = 1000
"""Of longer runs every second, third, ... step is logged, so that no curve has more points."""

EPOCH_TAGS = {
    "test_loss": "test/loss",
    "test_accuracy": "test/accuracy",
    "test_bleu": "test/bleu",
    "train_loss": "epoch/train_loss",
    "train_accuracy": "epoch/train_accuracy",
}


def run_name(key: str, label: str) -> str:
    """The name of a run's folder: its label, and the beginning of its key.

    >>> run_name("0123456789abcdef", "fixup, rate 2^-3")
    'fixup,rate_2^-3-0123456789'
    """
    name = re.sub(r"[^A-Za-z0-9.,=^+-]+", "_", label.replace(", ", ","))
    return f"{name[:180]}-{key[:10]}"


def step_values(
    step: int, curve: Mapping[str, Any], every: int
) -> Iterator[tuple[int, dict[str, float]]]:
    """What is logged of a call of ``on_step``: the first step, and one in ``every``, by its tags.

    >>> list(step_values(4, {"loss": [0.5, 0.25, 0.125]}, 2))
    [(2, {'train/loss': 0.5}), (4, {'train/loss': 0.125})]
    """
    count = len(curve["loss"])
    columns = {name: values for name, values in curve.items() if len(values) == count}
    for place, at in enumerate(range(step - count + 1, step + 1)):
        if at == 1 or at % every == 0:
            yield at, {f"train/{name}": float(values[place]) for name, values in columns.items()}


def epoch_values(row: Mapping[str, Any]) -> dict[str, float]:
    """What is logged of an epoch, by its tags."""
    values = {tag: row.get(name) for name, tag in EPOCH_TAGS.items()}
    return {tag: float(value) for tag, value in values.items() if value is not None}


class TensorBoard:
    """Logs runs for TensorBoard; a callback and a context manager.

    Per step ``train/loss`` and the rest of the curve; per epoch the tags of ``EPOCH_TAGS``; once
    the settings, for the HPARAMS page. A run that begins or goes on gets a further file in its
    folder, which tells TensorBoard to forget what older files hold of later steps.

    Args:
      folder: the runs' folders lie in it; made where missing.

    Raises:
      ImportError: if tensorboardX is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        names = ("event_file_writer", "summary", "proto.event_pb2", "proto.summary_pb2")
        # SummaryWriter blocks for ever once the disk is full; the writer below it raises.
        self._writers, self._summary, self._event, self._summary_pb2 = (
            needed(f"tensorboardX.{name}", "tensorboard") for name in names
        )
        self._folder = Path(folder).expanduser()
        self._logs: dict[str, tuple[Any, int]] = {}  # of a run its writer; each n-th step is logged

    def on_run_begin(
        self, key: str, label: str, settings: Mapping[str, Any], step: int, num_steps: int
    ) -> None:
        """Begins a file, from which on only the steps up to this one stand."""
        self._close(key)
        # A run keeps its folder, also when it is called something else now.
        there = self._folder.glob(f"*-{key[:10]}")
        folder = next(there, self._folder / run_name(key, label))
        folder.mkdir(parents=True, exist_ok=True)
        # Files are read in the order of their names, which begin with the second.
        suffix = f".{len(list(folder.iterdir())):04d}"
        writer = self._writers.EventsWriter(str(folder / "events"), suffix)
        self._logs[key] = writer, -(-num_steps // MOST_POINTS)
        log = self._event.SessionLog
        self._write(key, step + 1, session_log=log(status=log.START))
        self._write(key, 0, summary=self._summary.hparams(dict(settings), {})[1])

    def on_step(self, key: str, step: int, curve: Mapping[str, Any]) -> None:
        """Logs those of the new steps that are due."""
        if key in self._logs:
            for at, values in step_values(step, curve, self._logs[key][1]):
                self._write_scalars(key, at, values)

    def on_epoch(self, key: str, step: int, row: Mapping[str, Any]) -> None:
        """Logs an epoch, and has the file written so far, before a checkpoint of the run is."""
        if key in self._logs:
            self._write_scalars(key, step, epoch_values(row))
            self._logs[key][0].flush()

    def on_run_end(self, key: str, state: str, result: Mapping[str, Any]) -> None:
        """Ends the file."""
        if key in self._logs:
            values = epoch_values(result.get("measures") or {})
            self._write_scalars(key, result.get("steps_done") or 0, values)
            self._close(key)

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._logs):
            with contextlib.suppress(OSError):  # of a full disk, which was said before
                self._close(key)

    def _close(self, key: str) -> None:
        if key in self._logs:
            self._logs.pop(key)[0].close()

    def _write_scalars(self, key: str, step: int, values: Mapping[str, float]) -> None:
        if values:
            summary = self._summary_pb2.Summary
            points = [summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            self._write(key, step, summary=summary(value=points))

    def _write(self, key: str, step: int, **content: Any) -> None:
        event = self._event.Event(wall_time=time.time(), step=step, **content)
        self._logs[key][0].write_event(event)
