"""One training told to callbacks: displays and logs that sweeps have, too."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from nf_resnets.trained.file import TrainedError
from nf_resnets.trained.resume import StoppedError
from nf_resnets.training.callbacks import Callback, Callbacks
from nf_resnets.training.progress import Progress


@dataclasses.dataclass
class Events:
    """Passes the steps of a training on; made by :func:`events`."""

    callback: Callback
    key: str
    label: str
    settings: Mapping[str, Any]
    step: int = 0  # made so far

    def on_begin(self, run: Progress) -> None:
        """A training begins, or goes on from a checkpoint."""
        self.step = run.step
        self.callback.on_run_begin(self.key, self.label, self.settings, run.step, run.num_steps)

    def on_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step was made."""
        self.step = step
        self.callback.on_step(self.key, step, {name: [each] for name, each in metrics.items()})

    def on_epoch(self, step: int, steps: int, loss: float, accuracy: float) -> None:
        """An epoch is over."""
        self.callback.on_epoch(self.key, step, {"train_loss": loss, "train_accuracy": accuracy})

    def on_end(self, notes: Mapping[str, Any]) -> None:
        """The network is trained and tested."""
        self.callback.on_epoch(self.key, self.step, notes)
        self.callback.on_run_end(self.key, "finished", notes)


@contextlib.contextmanager
def events(
    *callbacks: Callback, key: str, label: str, settings: Mapping[str, Any]
) -> Iterator[Events]:
    """Passes a training on to callbacks; the block calls ``on_end`` last.

    Args:
      callbacks: which receive the events; where one raises, a message is printed.
      key: names the training; the same one where it is resumed.
      label: what logs call it.
      settings: what logs keep of it.

    Raises:
      BaseException: what the block raises; the callbacks hear whether the run diverged, failed, or
        waits to be resumed.
    """
    found = Events(
        Callbacks(*callbacks, say=lambda text: print(text, file=sys.stderr)), key, label, settings
    )
    try:
        yield found
    except BaseException as error:
        state = "diverged" if isinstance(error, TrainedError) else "failed"
        state = "waiting" if isinstance(error, StoppedError | KeyboardInterrupt) else state
        found.callback.on_run_end(key, state, {"message": str(error)})
        raise


__all__ = ["Events", "events"]
