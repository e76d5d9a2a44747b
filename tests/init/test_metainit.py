"""MetaInit: the gradient quotient against closed forms in NumPy, and the norms that it leaves."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nf_resnets import init, schemes
from nf_resnets.init.metainit import SCHEME_STEPS
from nf_resnets.models.conv import conv
from nf_resnets.roles import path_name
from tests.models.trees import quick_jit

KEY = jax.random.key(3)
DEPTH, WIDTH, CLASSES = 6, 12, 5
IMAGES = np.random.default_rng(0).standard_normal((32, 2, 2, 3)).astype("f4")


def _closed_form(g, hg, eps):
    """Equation 1 as it is written, in float64."""
    sign = np.where(g >= 0, 1, -1)
    return np.abs((g - hg) / (g + eps * sign) - 1).mean()


def _deep(variables, images):
    """A plain network of scanned layers, with no branch that a skip connection bridges."""
    params = variables["params"]
    x = jax.nn.relu(images.reshape(len(images), -1) @ params["stem"]["kernel"])

    def layer(x, own):
        return jax.nn.relu(x @ own["kernel"] + own["bias"].reshape(1, -1)), None

    x, _ = jax.lax.scan(layer, x, params["stage_1"]["rest"]["conv_1"])
    return x @ params["head"]["kernel"]


def _deep_params(gain):
    """He (fan_in) times ``gain``; the biases are not 0."""
    rng = np.random.default_rng(1)

    def draw(*shape):
        return (gain * (2 / shape[-2]) ** 0.5 * rng.standard_normal(shape)).astype("f4")

    layers = {
        "kernel": draw(DEPTH, WIDTH, WIDTH),
        "bias": 0.1 * rng.standard_normal((DEPTH, WIDTH)).astype("f4"),
    }
    stem, head = draw(12, WIDTH), draw(WIDTH, CLASSES)
    rest = {"conv_1": layers}
    return {"stem": {"kernel": stem}, "stage_1": {"rest": rest}, "head": {"kernel": head}}


def _linear(variables, images):
    return images.reshape(len(images), -1) @ variables["params"]["head"]["kernel"]


def _linear_params(seed=2):
    kernel = np.random.default_rng(seed).standard_normal((12, CLASSES)).astype("f4")
    return {"head": {"kernel": kernel}}


def _norms(params):
    """The norm of every weight, of a stacked one those of its layers, by path."""
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    norms = {}
    for path, leaf in flat:
        name, leaf = path_name(path), np.asarray(leaf, "f8")
        if name.endswith("kernel"):
            rows = leaf.reshape(len(leaf) if "rest" in name else 1, -1)
            norms[name] = np.linalg.norm(rows, axis=1)
    return norms


def test_the_quotient_of_a_quadratic_is_the_closed_form():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((6, 6))
    a = a @ a.T / 4
    a[2] = a[:, 2] = 0  # a parameter without gradient counts 1
    theta, eps = rng.standard_normal(6), 0.05

    def loss(tree):
        x = jnp.concatenate([tree["one"], tree["two"].ravel()])
        return x @ jnp.asarray(a, "float32") @ x / 2

    tree = {"one": theta[:2].astype("f4"), "two": theta[2:].reshape(2, 2).astype("f4")}
    found = quick_jit(lambda tree: init.gradient_quotient(loss, tree, eps=eps))(tree)
    expected = _closed_form(a @ theta, a @ a @ theta, eps)
    # Sums of six float32 products, and the smallest divisor is 0.05 of terms of order 1.
    np.testing.assert_allclose(found, expected, rtol=2e-5)


def test_the_quotient_of_softmax_regression_is_the_closed_form():
    x = IMAGES.reshape(32, -1).astype("f8")
    kernel = _linear_params()["head"]["kernel"]
    labels = np.arange(32) % CLASSES
    exponentials = np.exp(x @ kernel)
    p = exponentials / exponentials.sum(1, keepdims=True)
    g = x.T @ (p - np.eye(CLASSES)[labels]) / 32
    v = x @ g
    hg = x.T @ (p * (v - (p * v).sum(1, keepdims=True))) / 32

    def loss(kernel):
        logits = IMAGES.reshape(32, -1) @ kernel
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    found = quick_jit(lambda kernel: init.gradient_quotient(loss, kernel, eps=1e-3))(kernel)
    # Gradients are right to 1e-7 or so; the smallest of 60 is about 1e-2 of the largest.
    np.testing.assert_allclose(found, _closed_form(g, hg, 1e-3), rtol=1e-4)


def test_the_derivatives_go_through_the_convolution_for_cpus():
    """Its backward pass is written by hand; the plain one is XLA's own."""
    kernel = np.random.default_rng(4).standard_normal((3, 3, 3, 2)).astype("f4") / 5
    images = np.random.default_rng(5).standard_normal((2, 5, 5, 3)).astype("f4")
    found = []
    for form in ("canonical", "plain"):

        def quotient(scale, form=form):
            def loss(kernel):
                return jnp.sin(conv(images, kernel, 2, form=form)).mean()

            return init.gradient_quotient(loss, scale * kernel, eps=1e-2)

        found.append(quick_jit(jax.value_and_grad(quotient))(1.0))
    # Float32's 1e-7, of sums over 18 pixels, divided by no less than eps = 1e-2.
    np.testing.assert_allclose(*found, rtol=1e-4)
    assert all(abs(float(value)) > 1e-2 for value in found[0])


