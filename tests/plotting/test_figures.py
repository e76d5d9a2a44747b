"""Figures of rows: what is drawn, and where runs that diverged are marked."""

import math

import numpy as np
import pytest
from matplotlib.figure import Figure

from nf_resnets.plotting import Curve, Panel, curves_figure, depth_figure, rates_figure
from nf_resnets.plotting.curves import curves_of, stage_lines
from nf_resnets.plotting.report import SweepResults
from nf_resnets.plotting.style import LOOKS
from nf_resnets.plotting.sweep import sweep_figure


@pytest.fixture
def drawn(monkeypatch):
    """The figures that would have been saved."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, file, **_: (
        figures.append(figure), open(file, "w").close()
    ))  # fmt: skip
    return figures


def lines(axes, **properties):
    """The lines of axes that have some properties."""
    return [
        line
        for line in axes.lines
        if all(getattr(line, f"get_{name}")() == value for name, value in properties.items())
    ]


def marks(axes):
    """The marks of runs that diverged."""
    return lines(axes, zorder=6)


@pytest.mark.parametrize("better", [True, False])
def test_a_run_that_diverged_is_marked_in_a_band_at_the_bad_end(drawn, tmp_path, better):
    curves = [Curve("Fixup", [0, 2], [0, 2]), Curve("SkipInit", (0, 1), (2, 1), diverged=True)]
    panel = Panel("x", "y", curves, more_is_better=better, level=(0.5, "chance"))
    curves_figure([panel], tmp_path / "f.svg", title="t", subtitle="s")
    (axes,) = drawn[0].axes
    (mark,) = marks(axes)
    assert mark.get_xdata()[0] == 1 and mark.get_color() == LOOKS["SkipInit"][0]
    (band,) = axes.patches
    low, high = band.get_y(), band.get_y() + band.get_height()
    assert low < mark.get_ydata()[0] < high and (low < 0.5) == better
    # No curve enters the band.
    to_axes = axes.transData + axes.transAxes.inverted()
    heights = [to_axes.transform(xy)[1] for y in (0, 2) for xy in [(0, y)]]
    assert min(heights) >= high if better else max(heights) <= low
    assert [text.get_text() for text in axes.get_yticklabels()][-1] == "diverged"
    legend = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert legend == ["Fixup", "SkipInit", "chance"]  # from the highest end down


@pytest.mark.filterwarnings("error")
def test_a_panel_of_runs_that_all_diverged_has_no_logarithmic_axis(drawn, tmp_path):
    panel = Panel("batch", "rate", [Curve("Fixup", (), (), lost=(8, 32))], x_base=2, y_base=2)
    empty = Panel("batch", "loss", [Curve("Fixup", (), (), diverged=True)], x_base=2, ticks=(8, 32))
    curves_figure([panel, empty], tmp_path / "figure.png", title="rates", subtitle="")
    assert [len(marks(axes)) for axes in drawn[0].axes] == [2, 0]


def test_the_depth_figure_has_means_and_ranges_and_a_gap(drawn, tmp_path):
    rows = [
        {"title": "Fixup", "depth": depth, "test_accuracy": value, "status": status}
        for depth, value, status in (
            (10, 0.5, "finished"), (10, 0.7, "finished"), (10, "nan", "diverged"),
            (34, "nan", "diverged"), (100, 0.9, "finished"),
        )
    ]  # fmt: skip
    depth_figure(rows, tmp_path / "f.svg", title="t", subtitle="s", chance=0.1)
    (axes,) = drawn[0].axes
    (curve,) = lines(axes, zorder=3)
    np.testing.assert_allclose(curve.get_ydata(), [60, math.nan, 90])
    assert axes.collections[0].get_segments()[0].tolist() == [[10, 50], [10, 70]]
    assert [mark.get_xdata()[0] for mark in marks(axes)] == [10, 34]


def test_the_same_figure_gives_the_same_file(tmp_path):
    panel = Panel("step", "loss", [Curve("Fixup", (1, 2), (2.0, 1.0))], y_base=10)
    for name in ("a.png", "b.png"):
        curves_figure([panel, panel], tmp_path / name, title="t", subtitle="s")
    first, second = (tmp_path / name for name in ("a.svg", "b.svg"))
    assert first.read_bytes() == second.read_bytes() and b"<dc:date>" not in first.read_bytes()


def rate(rate, mean, diverged=0):
    n, std = (0, None) if mean is None else (3 - diverged, 0.01)
    return {"rate": rate, "n": n, "mean": mean, "std": std, "diverged": diverged}


RATES = [rate(0.25, 0.5), rate(0.5, None, diverged=3), rate(1.0, 0.7, diverged=1)]


def optimum(rates, at_edge=None, **group):
    """Of which the best rate is the whole range of rates as good."""
    best = rates[-1]
    return {
        "group": group, "metric": "test_accuracy", "rates": rates, "best": best["rate"],
        "mean": best["mean"], "std": best["std"], "low": best["rate"], "high": best["rate"],
        "at_edge": at_edge, "passed_over": (),
    }  # fmt: skip


def test_rates_of_one_batch_size_share_an_axis(drawn, tmp_path):
    both = [
        optimum(RATES, "highest", scheme="fixup", batch_size=8),
        optimum(RATES[:1], scheme="skipinit", batch_size=8),
    ]
    rates_figure(both, tmp_path / "f.svg", title="t", subtitle="s", chance=0.1)
    (axes,) = drawn[0].axes
    (curve,) = [line for line in lines(axes, zorder=3) if len(line.get_xdata()) == 3]
    np.testing.assert_allclose(curve.get_ydata(), [50, math.nan, 70])
    best = {line.get_xdata()[0]: line.get_markerfacecolor() for line in lines(axes, markersize=8)}
    assert best[1.0] == "white" and best[0.25] != "white"
    assert [mark.get_xdata()[0] for mark in marks(axes)] == [0.5, 1.0]


@pytest.mark.parametrize(
    ("groups", "label"),
    [
        ([{"batch_size": size, "model": "wrn-10-1"} for size in (8, 32)], "batch size"),
        ([{"batch_size": 8, "model": f"wrn-{depth}-1"} for depth in (10, 34)], "depth"),
        ([{"batch_size": 8, "model": f"wrn-10-{width}"} for width in (1, 2)], "width"),
        ([{"batch_size": 8, "model": "wrn-10-1"}], "learning rate"),
    ],
)
def test_the_axis_of_a_sweep_s_figure_is_what_varies(drawn, tmp_path, groups, label):
    optima = [
        optimum(RATES[:1], scheme=scheme, **each)
        for scheme in ("fixup", "skipinit")
        for each in groups
    ]
    fit = {"group": {"scheme": "fixup", "model": "wrn-10-1"}, "metric": "test_accuracy",
           "slope": 1 / 32, "largest": 0.5}  # fmt: skip
    sweep = SweepResults("t", [], optima, [fit] * (label == "batch size"))
    sweep_figure(sweep, tmp_path / "f.png")
    axes = drawn[0].axes[-1]
    assert axes.get_xlabel() == label
    if label == "batch size":
        (fitted,) = lines(axes, marker="")
        sizes, rates = map(np.asarray, fitted.get_data())
        np.testing.assert_allclose(rates, np.minimum(sizes / 32, 0.5))


def test_dots_are_measured_and_dashes_the_closed_form(drawn, tmp_path):
    rows = [
        {"k": k, "title": "SkipInit", "transition": k == 3, "Var": var, "form": 2.0**k, "none": ""}
        for k, var in enumerate([2.0, "", 0.0, 16.0], 1)
    ]
    curves = curves_of(rows[::-1], "k", "Var", "dots") + curves_of(rows, "k", "form", "--")
    assert curves_of(rows, "k", "none") == []
    panel = Panel("block", "Var", curves, y_base=2, lines=stage_lines(rows))
    curves_figure([panel], tmp_path / "f.svg", title="t", subtitle="s")
    (axes,) = drawn[0].axes
    (form,), (dots,) = lines(axes, marker="", zorder=2), lines(axes, marker="s")
    assert list(form.get_ydata()) == [2, 4, 8, 16] and dots.get_linestyle() == "None"
    np.testing.assert_allclose(dots.get_ydata(), [2, math.nan, math.nan, 16])
    assert axes.get_yscale() == "log" and 2.5 in [line.get_xdata()[0] for line in axes.lines]
