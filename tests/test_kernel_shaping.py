"""TAT and DKS against published parameters, other quadratures, and the networks themselves."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.untrained import OneStage
from nf_resnets import analysis, init, models, schemes
from nf_resnets import kernel_shaping as ks
from tests.models.trees import quick_jit, random_variables

# The network of google-deepmind/dks, tests/test_activation_transform.py: a ResNet-101 of version 2,
# whose stages begin with a convolution on the shortcut, w = 0.6.
RESNET_101 = ks.Composition(
    tuple(at == 0 for size in (3, 4, 23, 3) for at in range(size)), layers=3, skip=0.6
)
DEEP = ks.Composition((False,) * 24)

GRID = np.linspace(-8, 8, 1601)
DENSITY = np.exp(-(GRID**2) / 2) / math.sqrt(2 * math.pi) * (GRID[1] - GRID[0])


def mean(values):
    """``E f(z)`` by the trapezoidal rule, which is exact to rounding for smooth functions."""
    return float(DENSITY @ values)


def correlation(function, c):
    """``C(c)`` by the trapezoidal rule in both of two independent normals."""
    u, other = GRID[:, None], GRID[None, :]
    products = function(u) * function(c * u + math.sqrt(1 - c * c) * other)
    return float(DENSITY @ products @ DENSITY) / mean(function(GRID) ** 2)


def numpy_of(activation):
    """The activation written out once more."""
    functions = {
        "leaky_relu": lambda x: np.maximum(x, activation.negative_slope * x),
        "tanh": np.tanh,
        "softplus": lambda x: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0),
        "silu": lambda x: x / (1 + np.exp(-x)),
    }

    def function(x):
        inner = activation.input_scale * x + activation.input_shift
        return activation.output_scale * (
            functions[activation.function](inner) + activation.output_shift
        )

    return function


# --- published parameters ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda: ks.leaky_relu_tat(RESNET_101, 0.75),
         {"negative_slope": 0.6291800290346146, "output_scale": 1.196996549778802}),
        (lambda: ks.smooth_tat("tanh", RESNET_101, 0.2),
         {"input_scale": 0.0580205218578313, "input_shift": 0.5218639804099805,
          "output_shift": -0.4796430704354356, "output_scale": 22.36066263761713}),
        (lambda: ks.smooth_tat("softplus", RESNET_101, 0.2),
         {"input_scale": 0.15011489794748328, "input_shift": 0.5374599901127068,
          "output_shift": -0.996481014465811, "output_scale": 10.54880187880574}),
        (lambda: ks.dks("tanh", RESNET_101, 1.2),
         {"input_scale": 0.07461073057540868, "input_shift": 0.5566915199964182,
          "output_shift": -0.5034378768692127, "output_scale": 18.002635964442558}),
        (lambda: ks.dks("softplus", RESNET_101, 1.2),
         {"input_scale": 0.18761008168267976, "input_shift": 0.40688063442262007,
          "output_shift": -0.9213466151411376, "output_scale": 8.878672543665223}),
        (lambda: ks.dks("gelu", RESNET_101, 1.2),
         {"input_scale": 0.07036271496383567, "input_shift": 0.2586837248593587,
          "output_shift": -0.15758328114374964, "output_scale": 20.249573305194307}),
    ],
    ids=["tat", "tat tanh", "tat softplus", "dks tanh", "dks softplus", "dks gelu"],
)  # fmt: skip
def test_the_published_parameters(made, expected):
    activation = made()
    for name, value in expected.items():
        # Their bisection ends when the target is met to 1e-8, which is 5e-8 of a scale.
        assert getattr(activation, name) == pytest.approx(value, rel=2e-7), name


# --- the conditions, by other quadratures --------------------------------------------------------


@pytest.mark.parametrize("slope", [0.0, 0.3, 0.9])
def test_the_c_map_of_the_leaky_relu(slope):
    scale = math.sqrt(2 / (1 + slope**2))
    activation = ks.Activation("leaky_relu", negative_slope=slope, output_scale=scale)
    for c in (-0.7, 0.0, 0.4, 0.95):
        # The kink costs the rule the square of its step, 1e-4.
        found = correlation(numpy_of(activation), c)
        assert activation.c_map(c) == pytest.approx(found, abs=2e-4)
    assert activation.c_map(1.0) == pytest.approx(1, rel=1e-12)
    assert mean(numpy_of(activation)(GRID) ** 2) == pytest.approx(1, abs=1e-4)
    assert activation.slope == pytest.approx(1, rel=1e-12)


@pytest.mark.parametrize("function", ["tanh", "softplus", "silu"])
@pytest.mark.parametrize("method", ["tat", "dks"])
def test_the_conditions_of_smooth_activations(method, function):
    activation = ks.Shaping(method, function)(DEEP)
    phi = numpy_of(activation)
    assert mean(phi(GRID) ** 2) == pytest.approx(1, abs=1e-9)  # Q(1)
    second = [mean(phi(math.sqrt(q) * GRID) ** 2) for q in (0.999, 1.001)]
    assert (second[1] - second[0]) / 0.002 == pytest.approx(1, abs=1e-5)  # Q'(1)
    assert ks.q_map(phi, 1.001) == pytest.approx(second[1], rel=1e-9)
    step = 1e-3
    first = (phi(GRID + step) - phi(GRID - step)) / (2 * step)
    curved = (phi(GRID + step) - 2 * phi(GRID) + phi(GRID - step)) / step**2
    slope, curvature = mean(first**2), mean(curved**2)
    assert activation.slope == pytest.approx(slope, abs=1e-5)
    # 24 blocks of two layers and one activation at the end; differences are exact to step^2.
    if method == "tat":
        assert slope == pytest.approx(1, abs=1e-5)
        assert 49 * curvature == pytest.approx(0.3, abs=1e-4)
    else:
        assert mean(phi(GRID)) == pytest.approx(0, abs=1e-9)  # C(0)
        assert slope**49 == pytest.approx(1.5, abs=1e-3)
    assert activation.c_map(0.5) == pytest.approx(correlation(phi, 0.5), abs=1e-8)


def test_the_slope_by_bisection_takes_the_largest_c_of_0_to_the_target():
    for network, layers in ((DEEP, 49), (ks.Composition(chain=40), 40)):
        slope = ks.leaky_relu_tat(network).negative_slope
        c = 0.0
        for _ in range(layers):
            c = ks.leaky_relu_c_map(c, slope)
        assert c == pytest.approx(0.9, abs=1e-9)
    # Seven ReLUs stay below it.
    assert ks.leaky_relu_tat(ks.Composition((False,) * 3)).negative_slope == 0
    with pytest.raises(ValueError, match="target=1.0 found; expected a number between 0.0 and 1.0"):
        ks.leaky_relu_tat(DEEP, 1.0)


def test_a_branch_alone_may_have_the_largest_map():
    def local(c):
        return 0.5 * c + 0.5

    one = ks.Composition((False,), skip=0.9)
    # The sum has 0.81 * 0 + 0.19 * 0.75, and one more activation; the branch alone has 0.75.
    assert one.maximal(local, 0.0) == 0.75
    assert one.values(local, 0.0) == [pytest.approx(0.1425), pytest.approx(0.57125)]
    post = ks.Composition((True,), post=True, skip=0.6)
    assert post.values(local, 0.0)[0] == pytest.approx(local(0.36 * 0.5 + 0.64 * 0.75))
    shortcut = ks.Composition((True,), skip=0.6)
    assert shortcut.values(local, 0.0)[0] == pytest.approx(0.36 * 0.5 + 0.64 * 0.75)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ks.Shaping("dks", "leaky_relu"), "function='leaky_relu' found; dks is for tanh"),
        (lambda: ks.Shaping("kfac", "tanh"), "method='kfac' found; expected 'tat' or 'dks'"),
        (lambda: ks.smooth_tat("relu", DEEP), "function='relu' found; expected one of tanh"),
        (lambda: ks.dks("tanh", DEEP, 1.0), "target=1.0 found"),
        (lambda: init.kernel_shaped(skip=1.0), "skip=1.0 found; expected 0 <= skip < 1"),
        (lambda: models.WideResNet(depth=10, scheme="tat", survival=0.5),
         "survival=0.5 found for a network without shortcuts"),
        (lambda: models.CifarResNet(depth=8, scheme=init.kernel_shaped(skip=0.5)),
         "is for pre_activation networks"),
    ],
)  # fmt: skip
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


CASES = [("tat", "leaky_relu", 0.2), ("tat", "tanh", -0.5), ("dks", "softplus", -0.5)]

# --- networks ------------------------------------------------------------------------------------


def drawn(model, scheme, images, count):
    """The scheme's parameters, drawn under a number of keys."""
    params = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, "f4"), params)
    draw = quick_jit(lambda key: scheme.init(zeros, model.num_branches, key=key))
    return [draw(jax.random.key(seed)) for seed in range(count)]


