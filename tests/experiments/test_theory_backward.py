"""The gradients of the two paths, on blocks that are known."""

import jax
import numpy as np

from experiments import theory_backward


def test_the_ratio_of_two_linear_paths_is_that_of_their_gains():
    """Of ``y = a x + c x W`` with orthogonal ``W`` the ratio of the gradients is ``c / a``."""

    def network(params, x):
        for a, c, w in zip((1.0, 0.5), (0.5, 2.0), params, strict=True):
            x = a * x + c * (x @ w)
        return x

    params = [np.linalg.qr(np.random.default_rng(n).normal(size=(4, 4)))[0] for n in (0, 1)]
    x = jax.random.normal(jax.random.key(0), (3, 4))
    ratios = jax.jit(theory_backward.ratios, static_argnums=0)
    found = ratios(network, params, x, np.array([1.0, 0.5]), jax.random.key(1))
    # The branch's part is a difference of float32 numbers of size 1 to 2.5.
    np.testing.assert_allclose(found, [0.5, 4.0], rtol=1e-5)


def test_a_branch_that_is_zero_has_no_gradient_through_it():
    """SkipInit: the smallest network, all of whose gradient goes through the skips."""
    sizes = {"depth": 1, "width": 4, "side": 2, "batch_size": 2, "draws": 1}
    assert not theory_backward.draw_ratios({**sizes, "scheme": "skipinit"}).any()
