"""Logs for Weights & Biases, by a stand-in that records what the package is asked."""

import sys
from types import SimpleNamespace
from unittest import mock

from nf_resnets.training import wandb
from tests.sweep.small import key
from tests.training.test_tensorboard import KEY, NAMES, SETTINGS, curve, row, value


def test_runs_are_logged_each_by_itself(tmp_path, monkeypatch):
    runs = {}

    def init(**options):
        run = runs[options["id"]] = mock.Mock(summary={}, options=options)
        return run

    stand_in = SimpleNamespace(init=init, Settings=dict)
    monkeypatch.setitem(sys.modules, "wandb", stand_in)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(wandb, "MOST_POINTS", 10)
    other = key({**vars(SETTINGS), "seed": 4})
    with wandb.WandB(tmp_path) as log:
        # Two runs at the same time, as in a sweep; of 30 steps each third is logged.
        log.on_run_begin(KEY, "fixup, rate 2^-3", vars(SETTINGS), 0, 30)
        log.on_run_begin(other, "another", {"seed": 4}, 0, 30)
        log.on_step(KEY, 5, curve(1, 5))
        log.on_step(other, 2, curve(1, 2))
        log.on_step(KEY, 10, curve(6, 10))
        log.on_epoch(KEY, 10, row(0))
        log.on_run_end(KEY, "finished", {"steps": 10})
        log.on_run_end(other, "diverged", {"steps": 2})
        log.on_step(other, 3, curve(3, 3))  # of a run that is over: nothing
    one, two = runs[KEY[:20]], runs[other[:20]]
    assert (one.options["mode"], one.options["config"]["peak_lr"]) == ("offline", 0.125)
    steps = [
        mock.call({f"train/{name}": value(step, name) for name in NAMES}, step=step)
        for step in (1, 3, 6, 9)
    ]
    tested = {"test/loss": 1.5, "test/accuracy": 0.5, "epoch/train_loss": 2.5,
              "epoch/train_accuracy": 0.25}  # fmt: skip
    assert one.log.mock_calls == [*steps, mock.call(tested, step=10)]
    assert two.log.mock_calls == [steps[0]]
    assert one.summary == {"state": "finished"} and two.summary == {"state": "diverged"}
    assert (one.finish.mock_calls, two.finish.mock_calls) == (
        [mock.call(exit_code=0)], [mock.call(exit_code=1)]
    )  # fmt: skip
