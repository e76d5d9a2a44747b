"""The learning-rate finder: what it says, what it refuses, and runs on the digits."""

import jax
import numpy as np
import pytest

from nf_resnets.cli.find_lr import STEPS, FindLr, answer
from nf_resnets.sweep import Rows, optimum
from nf_resnets.sweep.options import Options
from nf_resnets.sweep.settings import RunSettings
from tests.sweep.test_select import runs


def best(losses):
    """The optimum of runs with these losses at each rate."""
    return optimum(runs(losses, "train_loss"), metric="train_loss")


def test_the_rate_its_range_and_what_diverged_are_said():
    found = {0.25: (0.9, 0.9), 0.5: (0.5, 0.6), 1.0: (0.4, 0.6), 2.0: (0.1, "diverged"),
             4.0: ("diverged", "diverged")}  # fmt: skip
    # 2^1 is better where it finishes, and no rate to take. The deviation at 2^0 is 0.14.
    assert answer(best(found)) == (
        "The best rate is 2^0 (2^-1 to 2^0): training loss 0.5.\n"
        "Take 2^-1 for longer runs, 4 times below the first that diverged.\n"
        "Diverged: 2^1 (1 of 2), 2^2 (2 of 2)."
    )
    assert answer(best({0.5: (0.5,), 1.0: (0.4,)})) == (
        "The best rate is 2^0: training loss 0.4. It is the highest of the rates tried: widen "
        "--rates.\nTake 2^0 for longer runs.\nDiverged: none."
    )
    assert answer(best({1.0: ("diverged",)})) == (
        "No run finished, so there is no best rate.\nDiverged: 2^0 (1 of 1)."
    )


@pytest.mark.slow
def test_the_digits_have_a_rate(tmp_path, monkeypatch, capsys):
    first = jax.devices()[:1]
    monkeypatch.setattr(jax, "devices", lambda *_: first)
    wanted = FindLr(
        rates="2^-6,2^-3,2^10", seeds=1, options=Options(out=tmp_path),
        settings=RunSettings(model="wrn-10-1", stem_channels=4, seed=3),
    )  # fmt: skip
    assert wanted() == 0
    out = capsys.readouterr().out
    assert f"steps {STEPS}" in (tmp_path / "report.html").read_text()
    # An epoch has 11 steps of 128 images, the last one the hundredth step alone.
    rows = [row for row in Rows(tmp_path).read().values() if row["state"] == "finished"]
    assert len(rows) == 2
    means = {row["peak_lr"]: np.mean(row["measures"]["curve"]["loss"][-10:]) for row in rows}
    assert f": training loss {min(means.values()):.3g}." in out
    assert f": training loss {min(row['train_loss'] for row in rows):.3g}." not in out
    assert "Diverged: 2^10 (1 of 1)." in out and "The best rate is 2^-" in out
    # Started again, it only reads the rows.
    assert wanted() == 0
    assert capsys.readouterr().out.splitlines()[-3:] == out.splitlines()[-3:]
