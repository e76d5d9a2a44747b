"""Output paths are tried before anything is computed; files are written whole or not at all."""

import os
from pathlib import Path

import pytest

from nf_resnets import places


def test_paths_are_expanded_and_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert places.try_folder("~/a/b") == tmp_path / "a" / "b"
    assert places.try_file("~/a/c") == tmp_path / "a" / "c"
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "a", tmp_path / "a" / "b"]


def test_paths_that_cannot_be_written_are_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    os.symlink(tmp_path / "nowhere", tmp_path / "link")
    for attempt, path, kind in (
        (places.try_folder, "file", FileExistsError),
        (places.try_folder, "file/below", OSError),
        (places.try_file, "file/below", OSError),
        (places.try_file, ".", OSError),
        (places.try_file, "link", OSError),
        (places.try_file, "file", FileExistsError),
    ):
        with pytest.raises(kind, match=Path(path).parts[0] if path != "." else "is a folder"):
            attempt(tmp_path / path)
    assert places.try_file(tmp_path / "file", overwrite=True) == tmp_path / "file"
    assert (tmp_path / "file").read_text() == "mine"


def test_pipes_and_devices_are_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path):
        with pytest.raises(OSError, match="no regular file; expected a file"):
            places.read_file(path)


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "new" / "file"
    places.write_whole(path, b"one", overwrite=False)
    with pytest.raises(FileExistsError, match="is there already"):
        places.write_whole(path, b"two", overwrite=False)

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(os, "fsync", full)
        places.write_whole(path, b"two", overwrite=True)
    assert path.read_bytes() == b"one" and list(path.parent.iterdir()) == [path]
    places.write_whole(path, b"two", overwrite=True)
    assert places.read_file(path) == b"two"
