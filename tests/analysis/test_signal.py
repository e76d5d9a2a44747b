"""Signal propagation of this library's networks, against the closed forms of METHODS section 5.

Means over draws are compared with the recursions, which carry the zero padding of the small images
along, within 4 standard errors of the mean, as the draws themselves give them; each comparison is
made with a wrong alternative, too, which must fail it.
"""

import functools

import jax
import numpy as np
import pytest

from experiments.untrained import OneStage, forward, random_signs
from nf_resnets import analysis, models, roles, schemes
from nf_resnets.analysis import closed_form as cf
from nf_resnets.roles import Role
from tests.models.trees import quick_jit

L, WIDTH, SIDE, DRAWS = 8, 32, 6, 32
K = np.arange(1, L + 1)
ONES = np.ones(L)
# Of a 3x3 window, the part inside the image; He's stem doubles the moment 1 of random signs.
INSIDE = np.convolve(np.ones(SIDE), np.ones(3), "same") / 3
FIRST = 2 * np.multiply.outer(INSIDE, INSIDE)


def drawn(scheme, blocks, family="pre_activation"):
    """Variables of every draw: the scheme's, from weights of He's that NumPy draws."""
    rng = np.random.default_rng(1)

    def draw(path, leaf):
        name = path[-1].key
        if name != "kernel":
            return np.full((DRAWS, *leaf.shape), float(name in ("scale", "multiplier", "var")), "f")
        values = rng.standard_normal((DRAWS, *leaf.shape), dtype=np.float32)
        fan_in = np.prod(leaf.shape[:-1][-3:])
        return values * np.float32((2 / fan_in) ** 0.5)

    model = OneStage(blocks, WIDTH, scheme, family)
    shapes = dict(jax.eval_shape(model.init, jax.random.key(0), random_signs(1, SIDE)))
    variables = jax.tree_util.tree_map_with_path(draw, shapes)
    start = jax.vmap(lambda params: scheme.init(params, blocks))
    params = quick_jit(start)(variables["params"])
    return {**variables, "params": params}


@functools.cache
def measured(anatomy, family):
    """Measures the variables of every draw; one program for the schemes of an anatomy."""
    model = OneStage(
        L, WIDTH, schemes.Scheme("any", "", init=None, anatomy=anatomy, reference=""), family
    )
    images = random_signs(16 if anatomy.normalized else 2, SIDE)

    def one(variables):
        network = forward(model, {n: v for n, v in variables.items() if n == "batch_stats"})
        return analysis.signal(network, variables["params"], images)

    return quick_jit(lambda draws: jax.lax.map(one, draws))


@functools.cache
def draws(name, family="pre_activation"):
    """``Signal`` of every draw, as arrays ``[DRAWS, L]``."""
    scheme = schemes.get(name)
    variables = drawn(scheme, L, family)
    found = measured(scheme.anatomy, family)(variables)
    return jax.tree.map(lambda x: np.asarray(x, np.float64), found)


def errors(values, expected):
    """How many standard errors the mean over draws is off, at the block where it is most."""
    error = values.std(axis=0, ddof=1) / len(values) ** 0.5
    return np.max(np.abs(values.mean(axis=0) - expected) / error)


form = functools.partial(cf.propagate, first=FIRST)
BETA = 1 / (K + L)
CASES = {
    # name: the closed form, and a wrong one
    "alpha_one": (form(ONES), form((2**0.85 - 1) * ONES)),
    "alpha_rsqrt_depth": (form(ONES / L), form(ONES / L**2)),
    "sqrt_half": (form(ONES / 2, ONES / 2), form(ONES / 2)),
    "batchnorm": (form(ONES, normalized=True), form(ONES)),
    "rescalenet": (form(BETA, 1 - BETA), form(BETA, ONES)),
    "batchnorm_merge": (form(ONES, normalized=True, normalized_sum=True), form(ONES)),
}


@pytest.mark.every(4)
@pytest.mark.parametrize("name", CASES)
def test_var_of_skip_branch_and_sum_is_the_closed_form(name):
    right, wrong = CASES[name]
    signal = draws(name)
    for part in ("skip", "branch", "sum"):
        measured = getattr(signal, part).second
        if name.startswith("batchnorm"):
            # Padding also moves the means that BatchNorm subtracts, which the form leaves out.
            np.testing.assert_allclose(measured.mean(axis=0), getattr(right, part), rtol=0.08)
        else:
            assert errors(measured, getattr(right, part)) < 4, part
    assert errors(signal.sum.second, wrong.sum) > 4


@pytest.mark.parametrize("name", ["skipinit", pytest.param("fixup", marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", ["pre_activation", "post_activation"])
def test_var_is_constant_exactly_where_every_branch_is_zero(name, family):
    signal = draws(name, family)
    assert (signal.branch.second == 0).all() and (signal.share == 0).all()
    assert (signal.sum.second == signal.input.second[:, :1]).all()
    # Another scheme's is not.
    assert not (draws("alpha_rsqrt_depth", family).sum.second == signal.input.second[:, :1]).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("pre_activation", "rescalenet"),
        ("pre_activation", "batchnorm"),
        *(
            ("post_activation", name)
            for name in ("rescalenet", "alpha_rsqrt_depth", "batchnorm", "groupnorm")
        ),
    ],
)
def test_what_is_predicted_from_weights_is_what_is_measured_across_stages(family, name):
    """With a ReLU after the sum it is the other recursion; two draws, norms of any scale."""
    scheme, found = schemes.get(name), []
    model = models.WideResNet(16, 4, scheme)
    if family == "post_activation":
        model = models.CifarResNet(14, scheme, stem_channels=64)

    def observed(variables, images):
        stats = {name: of for name, of in variables.items() if name != "params"}
        return analysis.observe(forward(model, stats), variables["params"], images)[1]

    observed = quick_jit(observed)
    for key in jax.random.split(jax.random.key(0), 2):
        images = jax.random.normal(key, (32, 16, 16, 3))
        variables = model.init(key, images[:1])
        params = scheme.init(variables["params"], model.num_branches, key=key)
        if scheme.calibrate is not None:
            params = scheme.calibrate(params, network=forward(model), inputs=(images,))
        scale = jax.random.uniform(key, minval=0.5, maxval=2.0)
        params = roles.assign(params).map(
            lambda leaf, value, scale=scale: value * scale if leaf.role is Role.NORM else value,
            params,
        )
        blocks = observed({**variables, "params": params}, images)
        form = analysis.predicted(params, scheme, blocks, family=family)
        found.append(np.asarray(analysis.signal_of(blocks).sum.second) / form.sum)
    # 64 channels and more, two draws: 2 to 3%.
    np.testing.assert_allclose(np.mean(found, axis=0), 1, atol=0.08)


def test_what_has_no_closed_form():
    for scheme in ("nf_resnet", "nf_resnet_timm"):
        assert analysis.predicted({}, scheme, [], family="pre_activation") is None
    assert analysis.predicted({}, "fixup", [], family="transformer") is None
