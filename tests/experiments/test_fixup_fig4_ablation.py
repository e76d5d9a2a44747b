"""Fixup's figure 4 as a user runs it, and what its variants are."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from experiments import fixup_fig4_ablation as fig4
from nf_resnets import models
from tests.experiments.as_a_user import lines_of, make


@pytest.mark.slow
def test_smoke_keeps_a_row_and_a_curve_of_every_variant(tmp_path):
    out = tmp_path / "out"
    shown = make("fixup_fig4_ablation", "--scale", "smoke", "--steps", 3, "--out", out)
    rows, curves = lines_of(out / "rows.csv"), lines_of(out / "curves.csv")
    assert {row["variant"] for row in rows} == set(fig4.VARIANTS)
    for row in rows:
        curve = [line for line in curves if line["variant"] == row["variant"]]
        assert [int(line["step"]) for line in curve] == list(range(1, int(row["steps"]) + 1))
        assert curve[-1]["loss"] == row["last_loss"]
        assert row["title"] in shown
    branches = {row["variant"]: row["branches"] for row in rows}
    assert branches["no_branches"] == "0" and branches["fixup"] == "3"
    assert Image.open(out / "figure.png").size[0] > 800


@functools.cache
def kernels_and_scalars(variant):
    scheme = fig4.VARIANTS[variant]
    model = models.CifarResNet(depth=8, scheme=scheme, stem_channels=4)
    params = model.init(jax.random.key(0), jnp.zeros((1, 8, 8, 1)))["params"]
    params = scheme.init(params, model.num_branches)
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    return {"/".join(key.key for key in path): np.asarray(value) for path, value in flat}


@pytest.mark.parametrize(("variant", "factor"), [("no_bias", 1), ("tenth", 0.1), ("tenfold", 10)])
def test_the_ablations_differ_from_fixup_in_biases_and_scale_only(variant, factor):
    fixup, found = kernels_and_scalars("fixup"), kernels_and_scalars(variant)
    biases = {name for name in fixup if "/bias_" in name or name.startswith("bias_")}
    assert biases and set(found) == set(fixup) - biases
    for name in found:
        # conv_1 of a branch is what Fixup rescales; conv_2 is zero in all of them. Two products
        # in float32 instead of one leave an error of 2^-23 or so.
        expected = fixup[name] * (factor if name.endswith("conv_1/kernel") else 1)
        np.testing.assert_allclose(found[name], expected, rtol=1e-6)


def test_without_branches_there_is_no_convolution_but_the_stem():
    names = kernels_and_scalars("no_branches")
    assert {name for name in names if name.endswith("kernel")} == {"stem/kernel", "head/kernel"}
    assert not any("multiplier" in name for name in names)
