"""Theorems 1 and 2 as a user runs them."""

import pytest
from PIL import Image

from experiments import theory_bounds
from experiments.main import main
from experiments.theory_bounds import EXPERIMENT
from tests.experiments.as_a_user import lines_of, make


@pytest.mark.slow
def test_no_bound_is_violated_and_a_second_start_measures_nothing(tmp_path):
    arguments = ("--scale", "smoke", "--depths", 10, "--inits", "he", "fixup", "--out", tmp_path)
    output = make("theory_bounds", *arguments)
    rows = lines_of(tmp_path / "rows.csv")
    # Three blocks and six sets (stem, head, two shortcuts with either layer) of two networks.
    assert len(rows) == 2 * (3 + 6)
    assert all(row["violations"] == "0" for row in rows)
    assert all(0 < float(row["largest_ratio"]) < 1 for row in rows if row["init"] == "he")
    assert "He, 10 layers" in output and "figure.png" in output
    assert Image.open(tmp_path / "figure.png").size[0] > 1000
    again = make("theory_bounds", *arguments)
    assert "He, 10 layers" not in again
    assert lines_of(tmp_path / "rows.csv") == rows


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"inits": ("lecun",)}, "--inits lecun found"), ({"depths": (11,)}, "depth=11 found")],
)
def test_what_does_not_exist_is_refused(wrong, message, tmp_path):
    with pytest.raises(SystemExit, match=message):
        main(EXPERIMENT, theory_bounds.Command("smoke", **wrong, out=tmp_path))
