"""The depth figure: what is on it, and that drawing knows nothing of pyplot's global state."""

import math
import sys

import pytest
from PIL import Image

from nf_resnets.plotting import depth_figure
from nf_resnets.plotting.depth import _points


def row(title, depth, accuracy, status="finished"):
    return {"title": title, "depth": depth, "test_accuracy": accuracy, "status": status}


def test_seeds_become_mean_and_range_and_diverged_runs_stand_at_chance():
    gone = row("a", 10, "nan", "diverged")
    rows = [row("a", 10, 0.5), row("a", 10, 0.7), gone, row("a", 100, "nan", "diverged")]
    (ten, hundred) = _points(rows, level=10)
    assert ten == (10, pytest.approx(60), pytest.approx(50), pytest.approx(70), True)
    assert hundred[:2] == (100, 10) and hundred[4]
    assert math.isnan(hundred[2]) and math.isnan(hundred[3])


def test_the_figure_is_drawn_in_colour(tmp_path):
    file = tmp_path / "figure.png"
    rows = [
        row("Fixup", 10, 0.9),
        row("Fixup", 1000, 0.8),
        row("SkipInit", 1000, "nan", "diverged"),
    ]
    depth_figure(rows, file, title="t", subtitle="s", chance=0.1)
    image = Image.open(file).convert("RGB")
    colors = {color for _, color in image.getcolors(image.size[0] * image.size[1])}
    assert (0, 114, 178) in colors  # the first curve
    assert (213, 94, 0) in colors  # the cross of the second, which has no finished run


def test_no_rows_are_refused(tmp_path):
    with pytest.raises(ValueError, match="rows is empty"):
        depth_figure([], tmp_path / "figure.png", title="", subtitle="", chance=0.1)


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
