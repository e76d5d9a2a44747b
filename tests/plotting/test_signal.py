"""Signal figures and pages: what is on them, and what is left out."""

import math

import pytest
from matplotlib.figure import Figure
from PIL import Image

from nf_resnets.plotting.looks import LOOKS
from nf_resnets.plotting.page import page_figure
from nf_resnets.plotting.signal import (
    Quantity,
    draw_quantity,
    finish_axes,
    finite,
    signal_figure,
)

ROWS = [
    {"k": k, "title": "SkipInit", "transition": k == 3, "Var": 2.0**k, "form": 2.0**k, "error": 0.1}
    for k in range(1, 6)
]
VAR = Quantity("Var", "Var of the sum", "form", scale="log2", error="error")


def colors_of(file):
    image = Image.open(file).convert("RGB")
    return {color for _, color in image.getcolors(image.size[0] * image.size[1])}


def test_what_cannot_be_drawn_on_a_scale_is_left_out():
    rows = [{"k": k, "y": y} for k, y in enumerate(["", None, 0, -1, "2", math.nan, math.inf], 1)]
    assert finite(rows, "y", "linear") == [(3, 0.0), (4, -1.0), (5, 2.0)]
    assert finite(rows, "y", "log2") == [(5, 2.0)]


def test_dots_are_measured_and_dashes_the_closed_form():
    axes = Figure().add_subplot()
    draw_quantity(axes, ROWS, VAR, LOOKS["Fixup"])
    form, measured, *_ = axes.get_lines()
    assert form.get_linestyle() == "--" and measured.get_linestyle() == "None"
    assert list(form.get_ydata()) == list(measured.get_ydata()) == [2, 4, 8, 16, 32]
    finish_axes(axes, VAR)
    assert axes.get_yscale() == "log" and axes.get_ylabel() == "Var of the sum"


def test_the_figure_has_a_colour_for_each_title(tmp_path):
    other = [{**row, "title": "Fixup", "Var": 1.0} for row in ROWS]
    panels = [("Forward", [*ROWS, *other], VAR), ("Again", ROWS, VAR)]
    signal_figure(panels, tmp_path / "f.png", title="t", subtitle="s", second_form="without")
    assert {(0, 114, 178), (213, 94, 0)} <= colors_of(tmp_path / "f.png")


def test_an_empty_panel_and_an_unknown_scale_are_refused(tmp_path):
    with pytest.raises(ValueError, match="a panel without rows"):
        signal_figure([("a", [], VAR)], tmp_path / "f.png", title="", subtitle="")
    with pytest.raises(ValueError, match="scale='log3' found"):
        finish_axes(Figure().add_subplot(), Quantity("Var", "Var", scale="log3"))


def test_a_page_is_drawn_from_whatever_columns_there_are(tmp_path):
    full = [
        {
            "k": k, "transition": k == 3, "skip": 1.0, "branch": 0.0, "sum": 1.0, "closed_sum": 1.0,
            "share": 0.0, "squared_mean": 0.1, "variance": 0.9, "gradient_norm": 0.1 * k,
            "bound": 0.05, "eta": 1.0, "scalar": 1.0,
        }
        for k in range(1, 6)
    ]  # fmt: skip
    page_figure(full, tmp_path / "full.png", title="t", subtitle="s", notes=["one", "two"])
    page_figure([{"k": 1, "sum": 1.0}], tmp_path / "few.png", title="t", subtitle="s")
    assert len(colors_of(tmp_path / "few.png")) < len(colors_of(tmp_path / "full.png"))
    with pytest.raises(ValueError, match="rows is empty"):
        page_figure([], tmp_path / "none.png", title="", subtitle="")
