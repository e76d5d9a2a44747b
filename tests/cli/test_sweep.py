"""`nf-resnets sweep` as a user calls it: a sweep, its pictures, a dry run, bad input."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import time
from html.parser import HTMLParser

import jax
import pytest
import tyro

from nf_resnets import machine
from nf_resnets.cli.sweep import Sweep
from nf_resnets.sweep import command
from nf_resnets.sweep.options import Options

TINY = ("--model", "wrn-10-1", "--stem-channels", "2", "--steps", "6")


def here(monkeypatch, *arguments):
    """In this process, since starting another takes seconds."""
    monkeypatch.setattr(command, "device_name", lambda: "1 x cpu")
    assert tyro.cli(Sweep, args=[*map(str, arguments)])() == 0


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("sweep") / "mine"
    axes = ("peak_lr=2^-5:2^-3", "seed=0:1", "scheme=skipinit,alpha_one")
    first = jax.devices()[:1]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as said:
        # A program for one device is compiled sooner than one for eight.
        patch.setattr(jax, "devices", lambda *_: first)
        here(patch, "--grid", *axes, *TINY, "--tensorboard", "--out", out)
    return out, said.getvalue()


def test_a_sweep_ends_in_a_table_figures_and_a_report(made):
    out, said = made
    assert (out / "figure.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "12 runs, 1 program on" in said
    assert "1 program compiled." in said
    assert (out / "table.txt").read_text().strip() in said
    with open(out / "rows.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 12 and {row["state"] for row in rows} <= {"finished", "diverged"}
    assert {"dtype", "optimizer"} <= {*rows[0]}
    assert not any(cell.startswith(("{", "[")) for row in rows for cell in row.values())
    page = (out / "report.html").read_text()
    HTMLParser().feed(page)
    assert not re.search(r"""(?:src|href)\s*=\s*["']https?:""", page)
    (maker,) = json.loads((out / "settings.json").read_text())["made"]
    assert (maker["runs"], maker["processor"]) == (12, machine.processor())
    assert not (out / "checkpoints").exists()
    assert len(list((out / "tensorboard").iterdir())) == 12


def test_a_dry_run_says_what_it_would_take(made, monkeypatch, capsys):
    out, _ = made
    axes = ("peak_lr=2^-6:2^-3", "seed=0:1", "scheme=skipinit,alpha_one")
    here(monkeypatch, "--grid", *axes, *TINY, "--out", out, "--dry-run")
    said = capsys.readouterr().out
    assert "Grid: 16 runs, 12 of them done" in said
    assert "2^-6, 2^-5, 2^-4, 2^-3" in said
    assert "Programs: 1, each compiled once" in said
    assert "4 runs of 6 steps" in said
    assert re.search(r"^Time: about \d", said, re.M)
    here(monkeypatch, "--grid", *axes, *TINY, "--out", out / "other", "--dry-run")
    assert "Time: unknown until a run of each program has finished" in capsys.readouterr().out


NINES = "9" * 400


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--grid", "batch_size=32,2048"), "batch_size=2048 found for a training split"),
        (("--shard", "2", "2"), "--shard 2 2 found; expected I N with 0 <= I < N."),
        (("--workers", "-1"), "workers=-1 found; expected a number of at least 0."),
        (("--save-seconds", "nan"), "save_seconds=nan found; expected a number of at least 0."),
        # Sizes from outside are bounded before XLA sees them.
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
def test_bad_input_is_refused_in_one_sentence_before_anything_starts(
    arguments, sentence, monkeypatch
):
    monkeypatch.setattr(command, "_run", lambda *_: pytest.fail("it starts"))
    start = time.monotonic()
    with pytest.raises(ValueError) as caught:
        tyro.cli(Sweep, args=[*arguments])()
    said = str(caught.value)
    assert sentence in said and "\n" not in said and len(said) < 400
    assert time.monotonic() - start < 20  # a grid that is made, or a network, takes longer


@pytest.mark.parametrize("name", ["rows.csv", "settings.json"])
def test_a_file_without_its_rows_is_not_overwritten(name, tmp_path):
    """An earlier version or somebody else has written it."""
    (tmp_path / name).write_text("mine\n")
    with pytest.raises(ValueError, match=rf"{name} is there without the rows-\*.jsonl that it is"):
        command.run(Options(out=tmp_path), {"seed": (0,)}, {"model": "wrn-10-1"}, "Sweep")
    assert [path.name for path in tmp_path.iterdir()] == [name]
