"""``--config``: what a sweep or a run wrote is read again, and options given besides win."""

from __future__ import annotations

import sys

import pytest

from nf_resnets import __main__ as entry
from nf_resnets.cli.networks import Train
from nf_resnets.cli.sweep import Sweep
from nf_resnets.sweep.options import read_config, with_config
from nf_resnets.sweep.results import Result, _write_settings
from nf_resnets.sweep.settings import RunSettings, parse


def test_the_settings_of_a_sweep_are_its_grid_again(tmp_path):
    axes = {"peak_lr": (0.1, 0.25), "scheme": ("fixup", "skipinit"), "flip": (True, False)}
    base = {"model": "wrn-10-1", "epochs": 1.5}
    _write_settings(Result([], axes, base, {}, 0, 0, []), tmp_path)
    found = with_config(Sweep(), ["--config", str(tmp_path / "settings.json")])
    assert parse(found.grid) == axes
    assert found.settings == RunSettings(**base)
    with pytest.raises(ValueError, match="has a grid; expected the settings of one run"):
        with_config(Train(), [f"--config={tmp_path / 'settings.json'}"])


def test_options_given_besides_win(tmp_path, monkeypatch):
    path = tmp_path / "mine.json"
    path.write_text('{"peak_lr": 0.3, "seed": 7}')
    wanted = []
    monkeypatch.setattr(Train, "__call__", lambda self: wanted.append(self))
    words = ["nf-resnets", "train", "--config", str(path), "--seed", "8"]
    monkeypatch.setattr(sys, "argv", words)
    assert entry.main() == 0
    assert (wanted[0].settings.peak_lr, wanted[0].settings.seed) == (0.3, 8)
    assert wanted[0].settings.warmup_epochs == 1.0  # train's default


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"peak_rl": 0.3}', "did you mean 'peak_lr'"),
        ('{"seed": -1}', "seed=-1 found"),
        ('{"grid": {"seed": 3}}', "int"),
        ("[1]", "a list found"),
        ("{", "line 1"),
    ],
)
def test_what_is_no_settings_is_refused_with_the_file(tmp_path, text, message, monkeypatch, capsys):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read_config(path)
    assert str(caught.value).startswith(f"--config {path}: ")
    monkeypatch.setattr(sys, "argv", ["nf-resnets", "train", "--config", str(path)])
    assert entry.main() == 2 and str(path) in capsys.readouterr().err
