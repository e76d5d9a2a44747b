"""The commands' training: it learns, it says when it diverges, what is frozen stays."""

import dataclasses

import jax
import numpy as np
import pytest

from nf_resnets import data, schemes, trained, training
from nf_resnets.trained.fit import fit
from tests.trained.networks import wide_resnet
from tests.training.small import Log

SHORT = {"epochs": 6.0, "batch_size": 32, "peak_lr": 0.3, "show": False}


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
    made = fit(digits, network=model, callback=log, **SHORT)
    assert made.notes["steps"] == 42
    epochs = [row["train_loss"] for _, _, row in log.of("on_epoch")]
    assert [step for _, step, _ in log.of("on_epoch")] == [7 * n for n in range(1, 7)]
    # The first loss is ln 10 at Fixup's zero head; chance is 10%. Measured at the end: 0.66, 73%.
    assert epochs[0] < np.log(10) and epochs[-1] < epochs[0] / 2
    assert made.notes["test_accuracy"] > 0.5
    start = initial(model)
    moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), start, made.variables)
    assert all(jax.tree.leaves(moved))
    begun = trained.Trained(model, start, made.inputs)
    again = fit(digits, network=begun, **SHORT)
    assert abs(again.notes["test_accuracy"] - made.notes["test_accuracy"]) < 0.05
