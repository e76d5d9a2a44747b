"""Scaled orthogonal matrices at the centre of kernels: their products, zeros and second moments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import init, schemes
from nf_resnets.init import Rules

RULES = Rules(branch=r"body/(\w+)$", stem="stem", head="head", stacked="body")
SHAPES = {
    "stem": (7, 7, 3, 16),
    "body": {"a": (4, 3, 3, 16, 8), "b": (4, 1, 1, 8, 16)},
    "head": (16, 10),
}


def drawn(shapes=SHAPES, **options):
    tree = jax.tree.map(np.zeros, shapes, is_leaf=lambda node: isinstance(node, tuple))
    options = {"rules": RULES} | options
    return init.delta_orthogonal(tree, jax.random.key(0), **options)


def test_every_leaf():
    tree = drawn()
    for name, kernel in (
        ("stem", tree["stem"][None]),
        *tree["body"].items(),
        ("head", tree["head"][None, None, None]),
    ):
        _, height, width, c_in, c_out = kernel.shape
        centre = np.asarray(kernel[:, height // 2, width // 2])
        assert np.sum(np.square(kernel)) == pytest.approx(np.sum(np.square(centre))), name
        scale = max(1, c_out / c_in)
        rows = c_out >= c_in
        gram = centre @ centre.swapaxes(1, 2) if rows else centre.swapaxes(1, 2) @ centre
        # QR in float32.
        expected = np.broadcast_to(scale * np.eye(min(c_in, c_out)), gram.shape)
        np.testing.assert_allclose(gram, expected, atol=1e-5 * scale, err_msg=name)
    a, b = tree["body"]["a"][0], tree["body"]["a"][1]
    assert not np.array_equal(a, b)
    doubled = drawn(gain=2.0)
    np.testing.assert_allclose(doubled["stem"], 2 * tree["stem"], rtol=1e-6)


def test_layouts_are_transposed():
    torch = Rules(branch=r"body/(\w+)$", layout="OIHW")
    kernel = drawn({"body": {"a": (16, 8, 3, 3)}}, rules=torch)["body"]["a"]
    np.testing.assert_allclose(kernel[..., 1, 1].T @ kernel[..., 1, 1], 2 * np.eye(8), atol=2e-5)
    assert np.count_nonzero(kernel) == 16 * 8


def test_a_network_keeps_its_inputs_second_moment_at_the_border_too():
    x = np.random.default_rng(0).standard_normal((2, 5, 5, 16), dtype=np.float32)
    kernel = jnp.asarray(
        drawn({"body": {"a": (3, 3, 16, 32)}}, rules=Rules(branch=r"body/(\w+)$"))["body"]["a"]
    )
    y = jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    np.testing.assert_allclose(np.square(y).mean(-1), np.square(x).mean(-1), rtol=1e-5)


def test_a_kernel_of_even_side_is_refused():
    with pytest.raises(ValueError, match=r"leaf 'stem' \[2, 2, 3, 16\] has no central tap"):
        drawn(
            {"stem": (2, 2, 3, 16)},
            rules=Rules(branch=r"body/(\w+)$", stem="stem", optional=("branch",)),
        )


def test_the_schemes_draw_it():
    for name in ("tat", "dks"):
        scheme = schemes.get(name)
        assert scheme.own_draw and scheme.fits == {"pre_activation", "post_activation", "plain"}
        given = jax.tree.map(np.zeros, SHAPES, is_leaf=lambda node: isinstance(node, tuple))
        found = scheme.init(given, 4, key=jax.random.key(0), rules=RULES)
        jax.tree.map(np.testing.assert_array_equal, found, drawn())
