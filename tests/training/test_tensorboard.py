"""TensorBoard logs: what is in the files, also after cuts, and that they never stop a sweep."""

from __future__ import annotations

import os
import struct
import sys

import numpy as np
import pytest

from nf_resnets.sweep.settings import RunSettings
from nf_resnets.training.callbacks import Callbacks
from nf_resnets.training.tensorboard import TensorBoard
from nf_resnets.training.wandb import WandB
from tests.sweep.small import key
from tests.training.small import Log

NAMES = ("loss", "accuracy", "grad_norm", "update_norm")
SETTINGS = RunSettings(scheme="fixup", batch_size=64, peak_lr=0.125, seed=3)
KEY = key(vars(SETTINGS))


def make_board(folder):
    pytest.importorskip("tensorboardX")
    return TensorBoard(folder / "logs")


def value(step: int, name: str) -> float:
    return step + NAMES.index(name) / 8


def curve(first: int, last: int) -> dict[str, np.ndarray]:
    """The numbers of the steps from first to last, each telling which it is."""
    steps = range(first, last + 1)
    return {name: np.float32([value(s, name) for s in steps]) for name in NAMES}


def row(epoch: int) -> dict:
    train = {"train_loss": 2.5 + epoch, "train_accuracy": 0.25}
    return {**train, "test_loss": 1.5 + epoch, "test_accuracy": 0.5 + epoch / 8, "seconds": 1.0}


def read(path):
    """The whole records of a TFRecord file."""
    whole, start = path.read_bytes(), 0
    while start + 12 < len(whole):
        stop = start + 12 + struct.unpack("<Q", whole[start : start + 8])[0]
        if stop + 4 <= len(whole):
            yield whole[start + 12 : stop]
        start = stop + 4


def events(folder):
    """The events of a run as TensorBoard has them: a start hides what it read of later steps."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    found = []
    for path in sorted(folder.iterdir()):
        assert path.name.startswith("events.out.tfevents.")
        for event in map(Event.FromString, read(path)):
            if event.session_log.status == SessionLog.START:
                found = [each for each in found if each.step < event.step]
            found.append(event)
    return found


def scalars(folder) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for event in events(folder):
        for each in event.summary.value:
            if each.WhichOneof("value") == "simple_value":
                found.setdefault(each.tag, []).append((event.step, each.simple_value))
    return found


def run_folder(tmp_path):
    (folder,) = (tmp_path / "logs").iterdir()
    return folder


def train(board, first: int, last: int, num_steps: int, chunk: int = 7, epoch: int = 10) -> None:
    """Steps as a worker makes them: in chunks, each at most to the end of an epoch."""
    step = first
    while step < last:
        to = min(step + chunk, (step // epoch + 1) * epoch, last)
        board.on_step(KEY, to, curve(step + 1, to))
        if to % epoch == 0 or to == num_steps:
            board.on_epoch(KEY, to, row(-(-to // epoch)))
        step = to


def test_a_run_is_in_its_file(tmp_path):
    board = make_board(tmp_path)
    board.on_run_begin(KEY, "a run", vars(SETTINGS), 0, 25)
    train(board, 0, 25, 25)
    board.on_run_end(KEY, "finished", {"steps": 25})
    folder = run_folder(tmp_path)
    assert folder.name == f"a_run-{KEY[:10]}"
    found = scalars(folder)
    for name in NAMES:  # eighths are exact in float32
        assert found.pop(f"train/{name}") == [(s, value(s, name)) for s in range(1, 26)]
    assert found == {
        "test/loss": [(10, 2.5), (20, 3.5), (25, 4.5)],
        "test/accuracy": [(10, 0.625), (20, 0.75), (25, 0.875)],
        "epoch/train_loss": [(10, 3.5), (20, 4.5), (25, 5.5)],
        "epoch/train_accuracy": [(10, 0.25), (20, 0.25), (25, 0.25)],
    }
    assert events(folder)[0].file_version == "brain.Event:2"
    # The settings are on TensorBoard's page of them.
    tags = [each.tag for event in events(folder) for each in event.summary.value]
    assert "_hparams_/session_start_info" in tags


@pytest.mark.parametrize("torn", [0, 30])
def test_a_run_that_is_cut_and_goes_on_has_the_curve_of_its_twin(tmp_path, torn):
    twin = make_board(tmp_path / "twin")
    twin.on_run_begin(KEY, "a run", vars(SETTINGS), 0, 40)
    train(twin, 0, 40, 40)
    twin.on_run_end(KEY, "finished", {"steps": 40})

    first = make_board(tmp_path / "cut")
    first.on_run_begin(KEY, "a run", vars(SETTINGS), 0, 40)
    train(first, 0, 17, 40)
    # Killed at step 17, with a checkpoint of step 10: the file ends anywhere behind that.
    assert (10, 10) in scalars(run_folder(tmp_path / "cut"))["train/loss"]
    first.__exit__()
    (path,) = run_folder(tmp_path / "cut").iterdir()
    os.truncate(path, path.stat().st_size - torn)
    second = make_board(tmp_path / "cut")
    second.on_run_begin(KEY, "called something else", vars(SETTINGS), 10, 40)
    train(second, 10, 23, 40)
    second.on_run_end(KEY, "waiting", {"message": "to go on later"})
    second.on_run_begin(KEY, "a run", vars(SETTINGS), 23, 40)
    train(second, 23, 40, 40)
    second.on_run_end(KEY, "finished", {"steps": 40})

    assert scalars(run_folder(tmp_path / "cut")) == scalars(run_folder(tmp_path / "twin"))


def test_no_file_stays_open(tmp_path):
    board, before = make_board(tmp_path), len(os.listdir("/proc/self/fd"))
    for end in (lambda: board.on_run_end(KEY, "lost", {}), board.__exit__):
        for _ in range(2):  # the second time without an end of the first
            board.on_run_begin(KEY, "a run", vars(SETTINGS), 0, 25)
        assert len(os.listdir("/proc/self/fd")) == before + 1
        end()
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_full_disk_is_said_once_and_disturbs_no_other_callback(tmp_path, monkeypatch):
    board, log, texts = make_board(tmp_path), Log(), []
    callbacks = Callbacks(board, log, say=texts.append)
    callbacks.on_run_begin(KEY, "a run", vars(SETTINGS), 0, 25)

    def full(data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(board._logs[KEY][0]._py_recordio_writer, "write", full)
    callbacks.on_step(KEY, 2, curve(1, 2))
    callbacks.on_step(KEY, 4, curve(3, 4))
    callbacks.on_run_end(KEY, "finished", {})
    assert len(texts) == 1 and "TensorBoard.on_step raised" in texts[0]
    assert "No space left" in texts[0]
    # Another callback hears of it and of everything else.
    kinds = ["on_run_begin", "on_message", "on_step", "on_step", "on_run_end"]
    assert [event[0] for event in log.events] == kinds and log.of("on_message") == [(texts[0],)]
    board.__exit__()


@pytest.mark.parametrize(
    ("logger", "module", "extra"),
    [(TensorBoard, "tensorboardX", "tensorboard"), (WandB, "wandb", "wandb")],
)
def test_without_its_package_it_is_said_what_to_install(
    tmp_path, monkeypatch, logger, module, extra
):
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=rf"pip install 'nf_resnets\[{extra}\]'"):
        logger(tmp_path)
