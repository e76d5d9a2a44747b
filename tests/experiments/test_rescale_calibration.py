"""RescaleNet's calibration as a user runs it, and what a dead unit is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from experiments import rescale_calibration as calibration
from experiments.experiment import Results
from experiments.untrained import normalized
from nf_resnets import data, models
from tests.experiments.as_a_user import lines_of, make


@pytest.mark.slow
def test_smoke_measures_the_start_and_trains(tmp_path):
    shown = make("rescale_calibration", "--scale", "smoke", "--workers", 1, "--out", tmp_path)
    rows = lines_of(tmp_path / "rows.csv")
    settings = calibration.SCALES["smoke"]
    start = [row for row in rows if row["part"] == "start"]
    assert [int(row["images"]) for row in start] == list(settings.start_images)
    assert len(rows) - len(start) == len(settings.images)
    # From 2 images on, next to no unit is dead; with biases at 0 a fifth of them.
    dead = [float(row["dead"]) for row in start]
    assert dead[0] > 0.1 > 0.05 > max(dead[1:])
    assert "nothing, 0" in shown and Image.open(tmp_path / "figure.png").size[0] > 800


@pytest.fixture(scope="module")
def network():
    model = models.CifarResNet(depth=8, scheme="rescalenet", stem_channels=4)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 8, 8, 1)))["params"]
    random = np.random.default_rng(0)

    def drawn(path, leaf):
        if path[-1].key == "kernel":
            return jnp.float32(random.normal(scale=0.3, size=leaf.shape))
        return jnp.full(leaf.shape, float(path[-1].key == "multiplier"))

    return model, jax.tree_util.tree_map_with_path(drawn, shapes)


def test_units_whose_relu_is_never_on_are_dead(network):
    """Three blocks of 4, 8 and 16 channels behind a stem of 4: 32 units in front of a ReLU."""
    model, params = network
    images = jax.random.uniform(jax.random.key(1), (8, 8, 8, 1))
    gradients_of = jax.jit(jax.grad(lambda p: jnp.sum(model.apply({"params": p}, images))))
    # Of every unit of a layer at most a few are dead at the start.
    before, total = calibration.dead_units(gradients_of(params))
    assert total == 32 and before < 8
    # The input of that layer is shifted by 1, and one unit's weights are negative.
    params = jax.tree.map(lambda leaf: leaf, params)
    block = params["stage_2"]["first"]
    block["conv_1"]["kernel"] = block["conv_1"]["kernel"].at[..., 3].set(-1.0)
    block["bias_1a"]["vector"] += 1
    gradients = gradients_of(params)
    found = np.abs(gradients["stage_2"]["first"]["conv_1"]["kernel"]).max(axis=(0, 1, 2))
    assert found[3] == 0
    assert calibration.dead_units(gradients)[0] >= 1


def test_the_images_that_the_biases_are_set_from_are_the_first_ones(network):
    model, params = network
    digits = data.load("digits")
    images = normalized(digits, digits.train.images, 8)
    few, many = (
        jax.jit(calibration.calibrated_on(count).calibrate, static_argnums=0)(
            model.apply, params, images[:64]
        )
        for count in (2, 64)
    )
    # The first bias is minus the mean of the stem's channels, of those images only.
    apply = jax.jit(lambda p, x: model.apply({"params": p}, x, mutable=["centering"])[1])
    stem = apply(params, images[:2])["centering"]
    first = next(name for name in stem if name.startswith("bias"))
    np.testing.assert_allclose(few[first]["vector"], stem[first]["vector"], rtol=1e-5, atol=1e-7)
    assert not np.allclose(few[first]["vector"], many[first]["vector"], rtol=1e-3)
    assert calibration.calibrated_on(0).calibrate is None


def test_what_has_not_run_is_not_drawn_as_diverged(monkeypatch):
    settings = calibration.SCALES["cifar"]
    start = [
        {"part": "start", "images": str(images), "rate": "", "dead": str(0.01 * (not images))}
        for images in settings.start_images
    ]
    training = {"part": "training", "images": "0", "rate": "0.025"}
    training |= {"status": "finished", "test_accuracy": "0.4"}
    drawn = {}
    monkeypatch.setattr(
        calibration, "curves_figure", lambda panels, path, **words: drawn.update(words, all=panels)
    )
    calibration.plot(Results(settings, None, [*start, training]), None)
    (curve,) = drawn["all"][1].curves
    assert (curve.x, curve.y, curve.diverged) == ([0.025], [40.0], False)
    assert drawn["title"].endswith("and none with biases set from images")
