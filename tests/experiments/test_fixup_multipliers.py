"""What Fixup's multipliers are measured by, and the experiment as a user sees it."""

import dataclasses

import jax
import numpy as np
import pytest

from experiments import fixup_multipliers as experiment
from experiments.fixup_multipliers import LOOKED_AT, looked_at
from tests.experiments.as_a_user import lines_of, make
from tests.experiments.test_rescale_multipliers import TREE


def test_means_over_layers_and_branches():
    # A gradient of half the weight has a cosine of 1; the mean includes the layer at a right angle.
    gradient = jax.tree.map(lambda leaf: np.asarray(leaf) / 2, TREE)
    across = np.array([1.0, -1.0, 1.0, -1.0]).reshape(1, 1, 2, 2)
    gradient["stage_1"]["first"]["conv_1"]["kernel"] = 30 * across
    # Norms of 6, 8, 2 and 1, of the gradient 60, 4, 1 and 1/2; float64, to rounding.
    expected = (17 / 4, 7 / 2, 3 / 4, (10 + 3 * 0.5) / 4)
    found = looked_at(TREE, gradient)
    assert found == pytest.approx(dict(zip(LOOKED_AT, expected, strict=True)))


def test_weights_of_zeros_are_left_out_of_the_quotient_only():
    tree = {
        **TREE,
        "stage_1": {
            **TREE["stage_1"],
            "rest": jax.tree.map(np.zeros_like, TREE["stage_1"]["rest"]),
        },
    }
    found = looked_at(tree, jax.tree.map(np.asarray, TREE))
    assert found == pytest.approx(dict(zip(LOOKED_AT, (14 / 4, 1.0, 2 / 4, 1.0), strict=True)))


def test_the_variants_differ_in_the_multipliers_only():
    own, without = experiment.VARIANTS["fixup"], experiment.VARIANTS["without"]
    assert own.anatomy.multiplier and not without.anatomy.multiplier
    assert dataclasses.replace(without.anatomy, multiplier=True) == own.anatomy


@pytest.mark.slow
def test_smoke_looks_at_every_step(tmp_path):
    out = tmp_path / "out"
    make("fixup_multipliers", "--scale", "smoke", "--out", out)
    lines, rows = lines_of(out / "curves.csv"), lines_of(out / "rows.csv")
    assert len(lines) == len(rows) * 9 == 27
    for row in rows:
        seen = [line for line in lines if line["variant"] == row["variant"]]
        moved = {line["multiplier"] for line in seen} != {"1.0"}
        assert moved == (row["variant"] == "fixup")
        # BatchNorm's output does not depend on the scale of the weight before it: the product of
        # weight and gradient is 0, up to the rounding of float32 and BatchNorm's epsilon.
        cosine = max(float(line["cosine"]) for line in seen)
        assert cosine < 1e-4 if row["variant"] == "batchnorm" else cosine > 1e-2
        second, last = (
            np.mean([float(line["weight_norm"]) for line in seen[first : first + 2]])
            for first in (3, 7)
        )
        assert float(row["norm_ratio"]) == pytest.approx(last / second)
    assert (out / "figure.png").exists()
