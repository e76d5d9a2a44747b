"""Trainings in TensorBoard and Weights & Biases: the options, and what is in the files."""

import signal
import sys

import pytest

from nf_resnets import trained
from nf_resnets.trained import command
from nf_resnets.trained.events import events
from nf_resnets.trained.resume import StoppedError
from nf_resnets.training.checkpoint import Checkpoints
from tests.sweep.small import Log
from tests.trained.conftest import EPOCHS, wanted
from tests.training.test_tensorboard import needs_tensorboardx, scalars
from tests.training.test_wandb import logged, needs_wandb

STEPS = 44 * EPOCHS


@needs_tensorboardx
def test_a_training_that_goes_on_is_one_run_in_tensorboard(
    tmp_path, monkeypatch, compiled_once, home, capsys
):
    logs = tmp_path / "logs"
    how = wanted(tmp_path / "net", logs=command.Logs(tensorboard=logs))
    with monkeypatch.context() as patch:
        patch.setattr(command.Display, "_print", stop_at(" 88 of"))
        assert command.run(how) == 128 + signal.SIGTERM
    assert command.run(how) == 0
    (folder,) = logs.iterdir()
    assert folder.name.startswith("wrn-10-1,fixup,digits-")
    assert len(list(folder.iterdir())) == 2
    found = scalars(folder)
    # Each step once, and the last test as the network's file has it.
    assert [step for step, _ in found["train/loss"]] == list(range(1, STEPS + 1))
    assert [step for step, _ in found["epoch/train_loss"]] == [44, 88, 132, 176]
    notes = trained.load(tmp_path / "net").notes
    assert found["test/accuracy"] == [(STEPS, pytest.approx(notes["test_accuracy"], rel=1e-6))]
    assert "training loss" in capsys.readouterr().out


def stop_at(text):
    """A display that is interrupted at a line, as by Ctrl-C."""
    real = command.Display._print

    def say(self, line):
        real(self, line)
        if text in line:
            signal.raise_signal(signal.SIGTERM)

    return say


@needs_wandb
def test_a_training_is_a_run_of_weights_and_biases(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.chdir(tmp_path)

    def fit(model, dataset, recipe, *, on_step, on_epoch, checkpoints):
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
        told.on_step(45, 90, {"loss": 1.0})
        told.on_step(46, 90, {"loss": 0.5})
        raise error
    assert log.of("on_run_begin") == [("key", "a run", {"seed": 3}, 44, 90)]
    assert log.of("on_step")[1] == ("key", 46, {"loss": [0.5]})
    assert log.of("on_run_end") == [("key", state, {"message": str(error)})]
