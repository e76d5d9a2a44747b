"""Taps record what a network computes and change nothing; perturbations shift it."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import models
from nf_resnets.taps import PERTURBATIONS, TAPS, merge, tap
from tests.models.trees import quick_jit, random_variables

NAMES = {"input", "skip", "branch", "sum"}


class Doubling(nn.Module):
    """A user's own block, with the two lines: ``y = x + w x``."""

    @nn.compact
    def __call__(self, x):
        x = tap(self, "input", x)
        return merge(self, x, self.param("w", nn.initializers.ones, ()) * x)


def _images():
    return jnp.asarray(np.random.default_rng(0).standard_normal((2, 8, 8, 3)), "float32")


@functools.cache
def _recorded(**options):
    """Variables, the function that records, and what it returns without perturbations."""
    model = models.WideResNet(depth=22, scheme="plain", stem_channels=2, **options)
    variables = random_variables(model, 0)
    record = quick_jit(lambda variables: model.apply(variables, _images(), mutable=[TAPS]))
    return model, variables, record, record(variables)


def test_a_users_block():
    block, x = Doubling(), jnp.arange(4.0)
    variables = block.init(jax.random.key(0), x)
    assert set(variables) == {"params"}
    y, found = block.apply(variables, x, mutable=[TAPS])
    np.testing.assert_array_equal(y, block.apply(variables, x))
    recorded = {name: value.tolist() for name, value in found[TAPS].items()}
    x = x.tolist()
    assert recorded == {"input": x, "skip": x, "branch": x, "sum": [2 * value for value in x]}


def test_a_perturbation_shifts_and_its_gradient_is_that_of_the_activation():
    block, x = Doubling(), jnp.arange(4.0)
    variables = block.init(jax.random.key(0), x)

    def loss(name, shift):
        return jnp.square(block.apply({**variables, PERTURBATIONS: {name: shift}}, x)).sum()

    # y = (x + input) + w (x + input) + branch, at 0: dl/dinput = 2 y (1 + w), dl/dbranch = 2 y.
    for name, slope in (("input", 2), ("skip", 1), ("branch", 1), ("sum", 1)):
        found = jax.grad(lambda shift, name=name: loss(name, shift))(jnp.zeros(4))
        np.testing.assert_array_equal(found, 2 * (2 * x) * slope)


@pytest.mark.every(3)
@pytest.mark.parametrize("options", [{}, {"unroll": 9}, {"remat": True}], ids=str)
def test_networks_record_every_branch_and_compute_the_same(options):
    model, variables, _, (logits, found) = _recorded(**options)
    assert TAPS not in variables
    plain = quick_jit(model.apply)(variables, _images())
    np.testing.assert_array_equal(logits, plain)
    for stage in (1, 2, 3):
        first, rest = (found[TAPS][f"stage_{stage}"][part] for part in ("first", "rest"))
        assert set(first) == set(rest) == NAMES
        side, channels = 8 // 2 ** (stage - 1), 2 * 2 ** (stage - 1)
        assert first["sum"].shape == (2, side, side, channels)
        assert rest["sum"].shape == (2, 2, side, side, channels)
        np.testing.assert_array_equal(rest["sum"], rest["skip"] + rest["branch"])
        # The blocks are one after another: pre-activation blocks pass their sum on as it is.
        np.testing.assert_array_equal(rest["input"][0], first["sum"])
        np.testing.assert_array_equal(rest["input"][1], rest["sum"][0])


def test_perturbations_reach_a_block_inside_the_loop():
    _, variables, record, (_, found) = _recorded()
    shift = {"stage_2": {"rest": {"branch": -found[TAPS]["stage_2"]["rest"]["branch"]}}}
    _, without = record({**variables, PERTURBATIONS: shift})
    rest = without[TAPS]["stage_2"]["rest"]
    # The first of the two branches is taken away exactly; the second's input changes by that.
    np.testing.assert_array_equal(rest["branch"][0], 0)
    np.testing.assert_array_equal(rest["sum"][0], rest["input"][0])
    assert float(jnp.abs(rest["branch"][1]).max()) > 0
