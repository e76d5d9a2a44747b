"""The curves figure: what is drawn, and what is refused."""

import pytest
from PIL import Image

from nf_resnets.plotting.curves import Curve, Panel, curves_figure, moving_average
from nf_resnets.plotting.looks import LOOKS
from tests.plotting.sweep_results import drawn, marks

__all__ = ["drawn"]


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


def test_a_run_that_diverged_is_marked_in_a_band_at_the_bad_end(drawn, tmp_path):
    curves = [Curve("Fixup", [0, 2], [0, 2]), Curve("SkipInit", [0, 1], [2, 1], diverged=True)]
    for better in (True, False):
        panel = Panel("x", "y", curves, more_is_better=better)
        curves_figure([panel], tmp_path / f"{better}.svg", title="", subtitle="")
        axes = drawn[-1].axes[0]
        (mark,) = marks(axes)
        assert mark.get_xdata()[0] == 1 and mark.get_color() == LOOKS["SkipInit"].color
        assert (mark.get_ydata()[0] < 0.2) == better and (mark.get_ydata()[0] > 0.8) != better
