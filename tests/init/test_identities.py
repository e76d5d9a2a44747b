"""ZerO and IDInit: every entry by hand, exact isometry, on trees of every library."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg

from nf_resnets import init, models
from nf_resnets.init.zero import hadamard
from tests.init.test_trees import NETWORKS
from tests.models.trees import quick_jit
from tests.trees.network import by_path

SCHEMES = {
    "zero": init.zero,
    "zero_published": functools.partial(init.zero, c="notebook"),
    "idinit": init.idinit,
}


def by_hand(scheme, rows, columns, *, small):
    """The matrix ``[rows, columns]`` of a layer, in the last case of a last one or a head."""
    if scheme == "idinit":
        matrix = np.zeros((rows, columns))
        for i in range(rows):
            for j in range(columns):
                if i % min(rows, columns) == j % min(rows, columns):
                    matrix[i, j] = 1e-6 if small else 1
        return matrix
    if small:
        return np.zeros((rows, columns))
    if rows <= columns:
        return np.eye(columns)[:rows]
    m = int(np.ceil(np.log2(rows)))
    c = 2 ** (-m / 2) if scheme == "zero_published" else 2 ** (-(m - 1) / 2)
    return c * linalg.hadamard(2**m)[:rows, :columns]


@pytest.mark.parametrize("m", range(6))
def test_the_hadamard_matrix_is_scipys(m):
    np.testing.assert_array_equal(hadamard(m), linalg.hadamard(2**m))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(("columns", "rows"), [(4, 4), (6, 4), (3, 8), (3, 6), (1, 5), (16, 32)])
def test_a_dense_layer_and_a_kernel(scheme, columns, rows):
    expected = by_hand(scheme, rows, columns, small=False).T.astype("f4")
    tree = {"stem": {"kernel": np.ones((columns, rows), "f4"), "bias": np.ones(rows, "f4")}}
    result = SCHEMES[scheme](tree, 0)["stem"]
    np.testing.assert_array_equal(result["kernel"], expected)
    np.testing.assert_array_equal(result["bias"], 0)
    # Of a kernel, at its middle tap; the shortcut has a single one.
    kernel = SCHEMES[scheme]({"stem": {"kernel": np.ones((5, 5, columns, rows), "f4")}}, 0)
    kernel = kernel["stem"]["kernel"]
    np.testing.assert_array_equal(kernel[2, 2], expected)
    assert np.count_nonzero(kernel) == np.count_nonzero(expected)


@pytest.mark.every(2)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("network", NETWORKS)
def test_leaf_by_leaf_on_trees_of_every_library(scheme, network):
    net = NETWORKS[network]()
    result = SCHEMES[scheme](net.params, net.branches, rules=net.rules)
    assert jax.tree.structure(result) == jax.tree.structure(net.params)
    after, stacked = by_path(result), 0
    for path, value in by_path(net.params).items():
        kind, found = net.kinds[path], np.asarray(after[path])
        if kind in ("inner", "last", "stem", "shortcut", "head"):
            scanned = re.search(r"(^|/)(rest|layers)/", path) is not None
            stacked += scanned
            for one in found if scanned else [found]:
                if network == "equinox":  # [C_out, C_in, H, W]
                    one = np.transpose(one, (*range(2, one.ndim), 1, 0))
                taps = one.reshape(-1, *one.shape[-2:])
                expected = by_hand(scheme, *one.shape[:-3:-1], small=kind in ("last", "head"))
                # The middle tap, and no other.
                np.testing.assert_array_equal(taps[len(taps) // 2], expected.T.astype("f4"), path)
                assert np.count_nonzero(taps) == np.count_nonzero(expected)
        elif kind in ("inner_bias", "last_bias", "bias", "head_bias"):
            np.testing.assert_array_equal(found, 0, path)
        else:
            np.testing.assert_array_equal(found, value, path)
    assert (stacked > 0) == (network in ("stacked", "CifarResNet", "WideResNet"))


@pytest.mark.parametrize(("columns", "rows"), [(4, 4), (3, 8), (16, 32), (1, 4)])
def test_widening_to_a_power_of_two_is_an_exact_isometry(columns, rows):
    tree = {"stem": {"kernel": np.ones((columns, rows), "f4")}}
    for scheme, square in (("zero_published", 1), ("zero", 2)):
        kernel = SCHEMES[scheme](tree, 0)["stem"]["kernel"].astype("f8")
        factor = 1 if rows == columns else square
        # Entries are rounded once where m is odd, of sums of at most 32 squares.
        np.testing.assert_allclose(kernel @ kernel.T, factor * np.eye(columns), atol=2e-6)


@pytest.mark.parametrize("scheme", ["zero", pytest.param("idinit", marks=pytest.mark.slow)])
def test_the_branches_of_a_network_are_silent(scheme):
    """The features before the head are those of stem and shortcuts alone."""
    images = jax.random.normal(jax.random.key(1), (2, 8, 8, 3))
    model = models.WideResNet(depth=16, scheme=scheme, stem_channels=4)
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    ones = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), shapes)
    params = SCHEMES[scheme](ones, model.num_branches)
    kernel = params["head"]["kernel"]
    assert not np.any(kernel) or np.abs(kernel).max() == np.float32(1e-6)
    with_head = {**params, "head": {**params["head"], "kernel": jnp.ones_like(kernel)}}
    silent = jax.tree_util.tree_map_with_path(
        lambda path, leaf: 0 * leaf if path[-2].key == "conv_2" else leaf, with_head
    )
    apply = quick_jit(lambda params: model.apply({"params": params}, images))
    logits, expected = apply(with_head), apply(silent)
    assert np.abs(expected).max() > 1e-2
    # A branch of 1e-6 moves a sum over 16 channels by as much.
    np.testing.assert_allclose(logits, expected, rtol=0 if scheme == "zero" else 1e-4)


def test_refusals():
    tree = {"stem": {"kernel": np.ones((2, 4), "f4")}}
    with pytest.raises(ValueError, match="c='code' found; expected 'paper' or 'notebook'"):
        init.zero(tree, 0, c="code")
    for name in ("tau", "epsilon"):
        with pytest.raises(ValueError, match=f"{name}=0 found; expected a finite number above 0"):
            init.idinit(tree, 0, **{name: 0})
    for scheme in SCHEMES.values():
        with pytest.raises(TypeError, match="expected one PRNG key"):
            scheme(tree, 0, key=1)
