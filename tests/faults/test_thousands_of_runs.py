"""Many finished runs: reporting is near-linear.

The runs are rows that are written by the test, and none is trained. What is done with them is
counted in calls of functions, which do not depend on how busy the machine is.
"""

from __future__ import annotations

import cProfile

import tyro

from nf_resnets.cli.sweep import Sweep
from nf_resnets.sweep import Rows, make_sweep, results, settings
from nf_resnets.training.wave import row_of


def cost(folder, runs):
    """Calls of Python functions of the command on a folder whose rows say that all is finished."""
    axes = ("peak_lr=2^-8:2^1", f"seed=0:{runs // 10 - 1}")
    base = {"model": "wrn-10-1", "stem_channels": 2, "epochs": 1.0}
    sweep = make_sweep(settings.parse(axes), base)
    assert len(sweep.plans) == runs
    result = {"state": "finished", "steps_done": 22, "train_loss": 1.0, "seconds": 1.0}
    epoch = {"epoch": 1, "step": 22, "train_loss": 1.0, "test_loss": 1.0, "test_accuracy": 0.5}
    curve = {name: [0.5] * 22 for name in ("step", "loss", "accuracy", "grad_norm", "update_norm")}
    with Rows(folder).open() as rows:
        rows.add([
            {**row_of(plan, "finished", None), **result, "test_accuracy": number % 500 / 500,
             "history": [epoch], "measures": {"curve": curve}}
            for number, plan in enumerate(sweep.plans)
        ])  # fmt: skip
    options = [f"--{name.replace('_', '-')}={value}" for name, value in base.items()]
    options += ["--workers", "1", "--out", str(folder)]
    profile = cProfile.Profile()
    assert profile.runcall(tyro.cli(Sweep, args=["--grid", *axes, *options])) == 0
    return sum(entry.callcount for entry in profile.getstats())


def test_reporting_grows_with_the_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(results.plotting, "sweep_figures", lambda *args, **kwargs: [])
    cost(tmp_path / "first", 10)  # what is imported at the first call
    calls, more_calls = (cost(tmp_path / str(runs), runs) for runs in (20, 200))
    # Ten times as many runs: a fifth is left for what is sorted.
    assert more_calls < 12 * calls, (calls, more_calls)