@pytest.mark.parametrize(("method", "function", "start"), CASES)
def test_moments_stay_1_and_correlations_follow_the_c_map(method, function, start):
    """Through layers that NumPy draws, of ``z -> phi(z W)`` with orthogonal ``W``."""
    layers, width, draws, rng = 8, 64, 400, np.random.default_rng(0)
    activation = ks.Shaping(method, function)(ks.Composition(chain=layers))
    phi, c = numpy_of(activation), start
    one, other = np.linalg.qr(rng.standard_normal((width, 2)))[0].T * width**0.5
    z = np.stack([one, start * one + (1 - start**2) ** 0.5 * other])[None]
    for _ in range(layers):
        weights, triangle = np.linalg.qr(rng.standard_normal((draws, width, width)))
        # With the signs of R's diagonal it is uniformly distributed; without, moments fall to 0.6.
        weights *= np.sign(np.diagonal(triangle, axis1=1, axis2=2))[:, None]
        z, c = phi(z @ weights), activation.c_map(c)
    moments, products = np.square(z).mean(-1), z.prod(1).mean(-1)
    for found, expected in ((moments, 1.0), (products, c)):
        error = found.std() / draws**0.5
        # Four standard errors, and what 64 units are off: of the order of 1 / 64.
        assert found.mean() == pytest.approx(expected, abs=4 * error + 2 / width)
        assert error < 0.05
    assert abs(c - start) > 0.15  # which no activation at all would leave


