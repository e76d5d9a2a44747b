"""The training of one call, and predictions from image files."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import nf_resnets
from nf_resnets import data, models, schemes, sweep, trained
from nf_resnets.sweep.grid import make_sweep
from nf_resnets.sweep.overrides import Overrides, overrides_of
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


# Softmax regression, as a pair of functions.
PAIR = (lambda key: np.zeros((64, 10), np.float32)), lambda p, x: x.reshape(len(x), -1) @ p


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
    found = nf_resnets.fit(
        digits, network=PAIR, optimizer=optax.sgd(0.5), batch_size=1437, steps=1, show=False
    )
    x = ((digits.train.images - digits.mean) / digits.std).reshape(1437, 64)
    wrong = 0.1 - np.eye(10)[digits.train.labels]
    # float32 sums of 1,437 numbers
    np.testing.assert_allclose(found.variables["params"], -0.5 * x.T @ wrong / 1437, atol=1e-5)
    again = nf_resnets.fit(
        digits, network=found, optimizer=optax.set_to_zero(), steps=1, show=False
    )
    assert_same(again.variables, found.variables)
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


def test_a_key_in_the_state_of_an_optimizer():
    noisy = optax.add_noise(0.1, 0.55, jax.random.key(5))
    found = nf_resnets.fit(
        "digits", network=PAIR, optimizer=optax.chain(optax.set_to_zero(), noisy), steps=1,
        show=False,
    )  # fmt: skip
    params = jnp.zeros((64, 10))
    expected, _ = noisy.update(params, noisy.init(params))
    np.testing.assert_allclose(found.variables["params"], expected, rtol=1e-6)


def test_batch_norm_keeps_the_statistics_that_it_was_tested_with(compiled_once):
    digits = data.load("digits")
    network = nf_resnets.fit(
        digits, model="cifar-resnet-8", stem_channels=2, scheme="batchnorm", steps=4,
        batch_size=32, bn_estimate_batches=2, show=False,
    )  # fmt: skip
    labels, found = digits.test.labels, predict(network, digits.test.images)
    loss = -np.log(found[np.arange(len(labels)), labels]).mean()
    assert loss == pytest.approx(network.notes["test_loss"], rel=1e-4)


def test_what_could_not_be_trained_or_kept_is_refused_before_the_first_step():
    with pytest.raises(ValueError, match="gradient_noise=True found with micro_batch=0"):
        nf_resnets.fit("digits", network=PAIR, gradient_noise=True, show=False)
    images = np.random.default_rng(0).random((8, 4, 4, 2))
    with pytest.raises(ValueError, match=r"shape=\(4, 4, 2\) found; expected \(H, W, C\) with 1"):
        nf_resnets.fit(data.from_arrays(images, np.arange(8) % 2), show=False)


def test_a_setting_that_what_is_given_does_not_read_is_refused(home, tmp_path):
    old = trained.load(home / "digits.safetensors")
    for network, setting in ((PAIR, {"alpha": 7.0}), (old, {"draw": "own"})):
        with pytest.raises(ValueError, match="found with network=; expected one of the two"):
            nf_resnets.fit("digits", network=network, **setting)
    with pytest.raises(ValueError, match="alpha=7 found, but scheme='fixup' has no alpha"):
        nf_resnets.fit("digits", network=old.model, alpha=7.0)
    with pytest.raises(ValueError, match="momentum=0.5 found with a transformation as optimizer="):
        nf_resnets.fit("digits", optimizer=optax.sgd(0.1), momentum=0.5)
    with pytest.raises(ValueError, match="peak_lr=.* found with a transformation as optimizer="):
        sweep.run({"peak_lr": [0.1, 0.2]}, tmp_path, optimizer=optax.sgd(0.1))


def test_an_optimizer_sees_the_scheme_of_its_run():
    grid, given = {"scheme": ("skipinit", "alpha_one")}, overrides_of(None, optax.sgd, settings={})
    for overrides, programs in ((Overrides(), 1), (given, 2)):
        plans = make_sweep(grid, {}, overrides=overrides).plans
        assert len({plan.program for plan in plans}) == programs


def test_a_scheme_of_ones_own_does_not_replace_what_is_given(tmp_path):
    mine = dataclasses.replace(schemes.get("fixup"), name="mine")
    network = models.CifarResNet(8, mine, num_classes=10, stem_channels=2)
    (row,) = sweep.run({"scalar_factor": [1.0]}, tmp_path, network=network, steps=1, show=False)
    assert (row["state"], row["scalar_factor"]) == ("finished", 1.0)


def test_a_sweep_in_one_call_tries_a_failed_run_again(tmp_path):
    for optimizer, state in ((optax.sgd, "failed"), (lambda settings: optax.sgd(0.1), "finished")):
        (row,) = sweep.run(
            {"seed": [0]}, tmp_path, network=PAIR, optimizer=optimizer, steps=1, show=False
        )
        assert row["state"] == state


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
