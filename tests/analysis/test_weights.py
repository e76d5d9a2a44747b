"""eta_k, learnable scalars and weight norms, against tensors and trees with known answers."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import analysis, init, models, roles
from nf_resnets.analysis.weights import layer_gains, shortcut_gains
from tests.models.trees import random_variables

MODEL = models.WideResNet(depth=16, stem_channels=2)


@pytest.mark.parametrize(
    ("skip", "branch", "percent"),
    [
        ([1, 1, -1, -1], [1, -1, 1, -1], 0),  # uncorrelated: 1 + 1 is the sum's variance, 2
        ([1, 1, -1, -1], [1, 1, -1, -1], 50),  # equal: |1 + 1 - 4| / 4
        ([3, 3, -3, -3], [-1, -1, 1, 1], 150),  # opposed: |9 + 1 - 4| / 4
        ([1, 1, -1, -1], [2, 0, 0, -2], 40),  # |1 + 2 - 5| / 5
    ],
)
@pytest.mark.parametrize("mean", [0.0, 7.0])
def test_eta_is_the_equation(skip, branch, percent, mean):
    # Whole numbers, but for a quotient in float32. A mean changes nothing: Var is centred.
    skip, branch = (jnp.array(x, jnp.float32).reshape(-1, 1, 1, 1) + mean for x in (skip, branch))
    etas = analysis.eta([analysis.Activations(skip, skip, branch, skip + branch)])
    assert etas.tolist() == pytest.approx([percent], rel=1e-5, abs=1e-5)


def test_multipliers_are_in_the_order_of_the_branches():
    """Of stacked blocks, of a branch with two, which are multiplied, and of one without."""
    block = {"fc_1": np.ones((2, 2)), "alpha": np.array([0.5]), "gain": np.array([3.0])}
    tree = {"block_1": block, "block_10": {"fc_1": np.ones((2, 2))}}
    rules = roles.Rules(branch=r"block_(\d+)/fc_(\d)", alpha="alpha", multiplier="gain")
    np.testing.assert_array_equal(analysis.multipliers(tree, rules=rules), [1.5, np.nan])
    params = random_variables(MODEL, 0)["params"]
    for k, stage in enumerate(("stage_1", "stage_2", "stage_3")):
        params[stage]["first"]["multiplier"][...] = 2 * k + 1
        params[stage]["rest"]["multiplier"][...] = 2 * k + 2
    assert analysis.multipliers(params).tolist() == [1, 2, 3, 4, 5, 6]


def test_weight_norms_are_those_of_each_layer():
    params = random_variables(MODEL, 0)["params"]
    norms = analysis.weight_norms(params)
    assert norms.shape == (6, 2)
    for k, kernel in (
        (1, params["stage_1"]["first"]["conv_2"]["kernel"]),
        (4, params["stage_2"]["rest"]["conv_2"]["kernel"][0]),
    ):
        assert norms[k - 1, 1] == pytest.approx(np.linalg.norm(kernel.ravel()), rel=1e-6)  # float32


def test_branches_that_share_their_weights_have_the_same_sizes():
    random = np.random.default_rng(0)
    tree = {"up": random.normal(size=(3, 4, 8)), "down": random.normal(size=(3, 8, 4)),
            "scale": np.array([1.0, 2.0, 3.0])}  # fmt: skip

    def block(x, of):
        return x + of["scale"] * (jnp.tanh(x @ of["up"]) @ of["down"]), None

    def network(params, x):  # twice through three blocks
        return jax.lax.scan(block, jax.lax.scan(block, x, params)[0], params)[0]

    role_map = roles.read(network, tree, jnp.ones((1, 4)))
    each = [[np.linalg.norm(tree[name][k]) for name in ("up", "down")] for k in range(3)]
    norms = analysis.weight_norms(tree, rules=role_map)
    np.testing.assert_allclose(norms, each + each, rtol=1e-12)
    scales = analysis.multipliers(tree, rules=role_map)
    np.testing.assert_array_equal(scales, [1, 2, 3, 1, 2, 3])
    with warnings.catch_warnings(record=True) as found:
        init.fixup(tree, 6, rules=role_map)
    assert not any("multiplier" in str(warning.message) for warning in found)


def test_gains_of_he_are_2_and_only_real_shortcuts_have_one():
    model = models.WideResNet(depth=16, width=2, scheme="plain")
    params = random_variables(model, 0, branch=1.0)["params"]
    gains, shortcuts = layer_gains(params), shortcut_gains(params)
    # The smallest kernel has 4,608 weights, whose mean square is known to 2%.
    np.testing.assert_allclose(gains, 2, rtol=0.08)
    assert np.isnan(shortcuts).tolist() == [False, True, False, True, False, True]
    # 16 x 32 weights: 6%
    np.testing.assert_allclose(shortcuts[::2], 2, rtol=0.25)
