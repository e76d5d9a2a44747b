"""A grid of small runs, and sweeps made in this process: of networks, or of softmax regression."""

from __future__ import annotations

import functools

import jax

from nf_resnets import data
from nf_resnets.sweep import Execution, Rows, engine, make_sweep
from nf_resnets.sweep.settings import make as make_settings
from nf_resnets.training.callbacks import Callbacks
from nf_resnets.training.run import Plan
from tests.training import linear
from tests.training.small import Log

BASE = {"model": "wrn-10-1", "stem_channels": 4, "epochs": 2.0}


@functools.cache
def load(name):
    return data.load(name)


def make(axes, **base):
    return make_sweep(axes, {**BASE, **base}, load=load)


class Linear:
    """A task whose runs are softmax regressions, with ``change(program, plan)`` in their place."""

    probe = finish = None

    def __init__(self, change=lambda program, plan: program):
        self.change = change

    def check(self, plan, devices_per_run):
        pass

    def start(self, plan):
        return linear.state(**plan.settings)

    def build(self, plan, mesh, *, runs_per_device=1):
        if isinstance(found := self.change(None, plan), Exception):
            raise found
        program = linear.program(runs_per_device, plan.num_steps, *mesh.devices.shape)
        return self.change(program, plan)


def plans(count, first=0, **fields):
    """Runs of rising rates."""
    return [
        linear.plan(seed=seed, peak_lr=0.01 * (seed + 1), **fields)
        for seed in range(first, first + count)
    ]


def run(folder, plans, task=None, log=None, *, shard=(0, 1), retry=False, devices=1, **options):
    """Makes a sweep's missing runs; returns its rows by key, the outcome and the log."""
    log = log or Log()
    with Rows(folder, shard).open() as rows:
        if retry:
            rows.follow(key for key, row in rows.read().items() if row["state"] != "failed")
        outcome = engine.make(
            task or Linear(), plans, rows, callback=Callbacks(log), stop=lambda: log.over,
            execution=Execution(**{"workers": 1, "save_seconds": 0.0, **options}),
            devices=jax.devices()[:devices],
        )  # fmt: skip
        return rows.read(), outcome, log


def key(values):
    """The key of a run, however its numbers were written."""
    return Plan(vars(make_settings(values)), "", 1, 1).key
