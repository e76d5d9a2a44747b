"""The options ``--optimizer``, ``--dtype`` and ``--base-model`` of sweeps."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import init, models, optim
from nf_resnets.sweep import image_task
from nf_resnets.sweep.image_task import ImageTask
from nf_resnets.sweep.settings import make
from tests.models.trees import filled_with, quick_jit
from tests.sweep import small

DIGITS = small.load("digits")
KEY = jax.random.key(0)
HEAD = {"head": {"kernel": 2 * np.ones((4, 3), np.float32)}, "bias_head": np.ones((), np.float32)}


@pytest.mark.parametrize("name", optim.NAMES)
def test_sweeps(name):
    settings = make({**small.BASE, "optimizer": name, "scheme": "fixup", "weight_decay": 0.1})
    kind = image_task.kind_of(settings, DIGITS)
    hyper = {**image_task.hyper_of(settings), "learning_rate": 0.5}
    rule = image_task.optimizer(kind, hyper)
    gradient = jax.tree.map(np.ones_like, HEAD)
    updates, _ = rule.update(gradient, rule.init(HEAD), HEAD)
    # Each rule moves by the rate times the sign of these gradients, which are 1; decay adds to it.
    assert float(updates["head"]["kernel"][0, 0]) == pytest.approx(-0.5 * (1 + 0.1 * 2), rel=1e-5)
    assert float(updates["bias_head"]) == pytest.approx(-0.05 * (1 + 0.1), rel=1e-5)
    task, sgd = ImageTask(small.load), dataclasses.replace(settings, optimizer="sgd")
    assert (task.plan(settings).program == task.plan(sgd).program) == (name == "sgd")


def test_dtypes():
    for dtype in models.DTYPES:
        settings = make({**small.BASE, "dtype": dtype})
        assert image_task.kind_of(settings, DIGITS).model.dtype == jnp.dtype(dtype)
    plain, cast = small.make({"dtype": models.DTYPES, "seed": (0,)}).plans
    assert plain.key != cast.key and plain.program != cast.program


@pytest.mark.slow
def test_a_base_network_of_a_sweep():
    """Rates tuned at one size, for a network twice as wide and of four times as many branches."""
    given = {"model": "wrn-28-4", "stem_channels": 4, "scheme": "completep", "steps": 4}
    task = ImageTask(small.load)
    settings = make({**given, "base_model": "wrn-10-2"})
    kind = task.kind(settings)
    model = kind.model
    np.testing.assert_allclose(model.scheme.constants(12).residual, 1 / 4)
    assert task.start(task.plan(settings)).scheme is model.scheme

    ones = filled_with(1.0, model, (8, 8, 1))
    rule = image_task.optimizer(kind, {"learning_rate": 1.0, "momentum": 0.0})
    updates, _ = quick_jit(lambda tree: rule.update(tree, rule.init(tree), tree))(ones)
    # SGD: outputs / inputs beside the base, and the depth's ratio in the branches.
    np.testing.assert_allclose(updates["head"]["kernel"], -1 / 2, rtol=1e-6)
    blocks = updates["stage_1"]
    np.testing.assert_allclose(blocks["first"]["conv_1"]["kernel"], -2 * 4, rtol=1e-6)
    np.testing.assert_allclose(blocks["rest"]["conv_1"]["kernel"], -4, rtol=1e-6)
    drawn, plain = (
        quick_jit(lambda tree, each=each: each.init(tree, 12, key=KEY)["head"]["kernel"])(ones)
        for each in (model.scheme, init.at_base("completep", ones))
    )
    np.testing.assert_allclose(drawn, plain / 2**0.5, rtol=1e-6)
    assert task.plan(settings).program != task.plan(make(given)).program
    with pytest.raises(ValueError, match=r"'stage_1/first/shortcut/bias' .* not there in base"):
        task.kind(make({**given, "base_model": "wrn-10-1"}))
