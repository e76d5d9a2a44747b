"""The training of one call, and predictions from image files."""

import flax.linen as nn
import numpy as np
import optax
import pytest

import nf_resnets
from nf_resnets import data, sweep, trained
from nf_resnets.trained.predict import predict
from tests.trained.conftest import EPOCHS
from tests.trained.networks import assert_same
from tests.training.small import Log


def test_it_trains_as_the_command_does(home, compiled_once, tmp_path, capsys):
    twin = trained.load(home / "digits.safetensors")
    log = Log()
    network = nf_resnets.fit(
        "digits", model="wrn-10-1", stem_channels=8, epochs=EPOCHS, batch_size=32, callback=log
    )
    assert_same(network.variables, twin.variables)
    assert network.notes["test_accuracy"] == twin.notes["test_accuracy"]
    assert capsys.readouterr().out.count("  epoch ") == EPOCHS
    # The events of one run, in order.
    (begin,), epochs, (end,) = log.of("on_run_begin"), log.of("on_epoch"), log.of("on_run_end")
    key, label, settings, step, steps = begin
    assert (label, step, steps) == ("wrn-10-1, fixup", 0, network.notes["steps"])
    assert settings["dataset"] == "digits" and settings["epochs"] == EPOCHS
    assert sum(len(each[2]["loss"]) for each in log.of("on_step")) == steps
    assert [each[1] for each in epochs] == [*range(steps // 4, steps + 1, steps // 4)]
    assert epochs[-1][2]["test_accuracy"] == network.notes["test_accuracy"]
    assert end[:2] == (key, "finished")
    assert_same(trained.load(network.save(tmp_path / "n")).variables, twin.variables)


class Net(nn.Module):
    """A network of another library's: BatchNorm, dropout, and names that no rule knows."""

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.BatchNorm(use_running_average=not train, name="norm")(x)
        x = nn.Dropout(0.5, deterministic=not train)(x)
        return nn.Dense(10, name="last")(x.reshape(len(x), -1))


def test_any_network_is_trained_with_any_optimizer():
    """A pair of functions makes the step of softmax regression in NumPy; a module learns."""
    digits, log = data.load("digits"), Log()
    pair = (lambda key: np.zeros((64, 10), np.float32)), lambda p, x: x.reshape(len(x), -1) @ p
    found = nf_resnets.fit(
        digits, network=pair, optimizer=optax.sgd(0.5), batch_size=1437, steps=1, show=False
    )
    x = ((digits.train.images - digits.mean) / digits.std).reshape(1437, 64)
    wrong = 0.1 - np.eye(10)[digits.train.labels]
    # float32 sums of 1,437 numbers
    np.testing.assert_allclose(found.variables["params"], -0.5 * x.T @ wrong / 1437, atol=1e-5)
    network = nf_resnets.fit(
        digits, network=Net(), peak_lr=0.01, epochs=2, average=0.9, show=False, callback=log,
        optimizer=lambda settings: optax.adamw(settings["learning_rate"]),
    )  # fmt: skip
    assert network.notes["test_accuracy"] > 0.8  # 92% measured
    assert np.abs(network.variables["batch_stats"]["norm"]["mean"]).max() > 0
    images = digits.test.images[:50]
    classes = [int(name) for name, _ in nf_resnets.predict(network, images)]
    assert np.mean(classes == digits.test.labels[:50]) > 0.7
    settings = log.of("on_run_begin")[0][2]
    assert (settings["model"], settings["optimizer"]) == ("Net", "given")
    with pytest.raises(ValueError, match="expected one of this library"):
        network.save("nowhere")


def test_a_setting_that_a_given_transformation_does_not_read_is_refused(tmp_path):
    with pytest.raises(ValueError, match="momentum=0.5 found with a transformation as optimizer="):
        nf_resnets.fit("digits", optimizer=optax.sgd(0.1), momentum=0.5)
    with pytest.raises(ValueError, match="peak_lr=.* found with a transformation as optimizer="):
        sweep.run({"peak_lr": [0.1, 0.2]}, tmp_path, optimizer=optax.sgd(0.1))


def test_files_and_pixels_have_the_same_classes(home):
    file = home / "digits.safetensors"
    files = sorted((home / "digits").glob("*.png"))
    network, images = trained.load(file), data.load("digits").test.images[:10]
    every = predict(network, images)
    expected = [(str(each.argmax()), each.max()) for each in every]
    assert nf_resnets.predict(network, images) == expected
    found = nf_resnets.predict(file, files)
    assert [name for name, _ in found] == [name for name, _ in expected]
    # Pixels of files are rounded to 256 levels.
    np.testing.assert_allclose([chance for _, chance in found], every.max(-1), atol=0.02)
    [(name, chance)] = nf_resnets.predict(network, files[3])
    # On some processors a batch of one is summed in another order: float32, 1e-7 a rounding.
    assert name == found[3][0] and chance == pytest.approx(found[3][1], rel=1e-5)
    assert nf_resnets.predict(network, []) == []
