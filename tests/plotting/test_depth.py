"""The depth figure: what is on it, and that drawing knows nothing of pyplot's global state."""

import math
import sys

import numpy as np
import pytest
from PIL import Image

from nf_resnets.plotting import depth_figure
from nf_resnets.plotting.depth import _points
from tests.plotting.sweep_results import drawn, marks

__all__ = ["drawn"]


def row(title, depth, accuracy, status="finished"):
    return {"title": title, "depth": depth, "test_accuracy": accuracy, "status": status}


def test_seeds_become_mean_and_range_and_diverged_runs_are_no_point():
    gone = row("a", 10, "nan", "diverged")
    rows = [row("a", 10, 0.5), row("a", 10, 0.7), gone, row("a", 100, "nan", "diverged")]
    (ten, hundred) = _points(rows)
    assert ten == (10, *map(pytest.approx, (60, 50, 70)), 2, 1)
    assert all(map(math.isnan, hundred[1:4])) and hundred[4:] == (0, 1)


def test_diverged_runs_stand_side_by_side_in_their_band_and_leave_a_gap(drawn, tmp_path):
    rows = [
        row(
            title, depth, "nan" if depth == 100 else 0.9, "diverged" if depth == 100 else "finished"
        )
        for title in ("Fixup", "SkipInit", "LSUV")
        for depth in (10, 100, 1000)
    ]
    depth_figure(rows, tmp_path / "f.png", title="t", subtitle="s", chance=0.1)
    (figure,) = drawn
    (axes,) = figure.axes
    curves = [line for line in axes.lines if len(line.get_xdata()) == 3]
    # Curves that coincide lie beside each other, around their depth.
    at_ten = sorted(line.get_xdata()[0] for line in curves)
    assert at_ten[1] == 10 and 9 < at_ten[0] < 9.7 and 10.3 < at_ten[2] < 11
    assert [list(map(math.isnan, line.get_ydata())) for line in curves] == [
        [False, True, False]
    ] * 3
    (band,) = axes.patches
    to_axes = axes.transData + axes.transAxes.inverted()
    assert to_axes.transform((10, 0))[1] >= band.get_height() - 1e-9
    places = [line.get_transform().transform(line.get_xydata())[0] for line in marks(axes)]
    assert {line.get_color() for line in marks(axes)} == {line.get_color() for line in curves}
    points = np.diff(sorted(x for x, _ in places)) * 72 / figure.dpi
    assert points.min() > 5.5  # the size of a mark
    heights = [axes.transAxes.inverted().transform(place)[1] for place in places]
    assert all(0 < height < band.get_height() for height in heights)


def test_the_figure_is_drawn_in_colour_and_the_same_again(tmp_path):
    file = tmp_path / "figure.png"
    rows = [row("Fixup", 10, 0.9), row("Fixup", 1000, 0.8), row("SkipInit", 10, 0.7)]
    depth_figure(rows, file, title="t", subtitle="s", chance=0.1)
    image = Image.open(file).convert("RGB")
    colors = {color for _, color in image.getcolors(image.size[0] * image.size[1])}
    assert {(0, 114, 178), (213, 94, 0)} <= colors
    first = file.with_suffix(".svg").read_bytes()
    depth_figure(rows, file, title="t", subtitle="s", chance=0.1)
    assert file.with_suffix(".svg").read_bytes() == first and b"<dc:date>" not in first


def test_no_rows_are_refused(tmp_path):
    with pytest.raises(ValueError, match="rows is empty"):
        depth_figure([], tmp_path / "figure.png", title="", subtitle="", chance=0.1)
    row = {"title": "Fixup", "depth": 0, "status": "finished", "test_accuracy": 0.5}
    with pytest.raises(ValueError, match="depth=0 found in a row; expected 1 or more"):
        depth_figure([row], tmp_path / "figure.png", title="", subtitle="", chance=0.1)


def test_drawing_does_not_load_jax_or_pyplot():
    import subprocess

    code = (
        "import sys; sys.modules['jax'] = None; import importlib.util as u, types;"
        "p = types.ModuleType('nf_resnets'); p.__path__ = ['nf_resnets'];"
        "sys.modules['nf_resnets'] = p;"
        "from nf_resnets.plotting import depth_figure;"
        "depth_figure([{'title':'a','depth':10,'test_accuracy':.5,'status':'finished'}],"
        "'/dev/null', title='', subtitle='', chance=.1) if False else None;"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