@pytest.mark.slow
@pytest.mark.parametrize(("name", "start"), [("tat", 0.2), ("dks", -0.5)])
def test_the_correlation_of_two_inputs_follows_the_c_map(name, start):
    """At every pixel of a network, for kernels of one tap mix channels alone."""
    blocks, width, draws = 4, 192, 3
    scheme = schemes.get(name)
    model = OneStage(blocks, width, scheme)
    one, other = np.random.default_rng(1).standard_normal((2, 4, 4, 64), dtype=np.float32)
    images = np.stack([one, start * one + (1 - start**2) ** 0.5 * other])
    images /= np.sqrt(np.square(images).mean(-1, keepdims=True))
    composition = ks.Composition((False,) * blocks)
    activation = scheme.anatomy.activation(composition)
    before = np.einsum("hwc,hwc->hw", *images) / images.shape[-1]
    expected = [composition.values(activation.c_map, float(c))[:-1] for c in before.flat]
    observed, found, moments = quick_jit(analysis.observe(model)), [], []
    for params in drawn(model, scheme, images, draws):
        _, taps = observed(params, images)
        sums = np.array([block["sum"] for block in analysis.branches(taps)], np.float64)
        assert not any(np.any(block["skip"]) for block in analysis.branches(taps))
        own = np.square(sums).mean(-1)
        moments.append(own.mean((1, 2, 3)))
        products = np.einsum("kbhwc->khwbc", sums).prod(-2).mean(-1)
        found.append((products / np.sqrt(own.prod(1))).mean((1, 2)))
    # One draw is off by at most 0.035, of three; a map of another slope or of none by 0.1 and more.
    means = np.mean(expected, axis=0)
    np.testing.assert_allclose(np.mean(found, axis=0), means, atol=0.04)
    assert abs(means[-1] - start) > 0.15
    # The moment's logarithm walks: in a layer of 192 units by 10%, which three draws halve.
    np.testing.assert_allclose(np.mean(moments, axis=0), 1, atol=0.35 if name == "tat" else 0.1)


