"""Sizes from outside. They are bounded before XLA sees them, in one sentence."""

from __future__ import annotations

import time

import pytest
import tyro

from nf_resnets.cli.sweep import Sweep
from nf_resnets.sweep import Rows, make_sweep, settings

NINES = "9" * 400


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--model", "wrn-100000000006-1"), "expected cifar-resnet-(6n+2)"),
        (("--model", f"cifar-resnet-{NINES}"), "expected cifar-resnet-(6n+2)"),
        (("--stem-channels", "100000000"), "stem_channels=1e+08"),
        (("--epochs", "1e300"), "epochs=1e+300"),
        (("--warmup-epochs", "1e308"), "warmup_epochs=1e+308"),
        (("--steps", NINES), "steps="),
        (("--grid", f"seed=0:{NINES}"), "seed='0:99"),
        (("--grid", f"peak_lr=2^-{NINES}"), "peak_lr="),
        (("--grid", "seed=0:inf"), "seed='0:inf'"),
        (("--grid", "seed=0:1000", "momentum=0.9", "epochs=1:1000"), "a grid of 1,001,000 points"),
    ],
)
def test_too_large_is_refused_in_one_sentence(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start = time.monotonic()
    with pytest.raises(ValueError) as caught:
        tyro.cli(Sweep, args=[*arguments, "--dry-run"])()
    said = str(caught.value)
    assert sentence in said and "\n" not in said and len(said) < 400
    assert time.monotonic() - start < 20  # a grid that is made, or a network, takes longer


def test_a_dry_run_of_a_million_points_makes_none_of_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made = []
    check = settings.make
    monkeypatch.setattr(settings, "make", lambda values: made.append(0) or check(values))
    axes = settings.parse(["peak_lr=2^-8:2^1", "scheme=skipinit,alpha_one", "seed=0:49999"])
    sweep = make_sweep(axes, {"model": "wrn-10-1"})
    assert len(sweep.programs) == 1
    with Rows(tmp_path / "runs").open() as rows:
        one = make_sweep({"seed": (7,)}, {"model": "wrn-10-1", "scheme": "skipinit"})
        (plan,) = one.plans
        known = {"state": "finished", "steps_done": 220, "seconds": 2.2, "data": plan.data}
        rows.add([{**plan.settings, **known, "key": plan.key, "program": plan.program}])
    made.clear()
    words = ["peak_lr=0.1," + ",".join(f"{2.0**-n}" for n in range(1, 10))]
    words += ["scheme=skipinit,alpha_one", "seed=0:49999"]
    start = time.monotonic()
    arguments = ["--grid", *words, "--model", "wrn-10-1", "--out", "runs", "--dry-run"]
    assert tyro.cli(Sweep, args=arguments)() == 0
    said = capsys.readouterr().out
    assert "Grid: 1,000,000 runs, 1 of them done" in said and "999,999 runs of 220 steps" in said
    assert len(made) == 2 and time.monotonic() - start < 20