def test_a_step_is_a_sign_with_momentum():
    params, rate, momentum = _linear_params(), 0.05, 0.7
    norms = [_norms(params)["head/kernel"][0]]
    for steps in (1, 2):
        result = init.metainit(
            _linear, params, IMAGES, key=KEY, steps=steps, learning_rate=rate, momentum=momentum
        )
        norms.append(_norms(result)["head/kernel"][0])
    velocity = np.diff(norms)
    signs = np.append(velocity[:1], velocity[1:] - momentum * velocity[:-1]) / rate
    # Norms are 8, right to 1e-6 in float32; divided by 0.05.
    np.testing.assert_allclose(np.abs(signs), 1, atol=1e-4)


def test_a_step_halves_a_norm_at_most_and_then_the_momentum_is_gone():
    """With a first step of more than half the norm: up, then down and up again, down twice."""
    params = _linear_params()
    norm = _norms(params)["head/kernel"][0]
    rate, seen = 0.6 * norm, set()
    options = {"learning_rate": rate, "momentum": 0.5}
    keys = jnp.stack([jax.random.key(seed) for seed in (0, 1, 10)])
    ratios = [
        jnp.linalg.norm(
            jax.vmap(
                lambda key, steps=steps: init.metainit(
                    _linear, params, IMAGES, key=key, steps=steps, **options
                )
            )(keys)["head"]["kernel"],
            axis=(1, 2),
        )
        / norm
        for steps in (1, 2)
    ]
    for one, two in zip(*np.asarray(ratios), strict=True):
        if one > 1:
            assert one == pytest.approx(1.6, rel=1e-5)  # float32
            continue
        assert one == pytest.approx(0.5, rel=1e-5)
        # Down again, half of it; or up, by a step without what the first one left.
        assert two == pytest.approx(0.25 if two < one else 1.1, rel=1e-5)
        seen.add(two > one)
    assert seen == {True, False}


def test_the_defaults_are_those_of_the_paper_s_code():
    parameters = inspect.signature(init.metainit).parameters
    defaults = {name: parameters[name].default for name in ("steps", "learning_rate", "momentum")}
    assert defaults == {"steps": 500, "learning_rate": 0.1, "momentum": 0.9}
    assert parameters["eps"].default == 1e-5


