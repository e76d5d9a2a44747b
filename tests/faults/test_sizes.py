"""Sizes from outside. They are bounded before XLA sees them, in one sentence."""

from __future__ import annotations

import time

import pytest
import tyro

from nf_resnets.cli.sweep import Sweep

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
