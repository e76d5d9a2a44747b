"""Help and exit codes, as every command has them."""

import io
import sys

import pytest

from nf_resnets import __main__ as entry
from nf_resnets import command_line
from tests.test_main import run

EXPERIMENTS = ("experiment theory_signal", "experiment skipinit_lr_batch")


@pytest.mark.parametrize("typed", ["", *entry.COMMANDS, *EXPERIMENTS])
def test_help_is_under_the_commands_name_and_fits_the_terminal(typed, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert run(monkeypatch, *typed.split(), "--help") == 0
    usage, *lines = capsys.readouterr().out.splitlines()  # tyro does not break the usage line
    assert usage.startswith(f"usage: nf-resnets {typed}")
    assert 50 < max(map(len, lines)) <= 80
    titles = [line.split("─ ")[1].split(" ─")[0] for line in lines if line.startswith("╭")]
    assert len({*titles}) == len(titles) and not any("." in title for title in titles)


@pytest.mark.parametrize(
    "typed",
    ["sweep --grid peak_lr=x", "analyze --model vgg-11", "show gone",
     "train --model wrn-11-1 --out {}/net",
     "demo --grid scheme=nonsense --out {}/demo"],
)  # fmt: skip
def test_bad_input_ends_with_one_code_and_one_sentence(typed, monkeypatch, capsys, tmp_path):
    assert run(monkeypatch, *typed.format(tmp_path).split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1


def test_how_a_command_ends(capsys):
    def leave(code):
        raise code

    assert command_line.finish(lambda: None) == 0
    assert command_line.finish(lambda: leave(SystemExit(143))) == 143
    assert command_line.finish(lambda: leave(ValueError("Bad."))) == 2
    assert command_line.finish(lambda: leave(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "Bad.\nStopped; what was finished is kept.\n"


def test_letters_that_the_terminal_lacks_are_escaped(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    assert command_line.finish(lambda: print("\u65e5\u672c, \xe9")) == 0
    assert written.getvalue() == b"\\u65e5\\u672c, \xe9\n"
