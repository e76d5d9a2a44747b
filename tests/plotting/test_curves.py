"""The curves figure: what is drawn, and what is refused."""

import pytest
from PIL import Image

from nf_resnets.plotting.curves import Curve, Panel, curves_figure, moving_average


def colors_of(file):
    image = Image.open(file).convert("RGB")
    return {color for _, color in image.getcolors(image.size[0] * image.size[1])}


def test_a_title_has_one_colour_in_all_panels(tmp_path):
    file = tmp_path / "figure.png"
    a, b = (
        Curve("Fixup", [0, 1], [1, 2]),
        Curve("SkipInit", [0, 1, 2], [2, 1, 1], diverged=True, marked=True),
    )
    panels = [
        Panel("step", "accuracy (%)", [a, b], y_limits=(0, 3), level=(0.5, "chance")),
        Panel("step", "norm", [b]),
    ]
    curves_figure(panels, file, title="t", subtitle="s")
    assert {(0, 114, 178), (213, 94, 0)} <= colors_of(file)
    curves_figure(panels[1:], file, title="t", subtitle="s")
    assert (0, 114, 178) not in colors_of(file)


def test_the_moving_average_looks_back_only():
    assert moving_average([1.0, 2.0, 3.0, 10.0], 3) == [1.0, 1.5, 2.0, 5.0]
    assert moving_average([5.0], 10) == [5.0]
    with pytest.raises(ValueError, match="window=0 found"):
        moving_average([1.0], 0)


def test_empty_panels_and_uneven_curves_are_refused(tmp_path):
    with pytest.raises(ValueError, match="without curves"):
        curves_figure([], tmp_path / "figure.png", title="", subtitle="")
    with pytest.raises(ValueError, match="without curves"):
        curves_figure([Panel("x", "y", [])], tmp_path / "figure.png", title="", subtitle="")
    for x, y in (([0], [1, 2]), ([], [])):
        with pytest.raises(ValueError, match="expected as many of both"):
            Curve("a", x, y)


def test_a_run_that_diverged_ends_in_a_cross_of_its_colour(tmp_path):
    def pixels(diverged):
        file = tmp_path / f"{diverged}.png"
        # Another curve diverges in both figures, so that their legends and axes are the same.
        curves = [Curve("a", [0, 2], [0, 2]), Curve("SkipInit", [0, 1], [2, 1], diverged=diverged)]
        curves.append(Curve("c", [0, 2], [1, 0], diverged=True))
        curves_figure([Panel("x", "y", curves)], file, title="", subtitle="")
        image = Image.open(file).convert("RGB")
        return {color: count for count, color in image.getcolors(image.size[0] * image.size[1])}[
            (213, 94, 0)
        ]

    assert pixels(True) > pixels(False) + 20  # a cross of 9 points at 160 dots an inch
