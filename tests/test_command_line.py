"""Help, names that were replaced and exit codes, as every command has them."""

import dataclasses
import io
import sys

import pytest

from nf_resnets import command_line
from tests.test_main import run


@dataclasses.dataclass(frozen=True)
class Options:
    """Options for a test."""

    model: str
    peak_lr: float = 0.1


@pytest.mark.parametrize(
    "words", [["--network", "n", "--learning-rate", "3"], ["--network=n", "--learning_rate=3"]]
)
def test_replaced_names_are_read(words, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x", *words])
    assert command_line.read(Options) == Options("n", 3.0)


@pytest.mark.parametrize(
    "typed",
    ["sweep --grid peak_lr=x", "sweep --workers -1", "analyze --model vgg-11", "show gone",
     "train --model wrn-11-1 --out {}/net", "demo --grid scheme=nonsense --out {}/demo",
     "experiment skipinit_lr_batch --grid seed=x", "experiment fixup_table1_resnet110 --seeds -1"],
)  # fmt: skip
def test_bad_input_ends_with_one_code_and_one_sentence(typed, monkeypatch, capsys, tmp_path):
    assert run(monkeypatch, *typed.format(tmp_path).split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1


def test_how_a_command_ends(capsys):
    def leave(code):
        raise code

    assert command_line.finish(lambda: None, "") == 0
    assert command_line.finish(lambda: 1, "") == 1
    assert command_line.finish(lambda: leave(SystemExit(143)), "") == 143
    assert command_line.finish(lambda: leave(SystemExit("Bad.")), "") == 2
    assert command_line.finish(lambda: leave(KeyboardInterrupt()), "Stopped.") == 130
    assert capsys.readouterr().err == "Bad.\nStopped.\n"


def test_letters_that_the_terminal_lacks_are_escaped(monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="latin-1"))
    assert command_line.finish(lambda: print("\u65e5\u672c, \xe9"), "") == 0
    assert written.getvalue() == b"\\u65e5\\u672c, \xe9\n"
