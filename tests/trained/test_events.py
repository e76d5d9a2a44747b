"""Trainings in TensorBoard and Weights & Biases: the options, and what is in the files."""

import signal
import sys

import numpy as np
import pytest

from nf_resnets import trained
from nf_resnets.trained import command
from nf_resnets.trained.events import events
from nf_resnets.trained.resume import StoppedError
from nf_resnets.training import loop
from nf_resnets.training.callbacks import Callback
from nf_resnets.training.checkpoint import Checkpoints
from nf_resnets.training.progress import Progress
from tests.sweep.small import Log
from tests.trained.conftest import EPOCHS, wanted
from tests.training.test_tensorboard import needs_tensorboardx, scalars
from tests.training.test_wandb import logged, needs_wandb

STEPS = 44 * EPOCHS


def progress(step, steps):
    return Progress(("loss", "accuracy"), steps, step, np.ones((steps, 2), np.float32))


@needs_tensorboardx
def test_a_training_that_goes_on_is_one_run_in_tensorboard(
    tmp_path, monkeypatch, compiled_once, home, capsys
):
    logs = tmp_path / "logs"
    how = wanted(tmp_path / "net", logs=command.Logs(tensorboard=logs))
    with monkeypatch.context() as patch:
        # In the middle of an epoch; a signal is noticed between two calls, here of a step each.
        patch.setattr(loop, "CALL_SECONDS", 0.0)
        patch.setattr(command.Display, "on_step", stop_at(60))
        assert command.run(how) == 128 + signal.SIGTERM
    assert "step 60 is kept" in capsys.readouterr().err
    assert command.run(how) == 0
    (folder,) = logs.iterdir()
    assert folder.name.startswith("wrn-10-1,fixup,digits-")
    assert len(list(folder.iterdir())) == 2
    found = scalars(folder)
    # Each step once, and the last test as the network's file has it.
    assert [step for step, _ in found["train/loss"]] == list(range(1, STEPS + 1))
    assert [step for step, _ in found["epoch/train_loss"]] == [44, 88, 132, 176]
    # Of an epoch that two processes made the mean is that of all its steps.
    losses = [loss for _, loss in found["train/loss"]]
    for step, mean in found["epoch/train_loss"]:
        assert mean == pytest.approx(np.mean(losses[step - 44 : step]), rel=1e-6)
    notes = trained.load(tmp_path / "net").notes
    assert found["test/accuracy"] == [(STEPS, pytest.approx(notes["test_accuracy"], rel=1e-6))]
    assert "training loss" in capsys.readouterr().out


@pytest.mark.parametrize("made", [0, 90])
def test_a_training_of_which_only_the_test_is_left_begins_and_ends(made):
    log = Log()
    with events(log, key="key", label="a run", settings={}) as told:
        told.on_begin(progress(made, 90))
        for step in range(made + 1, 91):
            told.on_step(step, {"loss": 1.0, "accuracy": 0.5})
        told.on_end({"test_accuracy": 0.75})
    assert log.of("on_run_begin") == [("key", "a run", {}, made, 90)]
    assert log.of("on_epoch") == [("key", 90, {"test_accuracy": 0.75})]
    assert len(log.of("on_step")) == 90 - made


def test_a_callback_that_raises_is_said(capsys):
    class Broken(Callback):
        def on_epoch(self, key, step, row):
            raise RuntimeError("no room")

    with events(Broken(), key="key", label="a run", settings={}) as told:
        told.on_begin(progress(0, 2))
        for step in (1, 2):
            told.on_epoch(step, 2, 1.0, 0.5)
    assert capsys.readouterr().err == "Broken.on_epoch raised: RuntimeError('no room')\n"


def stop_at(step):
    """A display that is interrupted at a step, as by Ctrl-C."""
    real = command.Display.on_step

    def on_step(self, made, steps, metrics):
        real(self, made, steps, metrics)
        if made == step:
            signal.raise_signal(signal.SIGTERM)

    return on_step


@needs_wandb
def test_a_training_is_a_run_of_weights_and_biases(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.chdir(tmp_path)

    def fit(model, dataset, recipe, *, on_begin, on_step, on_epoch, checkpoints):
        on_begin(progress(0, 2))
        for step in (1, 2):
            on_step(step, 2, {"loss": 3.0 - step, "accuracy": 0.5})
        on_epoch(2, 2, 1.5, 0.5)
        notes = {"steps": 2, "test_accuracy": 0.75, "test_loss": 1.0}
        variables = {"params": {"weight": model.width}}
        return trained.Trained(model, variables, trained.Images.of(dataset), notes)

    monkeypatch.setattr(command.fit, "fit", fit)
    monkeypatch.setattr(command, "_save", lambda *given, **options: None)
    assert command.run(wanted(tmp_path / "net", logs=command.Logs(wandb="mine"))) == 0
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    config, history, summary, code = logged(tmp_path, path.stem.removeprefix("run-"))
    assert config["network"] == "wrn-10-1" and config["learning_rate"] == 0.1
    assert history[1]["train/loss"] == 2.0 and history[2]["test/accuracy"] == 0.75
    assert summary["state"] == "finished" and code == 0


@pytest.mark.parametrize(
    ("option", "package", "extra"),
    [
        ({"tensorboard": "logs"}, "tensorboardX", "tensorboard"),
        ({"wandb": "mine"}, "wandb", "wandb"),
    ],
)
def test_a_missing_package_is_said_before_anything_is_made(
    option, package, extra, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert command.run(wanted(tmp_path / "net", logs=command.Logs(**option))) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and f"pip install nf_resnets[{extra}]" in err
    assert not (tmp_path / "net").exists()


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (trained.TrainedError("the run diverged at step 2"), "diverged"),
        (StoppedError(Checkpoints("nowhere", {}), 130), "waiting"),
        (KeyboardInterrupt(), "waiting"),
        (MemoryError("no room"), "failed"),
    ],
    ids=["diverged", "stopped", "interrupted", "failed"],
)
def test_callbacks_hear_how_a_training_that_does_not_end_was_left(error, state):
    log = Log()
    with (
        pytest.raises(type(error)),
        events(log, key="key", label="a run", settings={"seed": 3}) as told,
    ):
        told.on_begin(progress(44, 90))
        told.on_step(45, {"loss": 1.0})
        told.on_step(46, {"loss": 0.5})
        raise error
    assert log.of("on_run_begin") == [("key", "a run", {"seed": 3}, 44, 90)]
    assert log.of("on_step")[1] == ("key", 46, {"loss": [0.5]})
    assert log.of("on_run_end") == [("key", state, {"message": str(error)})]
