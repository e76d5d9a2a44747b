"""Each initialiser, leaf by leaf, on networks of four libraries, a scanned one and our own.

What a leaf must become is looked up by what ``tests/trees`` says it is by hand, and computed here
from the papers' formulas, not by the library.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import init, roles
from nf_resnets.init import Rules
from tests.trees import (
    equinox_tree,
    haiku_tree,
    linen_tree,
    nnx_tree,
    our_models,
    stacked_tree,
)
from tests.trees.network import by_path, filled, replaced

NETWORKS = {
    "linen": linen_tree.network,
    "nnx": nnx_tree.network,
    "haiku": haiku_tree.network,
    "equinox": equinox_tree.network,
    "stacked": stacked_tree.network,
    "CifarResNet": functools.partial(our_models.cifar_resnet, "fixup"),
    "WideResNet": functools.partial(our_models.wide_resnet, "fixup"),
}
WITH_ALPHA = NETWORKS | {
    "CifarResNet": functools.partial(our_models.cifar_resnet, "skipinit"),
    "WideResNet": functools.partial(our_models.wide_resnet, "skipinit"),
}
WEIGHTS = ("inner", "last", "stem", "shortcut", "head")
BIASES = ("inner_bias", "last_bias", "bias", "head_bias")


@functools.cache
def _network(make):
    return make()


@pytest.fixture(params=NETWORKS)
def net(request):
    return _network(NETWORKS[request.param])


@pytest.fixture(params=WITH_ALPHA)
def net_with_alpha(request):
    return _network(WITH_ALPHA[request.param])


def _same_kind_of_tree(before, after):
    assert jax.tree.structure(before) == jax.tree.structure(after)
    assert type(before) is type(after)
    before, after = by_path(before), by_path(after)
    for path, leaf in before.items():
        assert (after[path].shape, after[path].dtype) == (leaf.shape, leaf.dtype), path
        assert type(after[path]) is type(leaf), path


def _fixup_by_hand(kind, value, inner_factor):
    """Fixup's rules 1 to 3 on one leaf; ``inner_factor = L**(-1/(2m-2))``."""
    if kind in ("last", "last_bias", "head", "head_bias", "scalar_bias"):
        return np.zeros_like(value)
    if kind == "multiplier":
        return np.ones_like(value)
    if kind == "inner":
        return np.float32(inner_factor) * np.asarray(value)
    return np.asarray(value)


def test_the_trees_are_described_whole(net, net_with_alpha):
    for network in (net, net_with_alpha):
        assert set(network.kinds) == set(by_path(network.params))


def test_fixup_leaf_by_leaf(net):
    result = init.fixup(net.params, depth=net.branches, rules=net.rules)
    _same_kind_of_tree(net.params, result)
    result = by_path(result)
    for path, value in by_path(net.params).items():
        expected = _fixup_by_hand(net.kinds[path], value, net.branches**-0.5)
        # Bit for bit: one float32 product, whose correctly rounded value both sides return.
        np.testing.assert_array_equal(result[path], expected, err_msg=path, strict=True)


@pytest.mark.every(6)
def test_fixup_with_a_key_is_he_fan_out_then_the_same_rules(net):
    key = jax.random.key(3)
    drawn = by_path(init.he(net.params, key, mode="fan_out", rules=net.rules))
    result = init.fixup(net.params, depth=net.branches, key=key, rules=net.rules)
    _same_kind_of_tree(net.params, result)
    for path, value in by_path(result).items():
        expected = _fixup_by_hand(net.kinds[path], drawn[path], net.branches**-0.5)
        np.testing.assert_array_equal(value, expected, err_msg=path)


@pytest.mark.every(6)
def test_a_fixup_network_outputs_zero_and_its_loss_is_ln_c(net):
    before = net.logits(net.params)
    logits = net.logits(init.fixup(net.params, depth=net.branches, rules=net.rules))
    assert np.abs(before).max() > 0
    np.testing.assert_array_equal(logits, np.zeros_like(before))
    loss = -jax.nn.log_softmax(logits)[:, 0].mean()
    # ln c is one rounding of a logarithm: within two units in the last place of float32.
    np.testing.assert_allclose(loss, math.log(logits.shape[1]), rtol=2.4e-7)


