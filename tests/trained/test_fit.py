"""The commands' training: it learns, it says when it diverges, what is frozen stays."""

import dataclasses

import jax
import numpy as np
import pytest

from nf_resnets import data, schemes, training
from nf_resnets.trained import TrainedError
from nf_resnets.trained.fit import Recipe, fit
from nf_resnets.trained.run import Watch
from tests.trained.networks import wide_resnet
from tests.training.small import Log

SHORT = Recipe(epochs=6.0, batch_size=32, learning_rate=0.3)


@pytest.fixture(scope="module")
def digits():
    """A sixth of the training images, so that an epoch has seven steps."""
    whole = data.load("digits")
    train = data.Split(whole.train.images[:240], whole.train.labels[:240])
    return dataclasses.replace(whole, train=train)


def initial(model):
    """What a network starts from by default."""
    key = jax.random.key(0)

    def draw():
        variables = model.init(key, np.zeros((1, 8, 8, 1), np.float32))
        scheme = schemes.get(model.scheme)
        params = training.draw_params(model, scheme, variables["params"], key, "fan_in")
        return {**variables, "params": params}

    return jax.jit(draw)()


@pytest.mark.slow
def test_it_learns(digits):
    model = wide_resnet("fixup", stem_channels=8)
    log = Log()
    made = fit(model, digits, SHORT, watch=Watch((log,)))
    assert made.notes["steps"] == 42
    epochs = [row["train_loss"] for _, _, row in log.of("on_epoch")]
    assert [step for _, step, _ in log.of("on_epoch")] == [7 * n for n in range(1, 7)]
    # The first loss is ln 10 at Fixup's zero head; chance is 10%. Measured at the end: 0.66, 73%.
    assert epochs[0] < np.log(10) and epochs[-1] < epochs[0] / 2
    assert made.notes["test_accuracy"] > 0.5
    start = initial(model)
    moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), start, made.variables)
    assert all(jax.tree.leaves(moved))
    again = fit(model, digits, SHORT, variables=start)
    assert abs(again.notes["test_accuracy"] - made.notes["test_accuracy"]) < 0.05


@pytest.mark.slow
def test_statistics_of_batch_norm_come_along(digits):
    made = fit(wide_resnet("batchnorm"), digits, Recipe(epochs=0.3, batch_size=32))
    assert made.notes["steps"] == 2
    means = jax.tree.leaves(made.variables["batch_stats"])
    assert all(np.isfinite(leaf).all() for leaf in means)
    assert any(np.abs(leaf).max() > 0 for leaf in means)


@pytest.mark.slow
def test_what_is_frozen_stays(digits):
    model = wide_resnet("skipinit")
    start = initial(model)
    recipe = dataclasses.replace(SHORT, epochs=0.3)
    made = fit(model, digits, recipe, variables=start, learn="head")
    same = jax.tree.map(np.array_equal, start["params"], made.variables["params"])
    assert not any(jax.tree.leaves(same.pop("head")))
    assert all(jax.tree.leaves(same))


@pytest.mark.slow
def test_rescalenets_biases_and_multipliers_do_not_decay(digits):
    one_step = Recipe(epochs=1 / 7, batch_size=32, learning_rate=0.01)
    found = [
        fit(wide_resnet("rescalenet"), digits, dataclasses.replace(one_step, weight_decay=decay))
        for decay in (0.0, 5.0)
    ]
    same = jax.tree_util.tree_map_with_path(
        lambda path, a, b: (path[-1].key == "kernel") != np.array_equal(a, b),
        *(each.variables["params"] for each in found),
    )
    assert all(jax.tree.leaves(same))


@pytest.mark.slow
def test_a_run_that_diverges_gives_no_network(digits):
    with pytest.raises(TrainedError, match=r"the run diverged \(.*; lower learning_rate=1e\+06"):
        fit(wide_resnet("alpha_one"), digits, Recipe(learning_rate=1e6))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0.0}, "epochs=0.0 found; expected more than 0"),
        ({"epochs": float("nan")}, "epochs=nan found"),
        ({"batch_size": 0}, "batch_size=0 found"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0 found"),
        ({"momentum": 1.0}, "momentum=1.0 found; expected 0 <= momentum < 1"),
        ({"weight_decay": -1.0}, "weight_decay=-1.0 found"),
        ({"padding": -1}, "padding=-1 found"),
        ({"seed": 2**32}, "seed=4294967296 found"),
    ],
)
def test_a_recipe_is_checked(changes, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**changes)


def test_more_epochs_than_steps_are_counted_for_are_refused(digits):
    with pytest.raises(ValueError, match="epochs=1e.18 found; expected less than"):
        fit(wide_resnet("fixup"), digits, Recipe(epochs=1e18))
