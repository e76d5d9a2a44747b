"""The results folder: nothing is lost, nothing of another run is touched."""

import json
import os
import tempfile
from pathlib import Path

import pytest

from experiments.folder import CurvesFile, ResultsFolder, write_whole

COLUMNS = ("scheme", "depth", "accuracy")


def folder(path, settings=None, **options):
    return ResultsFolder(
        path,
        {"rate": 0.1, "depths": [10]} if settings is None else settings,
        grid=("depths",),
        columns=options.get("columns", COLUMNS),
        key=("scheme", "depth"),
    )


def row(depth, accuracy=0.5):
    return {"scheme": "fixup", "depth": depth, "accuracy": accuracy}


def test_rows_come_back_as_they_were_written(tmp_path):
    held = folder(tmp_path)
    held.add(row(10, 1 / 3))
    again = folder(tmp_path)
    assert again.has(scheme="fixup", depth=10)
    assert not again.has(scheme="fixup", depth=16)
    assert float(again.rows[0]["accuracy"]) == 1 / 3


def test_a_row_is_never_replaced(tmp_path):
    held = folder(tmp_path)
    held.add(row(10))
    with pytest.raises(ValueError, match="there already"):
        held.add(row(10, 0.9))
    assert float(held.rows[0]["accuracy"]) == 0.5


def test_a_row_with_other_columns_is_refused(tmp_path):
    with pytest.raises(ValueError, match="expected"):
        folder(tmp_path).add({"scheme": "fixup"})


def test_the_grid_may_grow_but_other_settings_may_not_change(tmp_path):
    held = folder(tmp_path)
    held.add(row(10))
    folder(tmp_path, {"rate": 0.1, "depths": [10, 16]})
    with pytest.raises(SystemExit, match=r"rate: 0.1 there, 0.2 now.*--out"):
        folder(tmp_path, {"rate": 0.2, "depths": [10]})


def test_numbers_that_are_equal_are_one_setting(tmp_path):
    folder(tmp_path, {"rate": 0.1})
    folder(tmp_path, {"rate": 1e-1})


@pytest.mark.parametrize("text", ["", "{", '{"settings": 3}', "[]"])
def test_settings_that_cannot_be_read_are_refused_and_kept(tmp_path, text):
    (tmp_path / "settings.json").write_text(text)
    with pytest.raises(SystemExit, match=r"settings.json cannot be read"):
        folder(tmp_path)
    assert (tmp_path / "settings.json").read_text() == text


@pytest.mark.parametrize("name", ["table.txt", "figure.png"])
def test_files_that_no_experiment_has_written_are_kept(name, tmp_path):
    (tmp_path / name).write_text("mine")
    with pytest.raises(SystemExit, match=f"has {name} but no settings.json to say what it is"):
        folder(tmp_path)
    assert (tmp_path / name).read_text() == "mine"
    assert not (tmp_path / "settings.json").exists()


def test_rows_without_settings_are_refused(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SystemExit, match=r"no settings.json"):
        folder(tmp_path)
    assert (tmp_path / "rows.csv").read_text() == "a,b\n1,2\n"


def test_rows_of_other_columns_and_torn_lines_are_refused(tmp_path):
    held = folder(tmp_path)
    held.add(row(10))
    with pytest.raises(SystemExit, match="expected scheme, depth$|expected scheme, depth. Choose"):
        folder(tmp_path, columns=("scheme", "depth"))
    (tmp_path / "rows.csv").write_text("scheme,depth,accuracy\nfixup,10\n")
    with pytest.raises(SystemExit, match="line 2: expected 3 values"):
        folder(tmp_path)


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match="cannot be written: it does not lie in a folder"):
        folder(tmp_path / "file" / "inside")


