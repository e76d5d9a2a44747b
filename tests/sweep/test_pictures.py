"""What a finished sweep still makes where something is in the way, and what it says of it."""

import json
import os

import pytest

from nf_resnets.sweep import command
from nf_resnets.sweep.claims import Clock
from nf_resnets.sweep.command import Options, Result

AXES = {"peak_lr": (0.25, 0.5, 1.0), "seed": (0,)}
FILES = {"table.txt", "rates.png", "optima.png", "heat.png", "report.html", "settings.json"}


def made(compiled=1, **changes):
    rows = [
        {
            "key": f"{rate}", "scheme": "fixup", "model": "wrn-10-1", "dataset": "digits",
            "batch_size": 64, "peak_lr": rate, "seed": 0, "epochs": 1.0, "steps": None,
            "state": "finished", "message": None, "test_accuracy": 0.5 + rate / 4,
            "train_loss": 1.0 - rate / 4,
        }
        for rate in AXES["peak_lr"]
    ]  # fmt: skip
    return Result(rows, AXES, {}, {"finished": 3}, Clock(), 0, {}, compiled, [], **changes)


@pytest.fixture
def quick_figures(monkeypatch):
    """In place of the drawings, which take seconds."""
    for name in ("rates", "optima", "heat"):
        monkeypatch.setattr(
            f"nf_resnets.plotting.sweep.{name}_figure",
            lambda *arguments, **options: next(
                each for each in arguments if hasattr(each, "write_text")
            ).write_text("<svg/>"),
        )


def finish(folder, capsys, **changes):
    """The exit code, and what was said on standard output and error."""
    folder.mkdir(exist_ok=True)
    code = command.finish(made(**changes), Options(out=folder), title="A sweep")
    out, err = capsys.readouterr()
    assert "test accuracy" in out and "3 finished" in out  # the table, whatever happens
    return code, out, err


def test_all_is_made(quick_figures, tmp_path, capsys):
    code, out, err = finish(tmp_path, capsys)
    assert (code, err) == (0, "")
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert all(f"  {name}\n" in out for name in FILES)


@pytest.mark.parametrize(("rule", "best"), [("strict", "2^-1*"), ("trimmed", "2^0!")])
def test_best_rates_are_chosen_by_the_rule_of_the_options(
    quick_figures, tmp_path, capsys, rule, best
):
    sweep = made()
    sweep.rows.extend({**each, "seed": 1, "key": each["key"] + "s"} for each in list(sweep.rows))
    sweep.rows[-1] |= {"state": "diverged", "test_accuracy": None, "train_loss": None}
    command.finish(sweep, Options(out=tmp_path, best=rule), title="A sweep")
    shown = capsys.readouterr().out
    assert best in shown and ("1 of 2" in shown) == (rule == "trimmed")
    page = (tmp_path / "report.html").read_text()
    assert ("stands behind the others" in page) == (rule == "strict")


@pytest.mark.parametrize("name", sorted(FILES))
def test_where_a_folder_is_in_the_way_the_others_are_made(quick_figures, tmp_path, capsys, name):
    (tmp_path / name).mkdir()
    code, out, err = finish(tmp_path, capsys)
    assert (code, err) == (1, f"{tmp_path / name} cannot be made: Is a directory.\n")
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert all((tmp_path / other).is_file() for other in FILES - {name})
    assert f"  {name}\n" not in out


def test_a_picture_that_cannot_be_drawn_is_a_sentence(quick_figures, tmp_path, capsys, monkeypatch):
    def fails(*arguments, **options):
        raise ValueError("no\nnumbers")

    monkeypatch.setattr("nf_resnets.plotting.sweep.heat_figure", fails)
    code, _, err = finish(tmp_path, capsys)
    assert code == 1 and err == (
        f"{tmp_path / 'heat.png'} cannot be made: ValueError: no numbers.\n"
    )
    assert {path.name for path in tmp_path.iterdir()} == FILES - {"heat.png"}
    monkeypatch.setattr(command, "optima", fails)
    with pytest.raises(ValueError, match="no"):
        command.draw(made(), tmp_path, title="")


def test_a_full_disk_is_a_sentence_for_each_file(quick_figures, tmp_path, capsys, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    code, _, err = finish(tmp_path, capsys)
    assert code == 1 and err.count("cannot be made: No space left on device.\n") == len(FILES)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", "\x00", "[" * 200_000 + "]" * 200_000])
def test_damaged_settings_are_kept_and_made_anew(quick_figures, tmp_path, capsys, text):
    (tmp_path / "settings.json").write_text(text)
    code, _, err = finish(tmp_path, capsys, compiled=0)
    assert code == 0 and "settings.json was damaged, and is made anew" in err
    assert json.loads((tmp_path / "settings.json").read_text())["runs"] == {"finished": 3}
    (kept,) = tmp_path.glob("damaged-*-settings.json")
    assert kept.read_text() == text and kept.name in err


def test_settings_that_are_whole_keep_their_seconds(quick_figures, tmp_path, capsys):
    (tmp_path / "settings.json").write_text('{"seconds": {"computing": 3.0}, "cores": 2}')
    code, _, err = finish(tmp_path, capsys, compiled=0)
    assert (code, err) == (0, "")
    assert json.loads((tmp_path / "settings.json").read_text())["seconds"] == {"computing": 3.0}


def test_what_could_not_be_written_before_is_said(quick_figures, tmp_path, capsys):
    code, _, err = finish(tmp_path, capsys, faults=("rows.csv cannot be made: full.",))
    assert (code, err) == (1, "rows.csv cannot be made: full.\n")
