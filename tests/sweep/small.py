"""A grid of small runs, a callback that writes down its events, and sweeps made in-process."""

from __future__ import annotations

import functools
import threading

import jax

from nf_resnets import data
from nf_resnets.sweep import enter, make_sweep, open_ledger, run_sweep
from nf_resnets.sweep.programs import Execution
from nf_resnets.sweep.settings import make as make_settings
from nf_resnets.sweep.task import Resolved

BASE = {"model": "wrn-10-1", "stem_channels": 4, "epochs": 2.0}


@functools.cache
def load(name):
    return data.load(name)


class Log:
    """Writes down every event, in order."""

    def __init__(self):
        self.events = []
        self._lock = threading.Lock()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def add(*values):
            with self._lock:
                self.events.append((name, *values))

        return add

    def of(self, name):
        return [event[1:] for event in self.events if event[0] == name]


def make(axes, **base):
    return make_sweep(axes, {**BASE, **base}, load=load)


def run(folder, sweep, *, devices=1, callback=None, ledger=None, **options):
    """Makes a sweep's missing runs and returns its rows, the outcome and the log."""
    log = callback or Log()
    folder.mkdir(parents=True, exist_ok=True)
    how = {"workers": 1, "checkpoint_fraction": 1.0, **options}
    with open_ledger(ledger or folder / "ledger.db") as book:
        enter(sweep.runs, book)
        outcome = run_sweep(
            sweep.task,
            sweep.runs,
            book,
            folder / "checkpoints",
            log,
            devices=jax.devices()[:devices],
            execution=Execution(**how),
        )
        return book.rows(sweep.keys), outcome, log


def key(values):
    """The key of a run, however its numbers were written."""
    return Resolved(vars(make_settings(values)), "", "", 1, 1).key


RESULTS = ("state", "steps_done", "test_accuracy", "test_loss", "train_loss", "train_accuracy")


def results(rows):
    """What a run's settings determine, by key."""
    return {row["key"]: tuple(row[name] for name in RESULTS) for row in rows}
