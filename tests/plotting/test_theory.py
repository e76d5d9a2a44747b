"""The theorems' figures: which points are drawn, and that they are drawn in colour."""

import pytest
from PIL import Image

from nf_resnets.plotting.theory import Curves, Dots, ExponentMap, drawable, theory_figure


def test_points_are_ordered_and_what_a_logarithm_lacks_is_left_out():
    values = ["0.5", 2.0, "nan", "", 0.0, -1.0, "inf"]
    rows = [{"L": len(values) - at, "g": value} for at, value in enumerate(values)]
    assert drawable(rows, "L", "g") == [(6.0, 2.0), (7.0, 0.5)]


def panels():
    curve = [
        {"title": name, "L": L, "g": L * scale, "b": L / 10}
        for name, scale in (("SkipInit", 1.0), ("Fixup", 0.1))
        for L in (1, 10, 100)
    ]
    grid = [
        {"x": p, "y": q, "value": 2 * min(p, q)}
        for p in (0.0, 0.25, 0.5, 0.75, 1.0)
        for q in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    return [
        Curves("theorem", curve, "L", "g", "L", "norm", dotted="b"),
        ExponentMap("map", grid, "p", "q", marked=[("Fixup", 0.5, 0.5)]),
    ]


def test_the_figure_has_the_curves_and_both_ends_of_the_map(tmp_path):
    file = tmp_path / "figure.png"
    theory_figure(panels(), file, title="t", subtitle="s", solid="measured", dotted="bound")
    image = Image.open(file).convert("RGB")
    colors = {color for _, color in image.getcolors(image.size[0] * image.size[1])}
    assert (0, 114, 178) in colors and (213, 94, 0) in colors  # the two curves
    # Exponents of 0 and 2 are as far from 1: the ends of the map's colours, red and blue.
    assert any(r > 90 and g < 20 and b < 40 for r, g, b in colors)
    assert any(r < 20 and g < 60 and 90 < b < 110 for r, g, b in colors)


def test_dots_are_filled_and_hollow_and_left_out_where_there_is_none(tmp_path):
    def pixels(rows, color):
        file = tmp_path / "figure.png"
        theory_figure([Dots("rates", rows, "f", "h", "rate", "promised")], file, title="",
                      subtitle="")  # fmt: skip
        image = Image.open(file).convert("RGB")
        counts = {color: count for count, color in image.getcolors(image.size[0] * image.size[1])}
        return counts.get(color, 0)

    # The legend has a dot of each title's colour too.
    blue, red = (0, 114, 178), (213, 94, 0)
    rows = [{"title": "Fixup", "f": 1.0, "h": ""}, {"title": "SkipInit", "f": "", "h": 2.0}]
    without = [{"title": "Fixup", "f": "", "h": 3.0}, {"title": "SkipInit", "f": 1.0, "h": ""}]
    assert pixels(rows, blue) > pixels(without, blue) + 20  # a filled dot, not a hollow one
    assert pixels(rows, red) < pixels(without, red) - 20
    assert pixels([rows[0], rows[1] | {"h": ""}], red) < pixels(rows, red)


def test_a_panel_without_rows_is_refused(tmp_path):
    empty = Curves("theorem", [], "L", "g", "L", "norm")
    for wrong in ([], [empty]):
        with pytest.raises(ValueError, match="a panel without rows"):
            theory_figure(wrong, tmp_path / "figure.png", title="", subtitle="")