def test_every_branch_of_a_fixup_network_is_silent(net):
    """With its head put back, the network is the one whose multipliers are all 0."""
    before = by_path(net.params)
    fixed = init.fixup(net.params, depth=net.branches, rules=net.rules)
    head = {path: leaf for path, leaf in before.items() if net.kinds[path].startswith("head")}
    muted = {p: jnp.zeros_like(v) for p, v in before.items() if net.kinds[p] == "multiplier"}
    others = {p: v for p, v in before.items() if net.kinds[p] in ("last", "last_bias", "inner")}
    logits = net.logits(replaced(fixed, head))
    assert np.abs(logits).max() > 0
    np.testing.assert_array_equal(logits, net.logits(replaced(fixed, head | muted | others)))


@pytest.mark.parametrize("alpha", [0.0, 0.25])
def test_skipinit_leaf_by_leaf(net_with_alpha, alpha):
    net = net_with_alpha
    result = init.skipinit(net.params, depth=net.branches, alpha=alpha, rules=net.rules)
    _same_kind_of_tree(net.params, result)
    result = by_path(result)
    for path, value in by_path(net.params).items():
        expected = np.full_like(value, alpha) if net.kinds[path] == "alpha" else value
        np.testing.assert_array_equal(result[path], expected, err_msg=path)
    assert np.isfinite(net.logits(init.skipinit(net.params, net.branches, rules=net.rules))).all()


STANDARDS = {
    "he": init.he,
    "he, fan_out": functools.partial(init.he, mode="fan_out"),
    "xavier": init.xavier,
    "orthogonal": init.orthogonal,
    "standard": lambda params, key, rules: init.standard(
        params, roles.assign(params, rules).num_branches, key=key, rules=rules
    ),
}


# Quick runs have each initialiser once, and six of the seven networks.
@pytest.mark.parametrize(
    ("name", "network"),
    [
        pytest.param(name, network, marks=() if (i + j) % 7 == 6 else pytest.mark.slow)
        for i, name in enumerate(STANDARDS)
        for j, network in enumerate(NETWORKS)
    ],
)
def test_standard_initialisations_draw_weights_zero_biases_and_keep_the_rest(name, network):
    net = _network(NETWORKS[network])
    result = STANDARDS[name](net.params, jax.random.key(5), rules=net.rules)
    _same_kind_of_tree(net.params, result)
    result = by_path(result)
    for path, value in by_path(net.params).items():
        if net.kinds[path] in WEIGHTS:
            assert not np.any(np.asarray(result[path]) == np.asarray(value)), path
            assert np.all(np.isfinite(result[path])), path
        elif net.kinds[path] in BIASES:
            assert not np.any(result[path]), path
        else:
            np.testing.assert_array_equal(result[path], value, err_msg=path)
    drawn = [np.asarray(result[p]).tobytes() for p in result if net.kinds[p] in WEIGHTS]
    assert len(set(drawn)) == len(drawn), "two layers were drawn alike"


def test_he_has_the_std_of_each_leaf(net):
    for mode in ("fan_in", "fan_out"):
        result = by_path(init.he(net.params, jax.random.key(5), mode=mode, rules=net.rules))
        squares, count = 0.0, 0
        for path, value in result.items():
            kind = net.kinds[path]
            if kind not in WEIGHTS:
                continue
            shape = value.shape
            if "rest" in path or path.startswith("layers/"):
                shape = shape[1:]
            if path.endswith("/weight"):  # Equinox: [out, in, *field]
                shape = (*shape[2:], shape[1], shape[0])
            fan_in, fan_out = math.prod(shape[:-1]), math.prod(shape) // shape[-2]
            fan = 2 * fan_in if kind == "head" else (fan_in if mode == "fan_in" else fan_out)
            squares += float(np.square(value).sum()) * fan / 2
            count += value.size
        # The mean of n squares of N(0, 1) has standard deviation sqrt(2/n); five of them.
        assert abs(squares / count - 1) < 5 * (2 / count) ** 0.5


