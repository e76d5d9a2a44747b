"""Trainings of the commands that are cut off, and go on; networks that cannot be written."""

import functools
import signal

import pytest

from nf_resnets import places
from nf_resnets.cli import networks as command
from nf_resnets.command_line import finish
from nf_resnets.places import held
from nf_resnets.trained import run
from nf_resnets.training.checkpoint import Checkpoints
from nf_resnets.training.display import Display
from tests.trained.conftest import wanted


@pytest.fixture(autouse=True)
def signals_are_heard():
    """Also where the tests run in a shell's background, which ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted(monkeypatch, number=signal.SIGINT):
    """Lets a signal come at the end of the first epoch, once."""
    real, left = Display.on_epoch, [number]

    def on_epoch(self, *values):
        real(self, *values)
        if left:
            signal.raise_signal(left.pop())

    monkeypatch.setattr(Display, "on_epoch", on_epoch)


def fails(wanted, capsys, code=2):
    capsys.readouterr()
    assert finish(wanted) == code
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err


def kept(err, folder):
    """The step that is said to be kept, where it is."""
    start, end = (
        "Stopped; step ",
        f" is kept in {folder}, and the same command goes on from there.\n",
    )
    assert err.startswith(start) and err.endswith(end), err
    step = int(err.removeprefix(start).removesuffix(end))
    assert Checkpoints(folder).steps()[-1] == step
    return step


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_training_that_was_stopped_goes_on_to_the_same_file(
    tmp_path, monkeypatch, capsys, compiled_once, home, number
):
    out = tmp_path / "net.safetensors"
    with monkeypatch.context() as patch:
        interrupted(patch, number)
        err = fails(wanted(out), capsys, 128 + number)
    step = kept(err, tmp_path / "net.safetensors.unfinished")
    assert 44 <= step < 176 and not out.exists()
    assert finish(wanted(out)) == 0
    found = capsys.readouterr().out
    assert f"goes on from step {step} of 176" in found
    assert "step 44 of 176" not in found and "step 176 of 176" in found
    assert out.read_bytes() == (home / "digits.safetensors").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["net.safetensors"]


def test_a_training_whose_network_cannot_be_written_is_kept(
    tmp_path, monkeypatch, capsys, compiled_once, home
):
    """As one that is killed between its last step and the file."""
    out = tmp_path / "net.safetensors"
    monkeypatch.setattr(run, "train", functools.partial(run.train, save_seconds=0.0))
    with monkeypatch.context() as patch:

        def full(path, *_, **__):
            raise OSError(28, "No space left on device")

        patch.setattr(places, "write_whole", full)
        assert "No space left on device" in fails(wanted(out), capsys)
    assert Checkpoints(tmp_path / "net.safetensors.unfinished").steps()
    assert finish(wanted(out)) == 0
    assert "goes on from step" in capsys.readouterr().out
    assert out.read_bytes() == (home / "digits.safetensors").read_bytes()


def stop(*_, **__):
    raise KeyboardInterrupt


def test_a_second_training_into_one_file_says_so_before_it_begins(tmp_path, monkeypatch, capsys):
    out = tmp_path / "net"
    folder = tmp_path / "net.unfinished"
    folder.mkdir()
    monkeypatch.setattr(command.fit, "fit_one", stop)
    with held(folder / "lock"):
        err = fails(wanted(out), capsys)
    assert err == (
        f"another process is training for {out}; wait for it, or choose another file with --out.\n"
    )
    assert folder.is_dir()
    fails(wanted(out), capsys, 130)  # let go of, it begins


def test_a_run_that_diverges_leaves_nothing_that_is_in_the_way(
    tmp_path, monkeypatch, capsys, compiled_once
):
    monkeypatch.setattr(run, "train", functools.partial(run.train, save_seconds=0.0))
    err = fails(wanted(tmp_path / "net", peak_lr=1e9), capsys)
    assert "the run diverged (" in err and "lower the learning rate, 1e+09" in err
    assert list(tmp_path.iterdir()) == []