def test_sums_are_weighted_and_shapes_change_without_shortcuts():
    images = np.random.default_rng(0).standard_normal((2, 4, 4, 3), dtype=np.float32)
    weighted = init.kernel_shaped("tat", "tanh", skip=0.6)
    model = models.WideResNet(depth=10, scheme=weighted, stem_channels=4)
    variables = random_variables(model, 0, images.shape[1:])
    _, taps = quick_jit(analysis.observe(model))(variables["params"], images)
    block = analysis.branches(taps)[0]
    np.testing.assert_allclose(block["skip"], 0.6 * block["input"], rtol=1e-6)
    np.testing.assert_allclose(block["sum"], block["skip"] + block["branch"], atol=1e-6)
    for scheme, shortcuts in ((weighted, 2), ("tat", 0)):
        model = models.WideResNet(depth=10, scheme=scheme, stem_channels=4)
        shapes = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
        names = [name for stage in shapes.values() for name in stage.get("first", ())]
        assert names.count("shortcut") == shortcuts
    assert hash(weighted.anatomy) == hash(init.kernel_shaped("tat", "tanh", skip=0.6).anatomy)
    assert weighted.anatomy != init.kernel_shaped("dks", "tanh", skip=0.6).anatomy


def test_the_composition_of_each_family():
    """Every network asks for the activation of its own depth."""
    asked = []

    class Asked(Exception):
        pass

    class Recording(ks.Shaping):
        def __call__(self, network):
            asked.append(network)
            raise Asked

    anatomy = schemes.Anatomy(identity=0.0, activation=Recording("tat", "tanh"))
    fits = frozenset({"pre_activation", "post_activation", "plain"})
    scheme = schemes.Scheme("recording", "", init=None, anatomy=anatomy, reference="", fits=fits)
    image = jax.ShapeDtypeStruct((1, 32, 32, 3), np.float32)
    starts = (True, False, True, False, True, False)
    for model, expected in (
        (models.WideResNet(16, 2, scheme=scheme), ks.Composition(starts)),
        (models.WideResNet(16, 1, scheme=scheme), ks.Composition((False, *starts[1:]))),
        (models.CifarResNet(14, scheme=scheme), ks.Composition((False, *starts[1:]), post=True)),
        (models.ResNet(26, scheme=scheme, version=2), ks.Composition((*starts, *starts[:2]), 3)),
        (models.ResNet(18, scheme=scheme),
         ks.Composition((False, *starts[1:], *starts[:2]), 2, post=True)),
        (models.VGG(16, scheme=scheme), ks.Composition(chain=15)),
    ):  # fmt: skip
        with pytest.raises(Asked):
            jax.eval_shape(model.init, jax.random.key(0), image)
        assert asked.pop() == expected


def test_an_activation_computes_as_numpy_does_in_either_dtype():
    x = np.linspace(-3, 3, 13, dtype=np.float32)
    for method, function in itertools.product(("tat", "dks"), ("leaky_relu", "tanh", "softplus")):
        if (method, function) == ("dks", "leaky_relu"):
            continue
        activation = ks.Shaping(method, function)(DEEP)
        expected = numpy_of(activation)(x.astype(np.float64))
        # 14 units of float32's rounding go with an output scale of 14.
        np.testing.assert_allclose(activation(jnp.asarray(x)), expected, atol=5e-6)
        half = activation(jnp.asarray(x, jnp.bfloat16))
        assert half.dtype == jnp.bfloat16
        np.testing.assert_allclose(half.astype(np.float32), expected, rtol=2e-2, atol=2e-2)
