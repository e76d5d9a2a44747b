"""`nf-resnets COMMAND`: each command's help under its name, and one sentence for what is none."""

import importlib
import sys

import pytest

import nf_resnets
from nf_resnets import __main__ as entry


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/nf-resnets", *arguments])
    try:
        return entry.main()
    except SystemExit as leaving:
        return leaving.code


def test_the_help_names_all_commands(monkeypatch, capsys):
    for arguments in ((), ("-h",), ("--help",)):
        assert run(monkeypatch, *arguments) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "usage: nf-resnets COMMAND [OPTIONS]"
        assert [line.split()[0] for line in lines[2 : 2 + len(entry.COMMANDS)]] == [*entry.COMMANDS]


def test_the_version_is_the_packages(monkeypatch, capsys):
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"{nf_resnets.__version__}\n"


def test_the_help_of_experiment_names_all_of_them(monkeypatch, capsys):
    assert run(monkeypatch, "experiment", "--help") == 0
    usage, _, *lines = capsys.readouterr().out.splitlines()
    assert usage == "usage: nf-resnets experiment NAME [OPTIONS]"
    assert [line.split()[0] for line in lines if line[:3].strip()][:-1] == [*entry.experiments()]


def test_the_demo_has_a_scale_of_its_own_which_another_one_replaces(monkeypatch, capsys):
    scales = []
    # The experiments of the checkout, or of the installed package.
    made_by = importlib.import_module(entry.experiments()["fixup_fig3_depth"]).run.__module__
    monkeypatch.setattr(
        f"{made_by}.main", lambda experiment, command: scales.append(command.scale)
    )  # fmt: skip
    for typed in ("demo", "demo --scale smoke", "experiment fixup_fig3_depth"):
        run(monkeypatch, *typed.split())
    assert scales == ["demo", "smoke", "laptop"]
    assert run(monkeypatch, "demo", "--help") == 0
    assert "(default: demo)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("typed", "found", "expected"),
    [("swep", "COMMAND='swep'", "demo"), ("experiment table", "NAME='table'", "fixup_fig3_depth")],
)
def test_what_is_no_command_gets_one_sentence(typed, found, expected, monkeypatch, capsys):
    assert run(monkeypatch, *typed.split()) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    assert err.startswith(f"{found} found; expected one of {expected}, ") and err.endswith(".\n")
