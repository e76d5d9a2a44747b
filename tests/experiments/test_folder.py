"""The results folder: nothing is lost, nothing of another run is touched."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from experiments.folder import ResultsFolder, write_whole

ROOT = Path(__file__).parents[2]
COLUMNS = ("scheme", "depth", "accuracy")


def folder(path, settings=None, **options):
    return ResultsFolder(
        path,
        {"rate": 0.1, "depths": [10]} if settings is None else settings,
        grid=("depths",),
        columns=options.get("columns", COLUMNS),
        key=("scheme", "depth"),
    )


def release(held):
    held._lock.close()


def row(depth, accuracy=0.5):
    return {"scheme": "fixup", "depth": depth, "accuracy": accuracy}


def test_rows_come_back_as_they_were_written(tmp_path):
    held = folder(tmp_path)
    held.add(row(10, 1 / 3))
    release(held)
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
    release(held)
    release(folder(tmp_path, {"rate": 0.1, "depths": [10, 16]}))
    with pytest.raises(SystemExit, match=r"rate: 0.1 there, 0.2 now.*--out"):
        folder(tmp_path, {"rate": 0.2, "depths": [10]})


def test_numbers_that_are_equal_are_one_setting(tmp_path):
    release(folder(tmp_path, {"rate": 0.1}))
    release(folder(tmp_path, {"rate": 1e-1}))


@pytest.mark.parametrize("text", ["", "{", '{"settings": 3}', "[]"])
def test_settings_that_cannot_be_read_are_refused_and_kept(tmp_path, text):
    (tmp_path / "settings.json").write_text(text)
    with pytest.raises(SystemExit, match=r"settings.json cannot be read"):
        folder(tmp_path)
    assert (tmp_path / "settings.json").read_text() == text


def test_rows_without_settings_are_refused(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SystemExit, match=r"no settings.json"):
        folder(tmp_path)
    assert (tmp_path / "rows.csv").read_text() == "a,b\n1,2\n"


def test_rows_of_other_columns_and_torn_lines_are_refused(tmp_path):
    held = folder(tmp_path)
    held.add(row(10))
    release(held)
    with pytest.raises(SystemExit, match="expected scheme, depth$|expected scheme, depth. Choose"):
        folder(tmp_path, columns=("scheme", "depth"))
    (tmp_path / "rows.csv").write_text("scheme,depth,accuracy\nfixup,10\n")
    with pytest.raises(SystemExit, match="line 2: expected 3 values"):
        folder(tmp_path)


def test_two_processes_do_not_write_to_one_folder(tmp_path):
    held = folder(tmp_path)
    script = textwrap.dedent(
        f"""
        from pathlib import Path
        from experiments.folder import ResultsFolder
        ResultsFolder(Path({str(tmp_path)!r}), {{}}, grid=(), columns=("a",), key=("a",))
        """
    )
    other = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert other.returncode == 1
    assert "another process is writing to" in other.stderr
    assert "Traceback" not in other.stderr
    release(held)


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