def test_write_whole_leaves_the_old_file_when_writing_fails(tmp_path, monkeypatch):
    file = tmp_path / "rows.csv"
    write_whole(file, "old")

    def fail(_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_whole(file, "new")
    assert file.read_text() == "old"


def test_settings_name_machine_and_versions(tmp_path):
    folder(tmp_path)
    machine = json.loads((tmp_path / "settings.json").read_text())["machine"]
    assert {"date", "device", "jax", "flax", "python", "nf_resnets"} <= set(machine)
    info = Path("/proc/cpuinfo")
    if info.exists() and "model name" in info.read_text():
        assert f": {machine['processor']}\n" in info.read_text()


def test_a_row_that_cannot_be_written_is_not_lost(tmp_path, monkeypatch, capsys):
    """It waits for the next row; at the end it goes into the temporary folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    held = folder(tmp_path / "results")
    (tmp_path / "results" / "rows.csv").mkdir()
    held.add(row(10))
    held.add(row(16))
    assert capsys.readouterr().err.count("rows.csv cannot be written: Is a directory") == 1
    held.settle()
    (fault,) = held.faults
    kept = Path(fault.split("it is kept as ")[1].removesuffix("."))
    assert kept.is_relative_to(tmp_path) and kept.read_text().count("fixup") == 2
    (tmp_path / "results" / "rows.csv").rmdir()
    held.add(row(22))
    assert (tmp_path / "results" / "rows.csv").read_text().count("fixup") == 3
    held.faults.clear()
    held.settle()
    assert held.faults == []


def test_what_can_be_made_of_the_rows_is_made(tmp_path):
    held = folder(tmp_path)
    (tmp_path / "figure.png").mkdir()

    def bad(path):
        raise ValueError("no\nnumbers.")

    held.write_text("table.txt", "table")
    held.draw("figure.png", lambda path: path.write_bytes(b"figure"))
    held.draw("other.png", bad)
    held.draw("third.png", lambda path: path.write_bytes(b"third"))
    assert held.faults == [
        f"{tmp_path / 'figure.png'} cannot be made: Is a directory.",
        f"{tmp_path / 'other.png'} cannot be made: ValueError: no numbers.",
    ]
    names = {"settings.json", "table.txt", "figure.png", "third.png"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_damaged_files_are_refused_in_one_sentence(tmp_path):
    """Before anything is made; what is there stays."""
    held = folder(tmp_path)
    held.add(row(10))
    rows, settings = ((tmp_path / name).read_bytes() for name in ("rows.csv", "settings.json"))
    deep = b"[" * 200_000 + b"]" * 200_000
    many = json.dumps({**json.loads(settings), "later_machines": 3}).encode()
    for name, good, bads in (
        ("settings.json", settings, (b"", b"{", b"[]", b"\xff", deep, many, b'{"settings": 3}')),
        ("rows.csv", rows, (b"\xff", b"a\0b", b"x" * 200_000, rows + b"1,2\n")),
    ):
        for bad in bads:
            (tmp_path / name).write_bytes(bad)
            with pytest.raises(SystemExit, match=name) as found:
                folder(tmp_path)
            assert "\n" not in str(found.value)[:-1] and (tmp_path / name).read_bytes() == bad
        (tmp_path / name).unlink()
        os.mkfifo(tmp_path / name)
        with pytest.raises(SystemExit, match=f"{name} .*is a pipe; expected a file"):
            folder(tmp_path)
        (tmp_path / name).unlink()
        (tmp_path / name).write_bytes(good)
    folder(tmp_path)


KEY = ("variant", "seed")


def folder_of_curves(path):
    return ResultsFolder(path, {}, grid=(), columns=(*KEY, "accuracy"), key=KEY)


def curves(held):
    return CurvesFile(held, columns=(*KEY, "step", "loss"), key=KEY)


def steps(*losses):
    return [{"step": step, "loss": loss, "grad_norm": 1} for step, loss in enumerate(losses, 1)]


def test_curves_come_back_as_they_were_written_and_a_run_made_again_replaces_its_own(tmp_path):
    held = folder_of_curves(tmp_path)
    first = curves(held)
    first.put({"variant": "a", "seed": 0}, steps(1 / 3, 0.25))
    first.put({"variant": "b", "seed": 0}, steps(2.5))
    again = curves(held)
    lines = again.of({"variant": "a", "seed": "0"})
    assert [(line["step"], float(line["loss"])) for line in lines] == [("1", 1 / 3), ("2", 0.25)]
    again.put({"variant": "a", "seed": 0}, steps(7.0))
    third = curves(held)
    assert [line["loss"] for line in third.of({"variant": "a", "seed": 0})] == ["7.0"]
    assert [line["loss"] for line in third.of({"variant": "b", "seed": 0})] == ["2.5"]
    assert third.of({"variant": "c", "seed": 0}) == []


def test_a_row_without_its_curve_is_refused(tmp_path):
    held = folder_of_curves(tmp_path)
    curves(held).put({"variant": "a", "seed": 0}, steps(1.0))
    held.add({"variant": "a", "seed": 0, "accuracy": 0.5})
    curves(held).check()
    (tmp_path / "curves.csv").unlink()
    with pytest.raises(SystemExit, match="has no lines of the run a, 0, whose row is in rows.csv"):
        curves(held).check()


def test_values_are_those_of_the_steps_that_all_of_them_have(tmp_path):
    kept = curves(folder_of_curves(tmp_path))
    kept.put({"variant": "a", "seed": 0}, steps(1.0, 2.0, 9.0))
    kept.put({"variant": "a", "seed": 1}, steps(3.0, 5.0))
    keys = [{"variant": "a", "seed": seed} for seed in (0, 1)]
    assert kept.values(keys, "loss") == ([1, 2], [[1.0, 3.0], [2.0, 5.0]])
    # A short run is thinned less: its positions are other steps.
    kept.put({"variant": "a", "seed": 2}, [{"step": 2, "loss": 0.0}, {"step": 4, "loss": 0.0}])
    keys = [{"variant": "a", "seed": seed} for seed in (0, 2)]
    assert kept.values(keys, "loss") == ([2], [[2.0, 0.0]])
