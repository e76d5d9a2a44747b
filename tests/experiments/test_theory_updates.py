"""The update sizes as a user measures them."""

import pytest
from PIL import Image

from experiments import theory_updates
from tests.experiments.as_a_user import lines_of, make


@pytest.mark.slow
def test_all_four_parts_are_measured_and_drawn(tmp_path):
    output = make("theory_updates", "--scale", "smoke", "--out", tmp_path)
    rows = lines_of(tmp_path / "rows.csv")
    settings = theory_updates.SCALES["smoke"]
    counts = {
        "depth": len(settings.depths) * len(settings.variants),
        "rate": len(settings.log2_rates) * len(settings.rate_variants),
        "trace": 3 * len(settings.trace_branches),
        "map": (settings.map_steps + 1) ** 2,
    }
    for part, count in counts.items():
        assert sum(row["part"] == part for row in rows) == count, part
    assert "Fixup without rule 2" in output
    assert Image.open(tmp_path / "figure.png").size[0] > 1000
    # Small rates give the first order's size: a per cent for the second order at 2**-12.
    found = {(row["part"], row["title"], row["x"]): float(row["value"]) for row in rows}
    first = found["depth", "Fixup", "3"]
    assert found["rate", "Fixup", str(2.0**-12)] == pytest.approx(first, rel=0.02)
    # Theorem 4 at (p_1, p_2) = (1/2, 1/2), where both terms are alike.
    (corner,) = [r for r in rows if r["part"] == "map" and (r["x"], r["y"]) == ("0.5", "0.5")]
    assert float(corner["value"]) == pytest.approx(1, abs=1e-4)


def test_the_slope_is_that_of_the_last_two_points():
    rows = [{"x": str(x), "value": str(y)} for x, y in ((4, 2.0), (1, 7.0), (16, 8.0))]
    assert theory_updates.slope(rows) == pytest.approx(1)
