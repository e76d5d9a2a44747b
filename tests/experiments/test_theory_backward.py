"""The gradients of the two paths as a user measures them, and on a block that is known."""

import jax
import numpy as np
import pytest
from PIL import Image

from experiments import theory_backward
from tests.experiments.as_a_user import lines_of, make


@pytest.mark.slow
def test_smoke_measures_every_block_of_every_scheme(tmp_path):
    shown = make("theory_backward", "--scale", "smoke", "--out", tmp_path)
    settings = theory_backward.SCALES["smoke"]
    rows = lines_of(tmp_path / "rows.csv")
    assert len(rows) == len(settings.schemes) * settings.depth
    assert all(0 < float(row["ratio"]) < 3 for row in rows)
    assert "BatchNorm, also after the sum" in shown and "slope" in shown
    assert Image.open(tmp_path / "figure.png").size[0] > 500
    again = make("theory_backward", "--scale", "smoke", "--out", tmp_path)
    assert lines_of(tmp_path / "rows.csv") == rows and "batchnorm:" not in again


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
    settings = theory_backward.Settings(depth=1, width=4, side=2, batch_size=2, draws=1)
    assert not theory_backward.draw_ratios(settings, "skipinit").any()