def _bottleneck(layers, blocks):
    """Blocks of ``layers[b]`` convolutions each, and rules that know them."""
    tree = {"stem": jnp.ones((3, 3, 3, 4)), "fc": jnp.ones((4, 2))}
    for block in range(blocks):
        for j in range(1, layers(block) + 1):
            tree[f"block_{block}"] = tree.get(f"block_{block}", {})
            tree[f"block_{block}"][f"conv_{j}"] = jnp.ones((1, 1, 4, 4))
    rules = Rules(branch=r"block_(\d+)/conv_(\d+)", head="^fc", stem="^stem")
    return filled(tree), rules


def _check_layers(tree, rules, layers, blocks):
    result = init.fixup(tree, depth=blocks, rules=rules)
    np.testing.assert_array_equal(result["stem"], tree["stem"])
    assert not np.any(result["fc"])
    for block in range(blocks):
        m = layers(block)
        before, after = tree[f"block_{block}"], result[f"block_{block}"]
        assert not np.any(after[f"conv_{m}"])
        for j in range(1, m):
            factor = np.float32(blocks ** (-1 / (2 * m - 2)))
            np.testing.assert_array_equal(after[f"conv_{j}"], factor * before[f"conv_{j}"])


def test_branches_of_two_to_eleven_layers_side_by_side():
    layers = {0: 2, 1: 3, 2: 4, 3: 11}.__getitem__  # conv_11 is the last of eleven, not conv_9
    _check_layers(*_bottleneck(layers, 4), layers, 4)


@pytest.mark.parametrize(("depth", "m", "factor"), [(54, 2, 0.1360828), (16, 3, 0.5), (1, 2, 1.0)])
def test_the_factor_against_numbers_worked_out_by_hand(depth, m, factor):
    tree, rules = _bottleneck(lambda block: m, depth)
    tree = jax.tree.map(jnp.ones_like, tree)
    result = init.fixup(tree, depth=depth, rules=rules)
    # Seven digits were written down.
    np.testing.assert_allclose(result["block_0"]["conv_1"], factor, rtol=1e-6)


def test_linen_variables_with_their_wrapper_and_statistics():
    net = _network(NETWORKS["WideResNet"])
    wrapped = {"params": net.params, "batch_stats": {"norm_head": {"mean": jnp.ones(3)}}}
    result = init.fixup(wrapped, depth=net.branches)
    plain = init.fixup(net.params, depth=net.branches)
    assert jax.tree.all(jax.tree.map(np.array_equal, result["params"], plain))
    np.testing.assert_array_equal(result["batch_stats"]["norm_head"]["mean"], 1)


def test_equinox_partitioned():
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    net = _network(NETWORKS["equinox"])
    arrays, static = eqx.partition(net.params, eqx.is_array)
    result = init.fixup(arrays, depth=net.branches, rules=net.rules)
    whole = init.fixup(net.params, depth=net.branches, rules=net.rules)
    assert eqx.tree_equal(eqx.combine(result, static), whole)
    np.testing.assert_array_equal(net.logits(eqx.combine(result, static)), 0)


def test_an_nnx_model_itself():
    nnx = pytest.importorskip("flax.nnx")
    model = nnx_tree.ResNet(nnx.Rngs(0))
    graph, state = nnx.split(model)
    result = init.fixup(state, depth=nnx_tree.BLOCKS, rules=nnx_tree.RULES)
    assert isinstance(result, nnx.State)
    np.testing.assert_array_equal(nnx.merge(graph, result)(jnp.ones((1, 4, 4, 3))), 0)
    nnx.update(model, result)
    np.testing.assert_array_equal(model(jnp.ones((1, 4, 4, 3))), 0)
    assert model(jnp.ones((1, 4, 4, 3))).shape == (1, 5)
