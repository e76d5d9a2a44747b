"""The largest stable rates as a user measures them, and the parts they are made of."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from PIL import Image

from experiments import theory_stable_rate
from nf_resnets import data, models, optim
from tests.experiments.as_a_user import lines_of, make

SETTINGS = dataclasses.replace(
    theory_stable_rate.Settings(), lowest_log2_rate=-3, highest_log2_rate=3
)


@pytest.mark.slow
def test_rates_are_measured_drawn_and_kept(tmp_path):
    output = make("theory_stable_rate", "--scale", "smoke", "--out", tmp_path)
    rows = lines_of(tmp_path / "rows.csv")
    settings = theory_stable_rate.SCALES["smoke"]
    lines = {line["title"]: line for line in theory_stable_rate.summaries(rows, settings)}
    assert list(lines) == ["BatchNorm", "Fixup", "Fixup, scalars × 0.1"]
    octaves = settings.highest_log2_rate - settings.lowest_log2_rate + 1
    for title, line in lines.items():
        own = [row for row in rows if row["title"] == title]
        assert sum(row["quantity"] == "loss" for row in own) >= octaves
        assert line["best"] <= line["largest"] < 16
        assert title in output
        # Classes alike, and a loss at the start that is chance where the head is zero.
        (first,) = [float(row["value"]) for row in own if row["quantity"] == "loss at start"]
        assert first == pytest.approx(math.log(10), rel=1e-5) or title == "BatchNorm"
    # Slower scalars have less curvature along them.
    assert lines["Fixup, scalars × 0.1"]["curvature"] < lines["Fixup"]["curvature"]
    # Measured: 1.4 against 0.125 and 0.25, with steps of half an octave.
    assert lines["BatchNorm"]["largest"] > 2 * lines["Fixup"]["largest"]
    assert Image.open(tmp_path / "figure.png").size[0] > 1000

    again = make("theory_stable_rate", "--scale", "smoke", "--out", tmp_path)
    assert lines_of(tmp_path / "rows.csv") == rows
    assert "seed 0" in output and "seed 0" not in again


def trains_up_to(rate, *, lost=math.inf):
    """Losses that end at 0.1 up to a rate, at 9 beyond it, and nowhere from ``lost`` on."""

    def losses_at(at):
        return np.full(45, np.nan if at >= lost else 0.1 if at <= rate else 9.0)

    return losses_at


@pytest.mark.parametrize(
    ("border", "found"),
    [(3.0, 2 * 2**0.5), (2.1, 2.0), (0.13, 0.125), (100.0, 64 * 2**0.5)],  # the last: 2**3 trains
)
def test_the_border_is_found_to_half_an_octave(border, found):
    ends, largest = theory_stable_rate.border(trains_up_to(border, lost=300), SETTINGS, 2.0)
    assert largest == pytest.approx(found, rel=1e-6)  # the rate is a float32 in between
    assert ends[0.125] == pytest.approx(0.1)
    assert set(ends) >= {2.0**power for power in range(-3, 4)}


def test_a_scheme_that_no_rate_trains_has_none():
    ends, largest = theory_stable_rate.border(trains_up_to(0.01, lost=2.0), SETTINGS, 2.0)
    assert largest is None
    assert ends[1.0] == 9.0 and ends[2.0] == math.inf


def test_a_rate_that_always_trains_is_an_error():
    with pytest.raises(ValueError, match="still trains; expected a largest stable rate"):
        theory_stable_rate.border(trains_up_to(math.inf), SETTINGS, 2.0)


@pytest.mark.slow
def test_training_is_that_of_sgd_with_slower_scalars():
    settings = dataclasses.replace(SETTINGS, stem_channels=4, batch_size=16, steps=10)
    dataset = data.load("digits")
    network = theory_stable_rate.make_network(settings, dataset, "fixup", 10)
    params = network.draw(jax.random.key(0))
    batches = theory_stable_rate.batches_of(settings, dataset, 0)
    start, scales = theory_stable_rate.coordinates(params, 0.1)
    found = network.losses(start, scales, batches, jnp.float32(0.1))

    model = models.WideResNet(depth=10, scheme="fixup", stem_channels=4)
    images = (dataset.train.images - np.float32(dataset.mean).reshape(1, 1, 1, -1)) / np.float32(
        dataset.std
    ).reshape(1, 1, 1, -1)

    @jax.jit
    def gradient(params, batch):
        def loss(at):
            logits = model.apply({"params": at}, jnp.asarray(images)[batch])
            labels = jnp.asarray(dataset.train.labels)[batch]
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        return jax.value_and_grad(loss)(params)

    optimizer = optim.sgd(0.1, momentum=0.9, scalar_factor=0.1, scalars=theory_stable_rate.SCALARS)
    state, losses = optimizer.init(params), []
    for batch in batches:
        loss, gradients = gradient(params, batch)
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(float(loss))
    # float32 over ten steps; with scalars at a hundredth instead, the last differ by 1.5e-3.
    np.testing.assert_allclose(found, losses, rtol=1e-4)


def test_batches_cover_each_epoch_once():
    dataset = data.load("digits")
    batches = np.asarray(theory_stable_rate.batches_of(SETTINGS, dataset, 0))
    assert batches.shape == (45, 64)
    first, second = batches[:22].ravel(), batches[22:44].ravel()
    assert len(set(first)) == len(first) == 22 * 64 and len(set(second)) == len(second)
    assert (first != second).any()
