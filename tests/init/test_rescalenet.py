"""RescaleNet's standard deviations, leaf by leaf, and its constants."""

import dataclasses
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import analysis, init, schemes
from nf_resnets.init import Rules
from nf_resnets.roles import path_name
from tests.models.smallest import example, smallest
from tests.models.trees import filled_with, quick_jit
from tests.trees import pairs

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


def _kernels(name, scheme, before, after, dropout):
    """Each weight's values before and after, and what its deviation is to be."""
    first = int(scheme == "rescalenet")
    for path, old, new in pairs(before, after):
        if path.endswith("kernel"):
            stds = _deviation(path, old.shape, *SHAPES[name], first=first, dropout=dropout)
            rows = (np.asarray(leaf, "f8").reshape(len(stds), -1) for leaf in (old, new))
            yield from ((path, *row) for row in zip(stds, *rows, strict=True))


def _rms(values):
    return np.sqrt(np.mean(np.square(values)))


@pytest.mark.parametrize(
    ("name", "scheme"), [("cifar-resnet", "rescalenet"), ("vgg", "rescalenet_published")]
)
def test_every_leaf_of_a_draw(name, scheme):
    # Half of what the branches compute is dropped; of VGG's layers this is no matter.
    options, rate = ({}, 0.0) if name == "vgg" else ({"conv_dropout": 0.5}, 0.5)
    model = smallest(name, scheme, stem_channels=16, **options)
    params = filled_with(7.0, model)
    dropout = model.branch_dropout if options else 0.0
    start = functools.partial(schemes.get(scheme).init, dropout=dropout, key=jax.random.key(3))
    result = start(params, model.num_branches)
    for path, leaf in pairs(result):
        assert path.endswith("kernel") or np.all(leaf == path.endswith("multiplier")), path
    found = list(_kernels(name, scheme, params, result, rate))
    assert len(found) >= 11
    for path, std, _, own in found:
        # Five times the standard error of a sample's standard deviation.
        assert abs(_rms(own) / std - 1) < 5 / math.sqrt(2 * own.size), path


# What a network may come with: this library's default, Flax's, torchvision's, PyTorch's. One
# factor for a weight serves any, so that each is tried on one network.
@pytest.mark.parametrize(
    ("given", "name", "scheme"),
    [
        ("He (fan_out)", "wrn", "rescalenet"),
        ("N(3, 1e-40)", "vgg", "rescalenet_published"),
        pytest.param("uniform", "resnet", "rescalenet_published", marks=pytest.mark.slow),
        pytest.param("uniform", "resnet-v2", "rescalenet", marks=pytest.mark.slow),
    ],
)
def test_without_a_key_every_weight_gets_the_deviation_of_the_recipe(given, name, scheme):
    model = smallest(name, scheme, stem_channels=16)
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
        lambda leaf: jnp.asarray(draw(leaf.shape) if leaf.ndim > 1 else leaf),
        filled_with(0.5, model),
    )
    # Numbers whose squares XLA takes for 0 are for NumPy's double precision.
    run = (lambda start: start) if name == "vgg" else quick_jit
    result = run(lambda tree: start(tree, model.num_branches))(params)
    for path, std, old, own in _kernels(name, scheme, params, result, 0.1):
        # A few roundings of float32 on the way, and those of its sums.
        assert abs(_rms(own) / std - 1) < 3e-6, path
        np.testing.assert_allclose(own / own[0], old / old[0], rtol=1e-5)  # one factor


def test_zeros_cannot_be_rescaled():
    tree = {"b_0": {"c_1": jnp.ones((4, 4)), "c_2": jnp.zeros((4, 4))}}
    rules = Rules(branch=r"b_(\d+)/c_(\d)")
    with pytest.raises(ValueError, match="leaf 'b_0/c_2' has the standard deviation 0.0.*key="):
        init.rescalenet(tree, 1, rules=rules)
    drawn = init.rescalenet(tree, 1, key=jax.random.key(0), rules=rules)
    assert np.all(drawn["b_0"]["c_2"] != 0)


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


def test_with_a_constant_for_each_branch_gradients_fall_more_with_the_depth():
    """``(k+L)**-0.5`` on He's branches and ``L**-0.5`` on RescaleNet's are one function.

    A layer's weight in the second is ``f = (L/(k+L))**(1/(2m))`` times that in the first, so that
    its gradient is ``1/f`` times as large.
    """

    paper, key, inputs = schemes.get("rescalenet"), jax.random.key(0), example("cifar-resnet", 2)
    anatomy = dataclasses.replace(
        paper.anatomy, residual=lambda begins: (np.arange(len(begins)) + 1 + len(begins)) ** -0.5
    )
    first, second = (
        smallest("cifar-resnet", each)
        for each in (dataclasses.replace(paper, anatomy=anatomy), paper)
    )
    depth = second.num_branches
    rescaled = init.rescalenet(filled_with(1.0, second), depth, key=key)
    he = jax.tree_util.tree_map_with_path(
        lambda path, drawn, other: other if "/shortcut/" in path_name(path) else drawn,
        init.he(rescaled, key),
        rescaled,
    )

    def value_and_gradient(model, params):
        def loss(tree):
            return jnp.sum(model.apply({"params": tree}, *inputs) ** 2)

        return quick_jit(jax.value_and_grad(loss))(params)

    loss, one = value_and_gradient(first, he)
    same, other = value_and_gradient(second, rescaled)
    np.testing.assert_allclose(loss, same, rtol=1e-4)  # float32, through 14 layers
    norms = [analysis.weight_norms(tree) for tree in (one, other)]
    f = (depth / (np.arange(depth) + 1 + depth)) ** (1 / 4)
    np.testing.assert_allclose(norms[1] / norms[0], np.stack([1 / f, 1 / f], 1), rtol=1e-3)