def test_weights_three_times_too_large_become_smaller():
    params = _deep_params(3.0)
    copy = jax.tree.map(np.copy, params)
    tune = quick_jit(lambda tree: init.metainit(_deep, tree, IMAGES, key=KEY, steps=150))
    result = tune(params)
    assert jax.tree.all(jax.tree.map(np.array_equal, params, copy))
    assert jax.tree.structure(result) == jax.tree.structure(params)

    before, after = _norms(params), _norms(result)
    factors = np.concatenate([after[name] / before[name] for name in before])
    assert len(factors) == DEPTH + 2
    assert (factors < 0.8).all() and (factors > 0).all()
    assert len(set(factors.round(4))) > DEPTH / 2  # the layers of a stack have norms of their own

    for name, of in (("stem", lambda tree: tree["stem"]), ("rest", lambda t: _scanned(t))):
        old, new = of(params)["kernel"], np.asarray(of(result)["kernel"])
        ratio = new / old
        ratio = ratio.reshape(DEPTH if name == "rest" else 1, -1)
        # The directions stay: one float32 product for each number.
        np.testing.assert_allclose(ratio, ratio[:, :1] * np.ones_like(ratio), rtol=3e-7)
    np.testing.assert_array_equal(_scanned(result)["bias"], _scanned(params)["bias"])

    labels = np.arange(32) % CLASSES

    def loss(params):
        logits = _deep({"params": params}, IMAGES)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    quotient = quick_jit(lambda tree: init.gradient_quotient(loss, tree))
    # From far above 1 (a step is of another order than the weights) to what a step leaves alike.
    assert float(quotient(result)) < 2 < 100 < float(quotient(params))


def _scanned(tree):
    return tree["stage_1"]["rest"]["conv_1"]


def test_array_types_and_dtypes_are_kept():
    params = _linear_params()
    expected = init.metainit(_linear, params, IMAGES, key=KEY, steps=2)["head"]["kernel"]
    assert isinstance(expected, np.ndarray)
    traced = quick_jit(lambda tree: init.metainit(_linear, tree, IMAGES, key=KEY, steps=2))(params)
    # Rounding, of the norm and of the product.
    np.testing.assert_allclose(traced["head"]["kernel"], expected, rtol=1e-6)
    half = {"head": {"kernel": jnp.asarray(params["head"]["kernel"], jnp.bfloat16)}}
    result = init.metainit(_linear, half, IMAGES, key=KEY, steps=2)["head"]["kernel"]
    assert result.dtype == jnp.bfloat16
    # Two roundings to 8 bits.
    np.testing.assert_allclose(np.asarray(result, "f4"), expected, rtol=2 * 2**-8)


def test_a_weight_that_is_zero_stays():
    params = {"head": {"kernel": np.zeros((12, CLASSES), "f4")}}
    result = init.metainit(_linear, params, IMAGES, key=KEY, steps=3)
    assert not np.any(result["head"]["kernel"])


def test_the_scheme_tunes_with_fewer_steps_and_a_fixed_key():
    params = _linear_params()
    result = schemes.get("metainit").calibrate(_linear, params, IMAGES)
    expected = init.metainit(_linear, params, IMAGES, key=jax.random.key(0), steps=SCHEME_STEPS)
    assert jax.tree.all(jax.tree.map(np.array_equal, result, expected))
    assert not np.array_equal(result["head"]["kernel"], params["head"]["kernel"])


def test_refusals():
    params = _linear_params()

    def tune(params=params, batch=IMAGES, **options):
        return init.metainit(_linear, params, batch, **({"key": KEY, "steps": 1} | options))

    for options, message in (
        ({"steps": 0}, "steps=0 found; expected 1 or more"),
        ({"steps": True}, "steps=True found; expected 1 or more"),
        ({"learning_rate": -1.0}, r"learning_rate=-1.0 found; expected a finite number above 0"),
        ({"momentum": 1.0}, r"momentum=1.0 found; expected a number in \[0, 1\)"),
        ({"eps": 0.0}, "eps=0.0 found; expected a finite number above 0"),
        ({"batch": IMAGES[:0]}, r"a batch of shape \(0, 2, 2, 3\) found; expected one image"),
        ({"params": {"params": params}}, "params has the key 'params'; expected the tree under it"),
        ({"params": {"head": {"bias": np.ones(3, "f4")}}}, "no layer's weight found in params"),
        ({"batch": IMAGES * np.nan}, "tuned norms at leaf 'head/kernel' are not finite"),
    ):
        with pytest.raises(ValueError, match=message):
            tune(**options)
    with pytest.raises(TypeError, match="expected one PRNG key"):
        tune(key=0)
