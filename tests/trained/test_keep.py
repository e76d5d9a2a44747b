"""``sweep --keep``: the networks of a sweep's runs, which test as their rows say."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import nf_resnets
from nf_resnets import data, trained
from nf_resnets.cli.sweep import Networks
from nf_resnets.sweep import Rows, command
from nf_resnets.sweep.engine import Execution
from nf_resnets.sweep.options import Options
from nf_resnets.training.wave import row_of
from tests.sweep import small


@pytest.mark.slow
def test_all_networks_are_kept_and_test_as_the_rows_say(tmp_path):
    """Of two schemes that share a program, each at two rates; the average is kept."""
    options = Options(out=tmp_path, execution=Execution(workers=1))
    base = {"model": "wrn-10-1", "stem_channels": 2, "steps": 12, "average": 0.5}
    axes = {"peak_lr": (0.1, 0.5), "scheme": ("skipinit", "alpha_one")}
    command.run(options, axes, base, "Sweep", keep=functools.partial(Networks, which="all"))
    rows, test = Rows(tmp_path).read(), data.load("digits").test
    files = sorted((tmp_path / "networks").iterdir())
    assert len(files) == len(rows) == 4
    for file in files:
        network = trained.load(file)
        row = rows[network.notes["key"]]
        assert network.notes["settings"].get("peak_lr", 0.1) == row["peak_lr"]
        classes = [int(name) for name, _ in nf_resnets.predict(file, test.images)]
        # One of 360 images may change sides by the rounding of another batch.
        assert abs(np.mean(classes == test.labels) - row["test_accuracy"]) < 1.5 / 360


def test_the_best_network_of_runs_that_differ_in_rate_and_seed_is_left(tmp_path):
    axes = {"peak_lr": (0.1, 0.2), "seed": (0, 1), "scheme": ("skipinit", "fixup")}
    made = small.make(axes)
    numbers = (0.2, 0.7, 0.7, 0.9, 0.5, 0.4, 0.3, 0.1)
    accuracies = {plan.key: x for plan, x in zip(made.plans, numbers, strict=True)}
    (tmp_path / "networks").mkdir()

    def end(plan, state="finished"):
        (tmp_path / "networks" / f"x-{plan.key[:10]}.safetensors").write_text("")
        row = {**row_of(plan, state, None), "test_accuracy": accuracies[plan.key]}
        with Rows(tmp_path).open() as rows:
            rows.add([row])
        return plan.key, state, row

    def left():
        return {path.stem.removeprefix("x-") for path in (tmp_path / "networks").iterdir()}

    first, *others = made.plans
    end(first)
    networks = Networks(made, tmp_path, "best")
    for plan in others[:-1]:
        networks.on_run_end(*end(plan))
    best = {}
    for plan in made.plans[:-1]:
        scheme, this = plan.settings["scheme"], (accuracies[plan.key], plan.key)
        best[scheme] = max(best.get(scheme, this), this)
    assert left() == {key[:10] for _, key in best.values()} and len(best) == 2
    # Another process's run is seen at the end; all are kept where all are to be.
    end(others[-1])
    Networks(made, tmp_path, "all").prune()
    assert len(left()) == 3
    networks.prune()
    assert len(left()) == 2
