"""Where results may go: what cannot be written is refused before, and nothing is left behind."""

import os
import stat
import threading
from pathlib import Path

import pytest

from nf_resnets import places
from nf_resnets.places import PlaceError


def everything(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


BAD = {
    "in a file": ("file/x", "it does not lie in a folder"),
    "in a file's file": ("file/x/y", "it does not lie in a folder"),
    "of nobody": ("~nobody-of-that-name/x", "~nobody-of-that-name is nobody's home folder here"),
    "in a system folder": ("/proc/x", "cannot be written"),
    "below a device": ("/dev/null/x", "it does not lie in a folder"),
    "a loop": ("loop/x", "cannot be written"),
    "too deep": ("/".join(["d" * 200] * 25), "File name too long"),
    "no path": ("", "expected a path"),
}


@pytest.fixture
def here(home, monkeypatch):
    monkeypatch.chdir(home)
    Path("file").write_text("mine")
    os.symlink("loop", "loop")
    os.mkfifo("pipe")
    Path("folder").mkdir()
    return home


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("attempt", [places.try_file, places.try_folder])
def test_what_cannot_be_written_is_refused_and_nothing_is_left(here, name, attempt):
    path, reason = BAD[name]
    before = everything(here)
    with pytest.raises(PlaceError, match=reason) as found:
        attempt(path, "--out")
    text = str(found.value)
    assert text.startswith("--out") and text.endswith(".") and "\n" not in text
    assert everything(here) == before


@pytest.mark.parametrize(
    ("path", "overwrite", "reason"),
    [
        ("file", False, "is there already"),
        ("folder", True, "is a folder"),
        ("pipe", True, "is a pipe"),
        ("/dev/null", True, "is a device"),
        ("n" * 256, False, "File name too long"),
        ("n" * 250, False, "File name too long"),  # with the ending
        ("ü" * 125, False, "File name too long"),  # bytes count, not letters
    ],
)
def test_a_file_is_refused_for_what_is_there_or_its_name(here, path, overwrite, reason):
    before = everything(here)
    with pytest.raises(PlaceError, match=reason):
        places.try_file(path, "--out", overwrite=overwrite, ending=".ending")
    assert everything(here) == before


def test_what_can_be_written_is_left_as_it_was(here):
    before = everything(here)
    assert places.try_file("~/a/b/c") == here / "a" / "b" / "c"
    assert places.try_file("file", overwrite=True) == Path("file")
    assert places.try_file("n" * 255) == Path("n" * 255)
    assert everything(here) == before and Path("file").read_text() == "mine"
    assert places.try_folder("~/a/b") == here / "a" / "b"
    assert everything(here / "a") == ["b"]


@pytest.mark.parametrize("function", ["write", "fsync", "rename", "unlink"])
def test_a_trial_writes_syncs_renames_and_removes(tmp_path, monkeypatch, function):
    """Each of the four is an error of its own, and nothing stays."""
    done, real = [], getattr(os, function)

    def fails(*arguments, **options):
        done.append(arguments)
        if function == "unlink":
            real(*arguments, **options)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, function, fails)
    with pytest.raises(PlaceError, match="No space left on device"):
        places.try_folder(tmp_path / "new" / "folder", "--out")
    assert done and everything(tmp_path) == []


def test_files_are_written_whole_under_the_longest_name_with_the_usual_rights(tmp_path):
    path = tmp_path / "folder" / ("n" * 255)
    places.write_whole(path, b"one", overwrite=False)
    with pytest.raises(PlaceError, match="is there already"):
        places.write_whole(path, b"two", overwrite=False)
    assert path.read_bytes() == b"one"
    places.write_whole(path, b"two", overwrite=True)
    assert path.read_bytes() == b"two" and len(everything(tmp_path)) == 2
    (tmp_path / "usual").write_text("")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)


@pytest.mark.parametrize("path", ["pipe", "/dev/zero", "/dev/null"])
def test_what_may_never_end_is_not_read(here, path):
    """In a thread: a pipe that is opened would hold the test for ever."""
    found = []

    def read():
        with pytest.raises(PlaceError, match=r"is a (pipe|device); expected a file"):
            places.read_file(path)
        found.append(path)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(10)
    assert found == [path]


def test_files_are_read_and_folders_are_not(here):
    assert places.read_file("file") == b"mine"
    with pytest.raises(IsADirectoryError):
        places.read_file("folder")
    with pytest.raises(FileNotFoundError):
        places.read_file("gone")
