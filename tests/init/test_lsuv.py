"""LSUV: the deviation of every layer's output, measured from inside the network."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import init, models
from nf_resnets.models import layers
from nf_resnets.roles import path_name
from tests.init.noted import noted
from tests.models.trees import quick_jit

NETWORKS = {
    "cifar-resnet": 8,
    "wrn": 8,
    "resnet": 32,
    "vgg": 32,
}
LAYERS = (layers.Conv, layers.Dense)


class Small(nn.Module):
    """Three layers in a row."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(layers.Conv(4, use_bias=True, name="one")(x))
        x = nn.relu(layers.Conv(4, use_bias=True, name="two")(x))
        return layers.Dense(3, name="head")(x.mean(axis=(1, 2)))


def _setting(name):
    if name == "small":
        model = Small()
        images = np.random.default_rng(1).standard_normal((5, 4, 4, 3)).astype("f4")
    else:
        architecture = models.ARCHITECTURES[name]
        model, (images,) = architecture.smallest("lsuv"), architecture.example(5)
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    rng = np.random.default_rng(2)
    # Far from variance 1, and biases that are not 0.
    params = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape).astype("f4") / 4, shapes)
    return model, params, images


def _deviations(model, params, images):
    """The deviation of each linear layer's output without its bias, by path."""
    seen = []

    def record(next_function, args, kwargs, context):
        out = next_function(*args, **kwargs)
        if isinstance(context.module, LAYERS) and context.method_name == "__call__":
            bias = context.module.variables["params"]["bias"]
            own = out - bias.reshape((1,) * (out.ndim - 1) + (-1,))
            path = "/".join(context.module.path)
            out = out + noted(seen, path, own.std())
        return out

    def run(params):
        with nn.intercept_methods(record):
            return model.apply({"params": params}, images)

    jax.block_until_ready(quick_jit(run)(params))
    jax.effects_barrier()
    return seen


@pytest.mark.every(4)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_layer_has_deviation_one(name):
    model, params, images = _setting(name)
    before = jax.tree.map(np.copy, params)
    result = quick_jit(lambda tree: init.lsuv(model.apply, tree, images))(params)
    assert jax.tree.structure(result) == jax.tree.structure(params)
    for (path, old), new, copy in zip(
        jax.tree_util.tree_flatten_with_path(params)[0],
        jax.tree.leaves(result),
        jax.tree.leaves(before),
        strict=True,
    ):
        np.testing.assert_array_equal(old, copy)
        assert np.array_equal(old, new) != path_name(path).endswith("kernel")
    kernels = [leaf.shape for leaf in jax.tree.leaves(params) if leaf.ndim > 2]
    found = _deviations(model, result, images)
    assert len(found) > len(kernels) / 2
    # The paper's 0.1 would do; the second pass finds float32's errors only, grown over the layers.
    assert max(abs(float(std) - 1) for _, std in found) < 1e-3
    before = _deviations(model, params, images)
    assert max(abs(float(std) - 1) for _, std in before) > 0.1


def test_a_pass_is_a_positive_factor_for_each_matrix():
    model, params, images = _setting("small")
    result = init.lsuv(model.apply, params, images)
    old, new = (tree["two"]["kernel"] for tree in (params, result))
    factors = (new / old).reshape(1, -1)
    assert (factors > 0).all()
    # One float32 product each.
    np.testing.assert_allclose(factors, factors[:, :1] * np.ones_like(factors), rtol=3e-7)
    assert isinstance(new, np.ndarray)
    # A second call finds nothing to do but rounding.
    again = init.lsuv(model.apply, result, images)
    np.testing.assert_allclose(again["two"]["kernel"], new, rtol=1e-4)


