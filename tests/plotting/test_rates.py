"""The figure of a sweep over the learning rate: what is drawn, and that it can be read."""

import numpy as np
import pytest

from nf_resnets.plotting.rates import rates_figure, series_title
from tests.plotting.sweep_results import drawn, group, marks, rate, sweep

__all__ = ["drawn"]


def test_diverged_runs_have_a_band_that_no_curve_enters(drawn, tmp_path):
    rates_figure(sweep([8, 32, 128], ["fixup"]), tmp_path / "rates.png", title="", subtitle="")
    accuracy, loss = drawn[0].axes
    for axes, down in ((accuracy, True), (loss, False)):
        places = {}
        for line in marks(axes):
            places.setdefault(line.get_xdata()[0], []).append(line.get_ydata()[0])
        assert set(places) == {2.0**-5, 2.0**-4}
        for heights in places.values():
            assert np.diff(sorted(heights)).min() > 0.04  # marks of 5.5 points in 2 inches
            assert all((height < 0.5) == down for height in heights)
        (band,) = axes.patches
        low, high = band.get_y(), band.get_y() + band.get_height()
        to_axes = axes.transData + axes.transAxes.inverted()
        points = [
            to_axes.transform(point)[1]
            for line in axes.lines
            if len(line.get_xdata()) > 2
            for point in line.get_xydata()
            if np.isfinite(point).all()
        ]
        points += [
            to_axes.transform(vertex)[1]
            for bars in axes.collections
            for path in bars.get_paths()
            for vertex in path.vertices
        ]
        assert low >= 0 and high <= 1
        assert min(points) >= high - 1e-9 if down else max(points) <= low + 1e-9
        assert [label.get_text() for label in axes.get_yticklabels()][-1] == "diverged"
    # Of some seeds a mark is small.
    sizes = {line.get_xdata()[0]: line.get_markersize() for line in marks(accuracy)}
    assert sizes[2.0**-4] > 1.5 * sizes[2.0**-5]


def test_a_line_has_a_gap_where_all_seeds_diverged(drawn, tmp_path):
    rates = [rate(0.25, 0.5), rate(0.5, None, diverged=3), rate(1.0, 0.6)]
    rates_figure([group("fixup", 8, rates)], tmp_path / "rates.svg", title="", subtitle="")
    (curve,) = [line for line in drawn[0].axes[0].lines if len(line.get_xdata()) == 3]
    assert list(np.isnan(curve.get_ydata())) == [False, True, False]


def test_the_best_is_large_and_hollow_at_the_edge(drawn, tmp_path):
    rates = [rate(0.25, 0.5), rate(0.5, 0.7), rate(1.0, 0.6)]
    for edge in (None, "highest"):
        rates_figure([group("fixup", 8, rates, at_edge=edge)], tmp_path / "rates.svg", title="",
                     subtitle="")  # fmt: skip
        (best,) = [line for line in drawn[-1].axes[0].lines if line.get_markersize() == 9]
        assert list(best.get_xdata()) == [0.5] and list(best.get_ydata()) == [70.0]
        assert (best.get_fillstyle() == "none") == (edge == "highest")
        entries = [text.get_text() for text in drawn[-1].legends[0].get_texts()]
        assert entries == ["B = 8", "best" if edge is None else "best, at the grid's edge"]


def test_labels_are_powers_of_two_and_chance_is_drawn_for_accuracy_only(drawn, tmp_path):
    rates_figure(sweep([8], ["fixup"]), tmp_path / "rates.png", title="", subtitle="", chance=0.1)
    accuracy, loss = drawn[0].axes
    labels = [label.get_text() for label in accuracy.get_xticklabels()]
    assert labels == [f"$2^{{{k}}}$" for k in range(-8, -3)]
    wide = [group("fixup", 8, [rate(2.0**k, 0.5) for k in range(-13, 4)])]
    rates_figure(wide, tmp_path / "rates.png", title="", subtitle="")
    labels = [label.get_text() for label in drawn[1].axes[0].get_xticklabels()]
    assert labels == [f"$2^{{{k}}}$" for k in range(-12, 4, 3)]
    flat = [
        [line for line in axes.lines if set(line.get_ydata()) == {10.0}] for axes in drawn[0].axes
    ]
    assert [len(lines) for lines in flat] == [1, 0]
    assert (accuracy.get_yscale(), loss.get_yscale()) == ("linear", "log")


def test_a_sweep_in_which_all_diverged_and_one_of_one_seed_are_drawn(drawn, tmp_path):
    dead = [group("fixup", 8, [rate(1.0, None, diverged=3), rate(2.0, None, diverged=3)])]
    rates_figure(dead, tmp_path / "rates.png", title="", subtitle="")
    assert len(marks(drawn[0].axes[0])) == 2
    # Numbers on an axis along which nothing lies would mean nothing.
    assert [label.get_text() for label in drawn[0].axes[0].get_yticklabels()] == ["diverged"]
    single = [group("fixup", 8, [rate(1.0, 0.5, std=None), rate(2.0, 0.6, std=None)])]
    rates_figure(single, tmp_path / "rates.png", title="", subtitle="")
    assert len(drawn[1].axes[0].collections) == 0


def test_schemes_are_called_by_their_names():
    names = {"skipinit": "SkipInit"}
    assert series_title({"scheme": "skipinit", "batch_size": 8}, "batch_size", names) == "SkipInit"
    assert series_title({"batch_size": 8}, "batch_size", names) == "all runs"


def test_what_cannot_be_drawn_is_refused(tmp_path):
    with pytest.raises(ValueError, match="optima is empty"):
        rates_figure([], tmp_path / "rates.png", title="", subtitle="")
    with pytest.raises(ValueError, match="metric='speed' found; expected one of test_accuracy"):
        rates_figure([group("fixup", 8, [rate(1.0, 0.5)], "speed")], tmp_path / "rates.png",
                     title="", subtitle="")  # fmt: skip


def test_a_loss_far_above_the_others_lies_on_the_edge(drawn, tmp_path):
    rates = [rate(0.125, 0.6), rate(0.25, 0.5), rate(0.5, 1e6)]
    rates_figure([group("fixup", 8, rates, "train_loss")], tmp_path / "rates.png", title="",
                 subtitle="")  # fmt: skip
    (axes,) = drawn[0].axes
    assert axes.get_ylim()[1] == pytest.approx(6.0)
    assert max(axes.lines[0].get_ydata()) == pytest.approx(6.0)
