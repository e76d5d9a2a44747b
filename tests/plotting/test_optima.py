"""The figure of best rates over the batch size: what is drawn, and that it can be read."""

import dataclasses

import pytest

from nf_resnets.plotting.optima import optima_figure
from nf_resnets.sweep.regimes import regimes
from tests.plotting.sweep_results import drawn, group, marks, rate

__all__ = ["drawn"]


def optimum(size, best, *, scheme="fixup", low=None, high=None, at_edge=None):
    one = group(scheme, size, [rate(best, 0.9, 0.02)], at_edge=at_edge)
    return {**one, "low": low or best, "high": high or best}


def fit(points, scheme="fixup"):
    fitted = regimes(points, group={"scheme": scheme}, metric="test_accuracy")
    return dataclasses.asdict(fitted)


def dashed(axes):
    return [line for line in axes.lines if line.get_linestyle() == "--"]


def points(axes):
    """Where the markers of the optima stand."""
    return {
        (round(line.get_xdata()[0], 6), line.get_ydata()[0]): line.get_markerfacecolor()
        for line in axes.lines
        if line.get_markersize() == 7
    }


def test_the_best_value_the_best_rate_and_the_rate_over_the_batch_size(drawn, tmp_path):
    optima = [optimum(8, 0.25, low=0.125, high=0.5), optimum(32, 1.0)]
    optima_figure(optima, [], tmp_path / "optima.png", title="", subtitle="")
    value, best, ratio = drawn[0].axes
    assert list(points(value)) == [(8, 90.0), (32, 90.0)]
    assert list(points(best)) == [(8, 0.25), (32, 1.0)]
    assert list(points(ratio)) == [(8, 0.25 / 8), (32, 1 / 32)]
    bars = [
        [tuple(line.get_ydata()) for line in axes.lines if list(line.get_xdata()) == [8, 8]]
        for axes in drawn[0].axes
    ]
    assert bars[0][0] == pytest.approx((88, 92))
    assert bars[1][0] == (0.125, 0.5) and bars[2][0] == (0.125 / 8, 0.5 / 8)
    assert best.get_xscale() == best.get_yscale() == "log" and value.get_yscale() == "linear"
    assert [label.get_text() for label in best.get_xticklabels()] == ["8", "32"]
    assert [label.get_text() for label in best.get_yticklabels()] == [
        f"$2^{{{k}}}$" for k in range(-3, 1)
    ]
    assert dashed(best) == []


@pytest.mark.parametrize(
    ("rates", "heights"),
    [
        # The parts meet at 128 on the way from 2^-4 at 8 to 1 at 512.
        ([2**-4, 2**-2, 1, 1], [2**-4.25, 1, 1]),
        ([2**-4, 2**-2, 1, 4], [2**-4.25, 2**2.25]),
        ([1, 1, 1, 1], [1, 1]),
    ],
)  # fmt: skip
def test_the_fit_is_drawn_with_the_parts_that_show(drawn, tmp_path, rates, heights):
    sizes = [8, 32, 128, 512]
    optima = [optimum(size, best) for size, best in zip(sizes, rates, strict=True)]
    fits = [fit([(s, r, r, r) for s, r in zip(sizes, rates, strict=True)])]
    optima_figure(optima, fits, tmp_path / "optima.png", title="", subtitle="")
    value, best, ratio = drawn[0].axes
    (line,) = dashed(best)
    assert list(line.get_ydata()) == pytest.approx(heights)
    (over,) = dashed(ratio)
    assert list(over.get_ydata()) == pytest.approx(line.get_ydata() / line.get_xdata())
    assert dashed(value) == []
    assert "fitted" in drawn[0].legends[0].get_texts()[-1].get_text()


def test_the_form_that_predicts_better_is_the_one_drawn(drawn, tmp_path):
    sizes = [8, 32, 128, 512]
    rates = [2 / (1 + 64 / size) for size in sizes]
    # Error bars of half an octave leave both forms; of the smooth rates the smooth one is nearer.
    fits = [fit([(s, r, r, r) for s, r in zip(sizes, rates, strict=True)])]
    optima = [optimum(size, rate) for size, rate in zip(sizes, rates, strict=True)]
    optima_figure(optima, fits, tmp_path / "optima.png", title="", subtitle="")
    (line,) = [line for line in drawn[0].axes[1].lines if line.get_linestyle() == ":"]
    x = line.get_xdata()
    assert list(line.get_ydata()) == pytest.approx([2 / (1 + 64 / size) for size in x], rel=1e-4)
    assert dashed(drawn[0].axes[1]) == []
    assert "noise" in drawn[0].legends[0].get_texts()[-1].get_text()


def test_the_edge_is_hollow_with_an_arrow_and_the_dead_a_mark(drawn, tmp_path):
    optima = [
        optimum(8, 0.25, at_edge="lowest"), optimum(32, 0.5), optimum(128, 1.0, at_edge="highest"),
        optimum(512, 1.0, at_edge="only"), group("fixup", 2048, [rate(1.0, None, diverged=3)]),
    ]  # fmt: skip
    optima_figure(optima, [], tmp_path / "optima.png", title="", subtitle="")
    best = drawn[0].axes[1]
    hollow = {x: face == "white" for (x, _), face in points(best).items()}
    assert hollow == {8: True, 32: False, 128: True, 512: True}
    # An arrow to where the true optimum may lie; if only one rate was tried, that is anywhere.
    arrows = {text.xy[0]: text.xyann[1] for text in best.texts}
    assert arrows == {8: -17, 128: 17}
    assert [line.get_xdata()[0] for line in marks(best)] == [2048]
    entries = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert entries == ["fixup", "at the grid's edge"]


def test_a_sweep_in_which_all_diverged_is_drawn(drawn, tmp_path):
    dead = [group("fixup", size, [rate(1.0, None, diverged=3)]) for size in (8, 16)]
    optima_figure(dead, [], tmp_path / "optima.svg", title="", subtitle="")
    for axes in drawn[0].axes:
        assert len(marks(axes)) == 2
        assert [label.get_text() for label in axes.get_yticklabels()] == ["diverged"]


def test_what_cannot_be_drawn_is_refused(tmp_path):
    with pytest.raises(ValueError, match="optima is empty"):
        optima_figure([], [], tmp_path / "optima.png", title="", subtitle="")
    with pytest.raises(ValueError, match="metric='speed' found; expected one of"):
        optima_figure([group("fixup", 8, [rate(1.0, 0.5)], "speed")], [], tmp_path / "o.png",
                      title="", subtitle="")  # fmt: skip