def test_passes_are_counted():
    """Rounded to eight bits, the weights of a pass leave deviations beyond a tolerance of 1e-9."""
    model, params, images = _setting("small")
    half = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), params)
    calls = []

    def apply_fn(*arguments, **options):
        jax.debug.callback(lambda: calls.append(1))
        return model.apply(*arguments, **options)

    for passes in (1, 3):
        calls.clear()
        init.lsuv(apply_fn, half, images, tolerance=1e-9, max_passes=passes)
        jax.effects_barrier()
        assert len(calls) == passes
    calls.clear()
    init.lsuv(apply_fn, half, images)
    jax.effects_barrier()
    assert len(calls) == 2  # the second finds nothing beyond 0.1


@pytest.mark.parametrize("traced", [False, True])
def test_the_tolerance_decides_whether_there_is_one_more_pass(traced):
    """What rounding to eight bits leaves is off by three of these tolerances, or by a third."""
    model, params, images = _setting("small")
    half = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), params)
    once = init.lsuv(model.apply, half, images, max_passes=1)
    off = max(abs(float(deviation) - 1) for _, deviation in _deviations(model, once, images))
    calls = []

    def apply_fn(*arguments, **options):
        jax.debug.callback(lambda: calls.append(1))
        return model.apply(*arguments, **options)

    for tolerance, passes in ((off / 3, 3), (3 * off, 2)):
        calls.clear()

        def run(tree, tolerance=tolerance):
            return init.lsuv(apply_fn, tree, images, tolerance=tolerance, max_passes=3)

        jax.block_until_ready((quick_jit(run) if traced else run)(half))
        jax.effects_barrier()
        assert len(calls) == passes


def test_a_layer_without_signal_stays():
    model, params, images = _setting("small")
    params["two"]["kernel"][...] = 0
    result = quick_jit(lambda tree: init.lsuv(model.apply, tree, images))(params)
    assert not np.any(result["two"]["kernel"])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result))


def test_refusals():
    model, params, images = _setting("small")
    for given in (params, model):
        with pytest.raises(TypeError, match=f"apply_fn is a {type(given).__name__}; expected"):
            init.lsuv(given, model.apply, images)
    with pytest.raises(ValueError, match="a batch of 1 images found"):
        init.lsuv(model.apply, params, images[:1])
    with pytest.raises(ValueError, match=r"tolerance=-1 found; expected a finite number above 0"):
        init.lsuv(model.apply, params, images, tolerance=-1)
    with pytest.raises(ValueError, match=r"max_passes=0 found; expected 1 or more"):
        init.lsuv(model.apply, params, images, max_passes=0)
    images[0, 0, 0, 0] = np.nan
    with pytest.raises(ValueError, match="standard deviations at leaf .* are not finite"):
        init.lsuv(model.apply, params, images)
    found = models.ARCHITECTURES["transformer"]
    model, tokens = found.smallest("plain"), found.example(2)
    shapes = jax.eval_shape(model.init, jax.random.key(0), *tokens)["params"]
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, "f4"), shapes)
    with pytest.raises(ValueError, match="no layer with a weight to scale found"):
        init.lsuv(
            lambda variables, pair, **more: model.apply(variables, *pair, **more),
            params,
            jnp.stack([tokens[1]] * 2),
        )


class Mixed(nn.Module):
    """A layer that measures itself, and a layer of Flax's own or a second call."""

    twice: bool = False

    @nn.compact
    def __call__(self, x):
        conv = layers.Conv(3, name="conv")
        x = conv(conv(x)) if self.twice else nn.Dense(3, name="flax")(conv(x))
        return layers.Dense(2, name="head")(x.mean(axis=(1, 2)))


@pytest.mark.parametrize(
    ("twice", "sentence"),
    [
        (False, r"leaf 'flax/kernel' \[3, 3\] is a weight whose layer does not measure"),
        (True, "layer 'conv' is applied twice in one pass; expected one output"),
    ],
)
def test_layers_that_cannot_be_scaled_are_refused(twice, sentence):
    """They would keep the deviations that they have, or those of one of their two outputs."""
    model, images = Mixed(twice), np.random.default_rng(1).standard_normal((2, 4, 4, 3))
    params = jax.tree.map(np.asarray, model.init(jax.random.key(0), images)["params"])
    with pytest.raises(ValueError, match=sentence):
        init.lsuv(model.apply, params, images)
