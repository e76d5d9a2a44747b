"""The gradients of the two paths, on blocks that are known."""

import jax
import numpy as np

from experiments import theory_backward


def test_the_ratio_of_two_linear_paths_is_that_of_their_gains():
    """Two blocks ``y = a x + c x``: whatever follows, the ratio of the gradients is ``c / a``."""

    def observed(params, images, perturbations=None):
        x, taps = images, {}
        for name, (a, c) in params.items():
            shift = (perturbations or {}).get(name, {"input": 0.0, "sum": 0.0})
            x = x + shift["input"]
            block = {"input": x, "skip": a * x, "branch": c * x}
            x = a * x + c * x + shift["sum"]
            taps[name] = block | {"sum": x}
        return x.reshape(x.shape[0], -1), taps

    params = {"block_1": (1.0, 0.5), "block_2": (0.5, 2.0)}
    images = jax.random.normal(jax.random.key(0), (3, 2, 2, 4))
    ratios = jax.jit(theory_backward.ratios, static_argnums=0)
    found = ratios(observed, params, images, np.array([1.0, 0.5]), jax.random.key(1))
    # The branch's part is a difference of float32 numbers of size 1 to 2.5.
    np.testing.assert_allclose(found, [0.5, 4.0], rtol=1e-5)


def test_a_branch_that_is_zero_has_no_gradient_through_it():
    """SkipInit: the smallest network, all of whose gradient goes through the skips."""
    sizes = {"depth": 1, "width": 4, "side": 2, "batch_size": 2, "draws": 1}
    assert not theory_backward.draw_ratios({**sizes, "scheme": "skipinit"}).any()
