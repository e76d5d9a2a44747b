"""RescaleNet's multipliers as a user sees them, and what is read from a tree."""

import numpy as np
import pytest

from experiments import rescale_multipliers as rescale
from experiments.rescale_multipliers import blocks_of
from tests.experiments.as_a_user import lines_of, make


@pytest.mark.slow
def test_smoke_keeps_every_block_of_every_look(tmp_path):
    out = tmp_path / "out"
    make("rescale_multipliers", "--scale", "smoke", "--out", out)
    settings = rescale.SCALES["smoke"]
    lines = lines_of(out / "curves.csv")
    looks = settings.steps // settings.look_every + 1
    assert len(lines) == len(rescale.VARIANTS) * looks * 3  # ResNet-8 has L = 3
    assert {line["multiplier"] for line in lines if line["variant"] == "without"} == {"1.0"}
    moved = [line for line in lines if line["variant"] == "multipliers" and line["step"] != "0"]
    assert len({line["multiplier"] for line in moved}) > 1
    assert (out / "figure.png").exists()
    rows = lines_of(out / "rows.csv")
    # The last block's variance is that of its own line, before the first step and after the last.
    for row in rows:
        last = [r for r in lines if (r["variant"], r["block"]) == (row["variant"], "3")]
        assert [row["first_variance"], row["last_variance"]] == [
            last[0]["variance"], last[-1]["variance"]
        ]  # fmt: skip
        assert 0 < float(row["last_variance"]) != float(row["first_variance"])
    assert {float(row["mean_multiplier"]) for row in rows if row["variant"] == "without"} == {1.0}


# Two blocks of stage 1, one alone and one scanned; m = 2.
TREE = {
    "stem": {"kernel": np.full((3, 3, 1, 4), 9.0)},
    "stage_1": {
        "first": {
            "conv_1": {"kernel": np.full((1, 1, 2, 2), 3.0)},
            "conv_2": {"kernel": np.full((1, 1, 2, 2), 4.0)},
            "multiplier": np.float32(2.0),
        },
        "rest": {
            "conv_1": {"kernel": np.full((1, 1, 1, 2, 2), 1.0)},
            "conv_2": {"kernel": np.full((1, 1, 1, 2, 2), 0.5)},
            "multiplier": np.array([5.0], np.float32),
        },
    },
    "head": {"kernel": np.ones((4, 10)), "bias": np.zeros(10)},
}


def test_multiplier_norm_and_gain_of_every_block():
    first, second = blocks_of(TREE)
    # Kernels of four equal entries have norms of twice the entry: 6 and 8, then 2 and 1.
    assert first == pytest.approx({"block": 1, "multiplier": 2, "weight_norm": 10, "gain": 96})
    assert second == pytest.approx({"block": 2, "multiplier": 5, "weight_norm": 5**0.5, "gain": 10})
