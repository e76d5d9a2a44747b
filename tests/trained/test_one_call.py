"""The training of one call, and predictions from image files."""

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from PIL import Image

import nf_resnets
from nf_resnets import data, models, sweep, trained
from nf_resnets.sweep.image_task import ImageTask
from nf_resnets.trained import fit
from nf_resnets.trained.predict import predict
from tests.trained.conftest import EPOCHS
from tests.training.small import Log


def equal(a, b):
    return all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b)))


def test_it_trains_as_the_command_does(home, compiled_once, tmp_path, capsys):
    twin = trained.load(home / "digits.safetensors")
    log = Log()
    network = nf_resnets.fit(
        "digits", model="wrn-10-1", stem_channels=8, epochs=EPOCHS, batch_size=32, callback=log
    )
    assert equal(network.variables, twin.variables)
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
    assert equal(trained.load(network.save(tmp_path / "n")).variables, twin.variables)


def test_logs_tell_trainings_apart(monkeypatch):
    """One key for all networks of a class emptied the log of the first training."""
    keys = []

    def train_one(program, start, plan, watch):
        keys.append(plan.key)
        raise trained.TrainedError("enough")

    monkeypatch.setattr(fit, "train_one", train_one)
    monkeypatch.setattr(ImageTask, "build", lambda *_: None)
    digits = data.load("digits")
    darker = data.from_arrays(digits.train.images // 2, digits.train.labels, name="digits")
    small, large = (models.WideResNet(depth=depth, scheme="fixup") for depth in (10, 16))
    for network, dataset, seed in (
        (small, digits, 0), (large, digits, 0), (small, darker, 0), (small, digits, 1),
        (small, digits, 0),
    ):  # fmt: skip
        with pytest.raises(trained.TrainedError, match="enough"):
            nf_resnets.fit(dataset, network=network, show=False, seed=seed)
    assert keys[4] == keys[0] and len(set(keys)) == 4


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
    with pytest.raises(trained.TrainedError, match="expected one of this library"):
        network.save("nowhere")


def test_files_and_pixels_have_the_same_classes(home):
    file = home / "digits.safetensors"
    files = sorted((home / "digits").glob("*.png"))
    found = nf_resnets.predict(file, files)
    network, images = trained.load(file), data.load("digits").test.images[:10]
    of_pixels = nf_resnets.predict(network, images)
    assert [name for name, _ in of_pixels] == [name for name, _ in found]
    # Pixels of files are rounded to 256 levels.
    chances = [[chance for _, chance in each] for each in (of_pixels, found)]
    np.testing.assert_allclose(*chances, atol=0.02)
    [(name, chance)] = nf_resnets.predict(network, files[3])
    # On some processors a batch of one is summed in another order: float32, 1e-7 a rounding.
    assert name == found[3][0] and chance == pytest.approx(found[3][1], rel=1e-5)
    assert nf_resnets.predict(network, []) == []
    every = predict(network, images)
    assert [int(name) for name, _ in of_pixels] == every.argmax(-1).tolist()
    np.testing.assert_array_equal(chances[0], every.max(-1))


def test_bad_arguments_are_refused_before_the_training(tmp_path):
    with pytest.raises(ValueError, match="'epoch' is no setting of a run; .*did you mean 'epochs'"):
        nf_resnets.fit("digits", epoch=3)
    with pytest.raises(ValueError, match="unknown data set 'digit'"):
        nf_resnets.fit("digit")
    with pytest.raises(ValueError, match="no-net"):
        nf_resnets.fit("digits", model="no-net")
    with pytest.raises(ValueError, match=r"nowhere is no folder"):
        nf_resnets.fit(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dataset": (1, 2)}, "dataset is a tuple; expected a name, the path of a folder, or a Da"),
        ({"network": print}, "network is a builtin_function_or_method; expected a Flax module, or"),
        ({"model": None}, "model=None found; expected text"),
        ({"network": models.WideResNet}, "network is a type; expected a Flax module"),
        (
            {"network": models.WideResNet(10, num_classes=9)},
            "num_classes=9; expected 10, the classes of digits",
        ),
        (
            {"network": models.WideResNet(10), "scheme": "rezero"},
            "scheme='rezero' found with network=; expected one of the two",
        ),
        ({"callback": print}, "callback is a builtin_function_or_method; expected a .*Callback"),
        ({"alpha": 0.5}, "alpha=0.5 found, but scheme='fixup' has no alpha"),
        ({"epochs": "3"}, "epochs='3' found; expected a finite number"),
        ({"batch_size": 16.5}, "batch_size=16.5 found; expected a whole number"),
        ({"optimizer": 3}, "optimizer is a int; expected an optax transformation"),
        ({"network": (len, len), "adaptive_clip": 0.1}, "adaptive_clip=0.1 found for a network of"),
        ({"seed": 1.5}, "seed=1.5 found; expected a whole number"),
        ({"flip": "no"}, "flip='no' found; expected true or false"),
        ({"optimizer": "adam"}, "optimizer='adam' found; expected sgd or adamw"),
        ({"padding": 8}, "padding=8 found; expected less than the 8 pixels"),
    ],
)
def test_arguments_of_another_kind_are_refused_before_the_training(arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        nf_resnets.fit(**{"dataset": "digits", **arguments})


def test_pixels_of_another_scale_are_refused(home):
    network, images = home / "digits.safetensors", data.load("digits").test.images[:2]
    for pixels, message in (
        (images / 16.0, "pixels from 0 to 1 found, which look scaled; expected raw ones, from 0 t"),
        ((images - 5.0) / 6.0, "pixels from -0.833 to 1.83 found, which look scaled"),
        (images * 16.0, "a pixel of .* found; expected 0 to 16"),
        (images * np.nan, "a pixel of nan found; expected 0 to 16"),
    ):
        with pytest.raises(trained.TrainedError, match=message):
            nf_resnets.predict(network, pixels)
    for others, name in ((list(images), "ndarray"), (data.load("digits"), "Dataset")):
        with pytest.raises(trained.TrainedError, match=rf"a {name}; .*raw pixels \[B, 8, 8, 1\]"):
            nf_resnets.predict(network, others)
    found = nf_resnets.predict(network, jax.numpy.asarray(images))
    assert found == nf_resnets.predict(network, images)


@pytest.mark.slow
def test_a_folder_of_images_is_learnt(tmp_path):
    """Dark and bright images, which four epochs tell apart."""
    rng = np.random.default_rng(0)
    for name, low in (("dark", 0), ("bright", 128)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for index in range(40):
            pixels = rng.integers(low, low + 128, (10, 12, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{index}.png")
    network = nf_resnets.fit(
        tmp_path / "photos@8", model="wrn-10-1", epochs=4, batch_size=8, show=False,
        callback=sweep.TensorBoard(tmp_path / "logs"),
    )  # fmt: skip
    assert network.notes["test_accuracy"] == 1.0
    assert len(list((tmp_path / "logs").glob("*/events*"))) == 1
    paths = [tmp_path / "photos" / name / "0.png" for name in ("dark", "bright")]
    assert [name for name, _ in nf_resnets.predict(network, paths)] == ["dark", "bright"]


@pytest.mark.slow
def test_a_run_that_diverges_is_said_to_the_callback():
    log = Log()
    with pytest.raises(trained.TrainedError, match="diverged"):
        nf_resnets.fit("digits", model="wrn-10-1", peak_lr=1e30, epochs=0.2, callback=log)
    assert [state for _, state, _ in log.of("on_run_end")] == ["diverged"]
