"""LSUV: the deviation of every layer's output, measured from inside the network."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import init
from nf_resnets.init import Rules
from nf_resnets.models import layers
from tests.init.noted import network_of, noted
from tests.models.smallest import example, smallest
from tests.models.trees import quick_jit, shapes
from tests.trees import pairs

LAYERS = (layers.Conv, layers.Dense)


def _without_bias(layer, args, out):
    bias = layer.variables["params"]["bias"]
    return (out - bias.reshape((1,) * (out.ndim - 1) + (-1,))).std()


@pytest.mark.every(4)
@pytest.mark.parametrize("name", ["wrn", "cifar-resnet", "resnet", "vgg"])
def test_every_layer_has_deviation_one(name):
    model, (images,) = smallest(name, "lsuv"), example(name, 5)
    rng = np.random.default_rng(2)
    # Far from variance 1, and biases that are not 0.
    params = jax.tree.map(
        lambda leaf: rng.standard_normal(leaf.shape).astype("f4") / 4, shapes(model)["params"]
    )
    start = functools.partial(init.lsuv, network=network_of(model), inputs=(images,))
    result = quick_jit(start)(params)
    for path, old, new in pairs(params, result):
        assert np.array_equal(old, new) != path.endswith("kernel")
    before, after = (
        max(abs(float(std) - 1) for _, std in noted(model, tree, images, LAYERS, _without_bias))
        for tree in (params, result)
    )
    # The paper's 0.1 would do; the second pass finds float32's errors only, grown over the layers.
    assert after < 1e-3 and before > 0.1


RULES = Rules(stem="w1", branch="(w)([23])", head="head")
PARAMS = {
    name: np.random.default_rng(at).standard_normal(shape).astype("f4") / 4
    for at, (name, shape) in enumerate(
        {"w1": (3, 8), "w2": (8, 8), "w3": (8, 8), "head": (8, 5)}.items()
    )
}
X = np.random.default_rng(9).standard_normal((32, 3)).astype("f4")


def network(params, x):
    x = x @ params["w1"]
    x = x + jax.nn.relu(x @ params["w2"]) @ params["w3"]
    return x @ params["head"]


def _lsuv(params=PARAMS, network=network, **options):
    return init.lsuv(params, network=network, inputs=(X,), rules=RULES, **options)


def test_a_network_of_ones_own_against_numpy():
    result = _lsuv({**PARAMS, "activation": jax.nn.relu})  # as a field of an Equinox module
    x, expected = np.float64(X), {}

    def layer(name, x):
        expected[name] = PARAMS[name] / (x @ PARAMS[name]).std()
        return x @ expected[name]

    x = layer("w1", x)
    x = x + layer("w3", np.maximum(layer("w2", x), 0))
    layer("head", x)
    for name, weight in expected.items():
        # Sums of 32 float32 numbers, and the errors of the layers before.
        np.testing.assert_allclose(result[name], weight, rtol=1e-5)
    assert isinstance(result["w1"], np.ndarray)


def test_the_tolerance_decides_whether_there_is_one_more_pass():
    """Rounded to eight bits, the weights of a pass leave deviations beyond 1e-9."""
    half = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), PARAMS)
    calls = []

    def counted(params, x):
        jax.debug.callback(lambda: calls.append(1))
        return network(params, x)

    for tolerance, most, passes in ((1e-9, 1, 1), (1e-9, 3, 3), (0.1, 10, 2)):

        def run(tree, tolerance=tolerance, most=most):
            return _lsuv(tree, counted, tolerance=tolerance, max_passes=most)

        for function in (run, quick_jit(run)):
            calls.clear()
            jax.block_until_ready(function(half))
            jax.effects_barrier()
            assert len(calls) == passes


def test_a_layer_without_signal_stays():
    result = _lsuv(PARAMS | {"w2": 0 * PARAMS["w2"]})
    assert not np.any(result["w2"])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result))


def twice(params, x):
    x = x @ params["w1"]
    return ((x @ params["w2"]) @ params["w2"] @ params["w3"]) @ params["head"]


def looped(params, x):
    x = jax.lax.fori_loop(0, 8, lambda _, x: x @ params["w2"], x @ params["w1"])
    return x @ params["w3"] @ params["head"]


def without(params, x):
    return x @ params["w1"] @ params["w3"] @ params["head"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [(twice, "several steps"), (looped, "several steps"), (without, "in no layer")],
)
def test_a_layer_that_is_not_applied_once_is_refused(wrong, message):
    with pytest.raises(ValueError, match=f"leaf 'w2' .* {message}"):
        _lsuv(network=wrong)
