"""RescaleNet's standard deviations, leaf by leaf, and its constants."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import init, schemes
from nf_resnets.init import Rules
from nf_resnets.models import ARCHITECTURES
from nf_resnets.roles import path_name
from tests.models.trees import quick_jit

pytestmark = pytest.mark.filterwarnings("ignore::nf_resnets.schemes.SchemeWarning")
constants = schemes.get("rescalenet").constants

# The blocks of each stage in the small networks, and the layers of their branches.
SHAPES = {
    "cifar-resnet": ((3, 3, 3), 2),
    "wrn": ((3, 3, 3), 2),
    "resnet": ((3, 4, 6, 3), 3),
    "resnet-v2": ((3, 4, 6, 3), 3),
    "vgg": ((), 0),
}


def _shapes(name, scheme="rescalenet", **options):
    architecture = ARCHITECTURES[name]
    model = architecture.smallest(scheme, stem_channels=16, **options)
    return model, jax.eval_shape(model.init, jax.random.key(0), *architecture.example(2))["params"]


def _deviation(path, shape, sizes, m, *, first=1, dropout=0.0):
    """What a weight's standard deviation is to be, one for each branch of a stacked leaf.

    ``first`` is the first block's k; the last two stages have dropout.
    """
    fan_in = math.prod(shape[:-1])
    if first == 0 and not sizes:  # the published VGG: He (fan_out), the head too
        return [(2 / (fan_in // shape[-2] * shape[-1])) ** 0.5]
    if path.startswith("head"):
        return [fan_in**-0.5]
    if "/shortcut/" in path:
        return [fan_in**-0.5]
    found = re.match(r"stage_(\d+)/(first|rest)/conv_\d/kernel", path)
    if found is None:
        return [(2 / fan_in) ** 0.5]
    stage, part = int(found[1]), found[2]
    depth, k = sum(sizes), sum(sizes[: stage - 1]) + first
    kept = (1 - dropout) ** 0.5 if stage > len(sizes) - 2 else 1
    if part == "first":
        ks = [k]
    else:
        ks, fan_in = range(k + 1, k + sizes[stage - 1]), math.prod(shape[1:-1])
    return [kept * (2 / fan_in) ** 0.5 * (depth / (k + depth)) ** (1 / (2 * m)) for k in ks]


QUICK = [("cifar-resnet", "rescalenet"), ("vgg", "rescalenet_published")]


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        pytest.param(name, scheme, marks=() if (name, scheme) in QUICK else pytest.mark.slow)
        for scheme in ("rescalenet", "rescalenet_published")
        for name in SHAPES
    ],
)
def test_every_leaf(name, scheme):
    # Half of what the branches compute is dropped; of VGG's layers this is no matter.
    options, rate = ({}, 0.0) if name == "vgg" else ({"conv_dropout": 0.5}, 0.5)
    model, shapes = _shapes(name, scheme, **options)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape).astype("f4"), shapes)
    dropout = model.branch_dropout if options else 0.0
    start = functools.partial(schemes.get(scheme).init, dropout=dropout, key=jax.random.key(3))
    result = start(params, model.num_branches)
    first, checked = int(scheme == "rescalenet"), 0
    for (path, given), leaf in zip(
        jax.tree_util.tree_flatten_with_path(params)[0], jax.tree.leaves(result), strict=True
    ):
        path = path_name(path)
        if path.endswith(("bias", "vector")):
            assert not np.any(leaf), path
        elif path.endswith("multiplier"):
            assert np.all(leaf == 1), path
        else:
            stds = _deviation(path, given.shape, *SHAPES[name], first=first, dropout=rate)
            values = np.asarray(leaf).reshape(len(stds), -1)
            for std, own in zip(stds, values, strict=True):
                measured = np.sqrt(np.mean(np.square(own, dtype="f8")))
                # Five times the standard error of a sample's standard deviation.
                assert abs(measured / std - 1) < 5 / math.sqrt(2 * own.size), path
                checked += 1
    assert checked >= 11


def _rms(values):
    return np.sqrt(np.mean(np.square(np.asarray(values, "f8"))))


# What a network may come with: this library's default, Flax's, torchvision's, PyTorch's. One
# factor for a weight serves any, so that each is tried on one network.
@pytest.mark.parametrize(
    ("given", "name", "scheme"),
    [
        ("He (fan_out)", "wrn", "rescalenet"),
        pytest.param("uniform", "resnet", "rescalenet_published", marks=pytest.mark.slow),
        ("N(3, 1e-40)", "vgg", "rescalenet_published"),
        pytest.param("uniform", "resnet-v2", "rescalenet", marks=pytest.mark.slow),
        pytest.param("N(3, 1e-40)", "cifar-resnet", "rescalenet", marks=pytest.mark.slow),
        pytest.param("He (fan_out)", "vgg", "rescalenet", marks=pytest.mark.slow),
    ],
)
def test_without_a_key_every_weight_gets_the_deviation_of_the_recipe(given, name, scheme):
    model, shapes = _shapes(name, scheme)
    sizes = SHAPES[name][0]
    rates = [
        0.1 * (stage >= len(sizes) - 2) for stage, size in enumerate(sizes) for _ in range(size)
    ]
    start = functools.partial(schemes.get(scheme).init, dropout=rates or 0.0)
    rng = np.random.default_rng(0)
    draw = {
        "He (fan_out)": lambda shape: rng.standard_normal(shape) * (2 / shape[-1]) ** 0.5,
        "uniform": lambda shape: rng.uniform(-1, 1, shape) / math.prod(shape[:-1]) ** 0.5,
        "N(3, 1e-40)": lambda shape: 1e-20 * (3 + rng.standard_normal(shape)),
    }[given]
    params = jax.tree.map(
        lambda leaf: jnp.asarray(draw(leaf.shape) if leaf.ndim > 1 else 0.5 + np.zeros(leaf.shape)),
        shapes,
    )
    # Numbers whose squares XLA takes for 0 are for NumPy's double precision.
    run = (lambda start: start) if name == "vgg" else quick_jit
    result = run(lambda tree: start(tree, model.num_branches))(params)
    first, checked = int(scheme == "rescalenet"), 0
    for (path, before), after in zip(
        jax.tree_util.tree_flatten_with_path(params)[0], jax.tree.leaves(result), strict=True
    ):
        path = path_name(path)
        if not path.endswith("kernel"):
            continue
        stds = _deviation(path, before.shape, *SHAPES[name], first=first, dropout=0.1)
        rows = (np.asarray(leaf).reshape(len(stds), -1) for leaf in (after, before))
        for std, own, old in zip(stds, *rows, strict=True):
            # A few roundings of float32 on the way, and those of its sums.
            assert abs(_rms(own) / std - 1) < 3e-6, path
            np.testing.assert_allclose(own / own[0], old / old[0], rtol=1e-5)  # one factor
            checked += 1
    assert checked >= 11


def test_zeros_cannot_be_rescaled():
    tree = {"b_0": {"c_1": jnp.ones((4, 4)), "c_2": jnp.zeros((4, 4))}}
    rules = Rules(branch=r"b_(\d+)/c_(\d)")
    with pytest.raises(ValueError, match="leaf 'b_0/c_2' has the standard deviation 0.0.*key="):
        init.rescalenet(tree, 1, rules=rules)
    drawn = init.rescalenet(tree, 1, key=jax.random.key(0), rules=rules)
    assert np.all(drawn["b_0"]["c_2"] != 0)


def test_the_numbers_of_the_feedback():
    """Three convolutions: each is ``L**(1/6) (k + L)**(-1/6)`` times smaller, ``k`` from 1."""
    tree = {f"b_{k}": {f"c_{j}": np.ones((3, 3, 4, 4)) for j in (1, 2, 3)} for k in range(16)}
    result = init.rescalenet(tree, 16, rules=Rules(branch=r"b_(\d+)/c_(\d)"))
    for k in range(16):
        for leaf in result[f"b_{k}"].values():
            ratio = leaf / (2 / 36) ** 0.5
            np.testing.assert_allclose(ratio, 16 ** (1 / 6) * (k + 1 + 16) ** (-1 / 6), rtol=1e-14)


def test_the_published_code_counts_from_zero():
    """Its ``block_idx`` begins at ``L - 1``; typed from its formulas, for ResNet-50."""
    constants = schemes.get("rescalenet_published").anatomy.constants((False,) * 16)
    paper = schemes.get("rescalenet").anatomy.constants((False,) * 16)
    index = np.arange(15, 31)
    np.testing.assert_allclose(constants.identity, (index / (index + 1)) ** 0.5, rtol=1e-7)
    np.testing.assert_array_equal(constants.residual, paper.residual)
    assert [round(float(each.identity[0]), 4) for each in (constants, paper)] == [0.9682, 0.9701]
    tree = {f"b_{k}": {f"c_{j}": np.ones((3, 3, 4, 4)) for j in (1, 2, 3)} for k in range(16)}
    rules = Rules(branch=r"b_(\d+)/c_(\d)")
    result = init.rescalenet(tree, 16, published=True, dropout=0.03, rules=rules)
    for k in range(16):
        multiplier = (15 + k + 1) ** (-1 / 6) * 16 ** (1 / 6) * (1 - 0.03) ** 0.5
        ratio = result[f"b_{k}"]["c_2"] / (2 / 36) ** 0.5
        np.testing.assert_allclose(ratio, multiplier, rtol=1e-14)


def test_dropout_by_the_branch():
    tree = {f"b_{k}": {"c_1": np.ones((3, 3, 4, 4))} for k in range(2)}
    rules = Rules(branch=r"b_(\d+)/c_(\d)")
    plain = init.rescalenet(tree, 2, rules=rules)
    result = init.rescalenet(tree, 2, dropout=(0.0, 0.75), rules=rules)
    np.testing.assert_array_equal(result["b_0"]["c_1"], plain["b_0"]["c_1"])
    np.testing.assert_allclose(result["b_1"]["c_1"], plain["b_1"]["c_1"] / 2, rtol=1e-14)
    for wrong in (1.0, -0.1, (0.1,), (0.1, 0.1, 0.1), float("nan")):
        with pytest.raises(ValueError, match=r"dropout=.* found; expected one rate in \[0, 1\)"):
            init.rescalenet(tree, 2, dropout=wrong, rules=rules)


@pytest.mark.parametrize("depth", [1, 2, 16, 1000])
def test_the_constants(depth):
    constants = schemes.get("rescalenet").anatomy.constants((True,) + (False,) * (depth - 1))
    k = np.arange(1, depth + 1)
    # float32's relative error of a square root and a square: 2**-24 each, twice.
    np.testing.assert_allclose(np.float64(constants.identity) ** 2 + 1 / (k + depth), 1, rtol=3e-7)
    np.testing.assert_allclose(np.float64(constants.residual) ** 2, 1 / depth, rtol=3e-7)
    assert constants.beta is None
    assert constants.identity.shape == constants.residual.shape == (depth,)
    # The input's fraction of the variance that leaves the last block, and a branch's: 1/2, 1/(2L).
    identity = np.float64(constants.identity) ** 2
    np.testing.assert_allclose(np.prod(identity), 0.5, rtol=1e-4)
    fractions = [np.prod(identity[k:]) / (k + depth) for k in range(1, depth + 1)]
    np.testing.assert_allclose(fractions, 1 / (2 * depth), rtol=1e-4)
