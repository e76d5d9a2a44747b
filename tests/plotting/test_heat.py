"""The heat map of rate by batch size: its cells, their colours and frames."""

import matplotlib
import numpy as np
import pytest
from matplotlib.patches import Rectangle

from nf_resnets.plotting.heat import heat_figure
from tests.plotting.sweep_results import drawn, group, rate

__all__ = ["drawn"]


def cells(axes):
    """The filled cells by column and row, and the frames by column and row."""
    filled, frames = {}, {}
    for patch in axes.patches:
        if isinstance(patch, Rectangle):
            x, y = patch.get_center()
            (filled if patch.get_fill() else frames)[round(x), round(y)] = patch
    return filled, frames


def brightness(patch):
    return sum(w * c for w, c in zip((0.3, 0.59, 0.11), patch.get_facecolor()[:3], strict=True))


def test_a_cell_is_its_mean_and_brighter_is_better(drawn, tmp_path):
    optima = [
        group("fixup", 8, [rate(0.5, 0.10), rate(1.0, 0.80), rate(2.0, 0.90), rate(4.0, 0.95)]),
        group("fixup", 32, [rate(0.5, 0.5), rate(4.0, None, diverged=3)]),
    ]
    heat_figure(optima, tmp_path / "heat.png", title="", subtitle="")
    axes = drawn[0].axes[0]
    filled, _ = cells(axes)
    assert set(filled) == {(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 3)}
    light = [brightness(filled[0, row]) for row in range(4)]
    assert light == sorted(light)
    # The error halves with the last two steps: both are as large for the eye.
    scale = matplotlib.colormaps["viridis"](np.linspace(0, 1, 256))
    at = [int(np.abs(scale - filled[0, row].get_facecolor()).sum(1).argmin()) for row in (1, 2, 3)]
    # Rounded to one of 256 colours each.
    assert at[2] - at[1] == pytest.approx(at[1] - at[0], abs=2) and at[1] - at[0] > 20
    texts = {(round(t.get_position()[0]), round(t.get_position()[1])): t.get_text()
             for t in axes.texts}  # fmt: skip
    assert texts == {(0, 0): "10.0", (0, 1): "80.0", (0, 2): "90.0", (0, 3): "95.0",
                     (1, 0): "50.0", (1, 3): r"$\times$"}  # fmt: skip
    assert filled[1, 3].get_hatch() and not filled[1, 0].get_hatch()
    assert [t.get_text() for t in axes.get_yticklabels()] == [
        "$2^{-1}$", "$2^{0}$", "$2^{1}$", "$2^{2}$"
    ]  # fmt: skip


def test_of_a_loss_the_lowest_is_brightest(drawn, tmp_path):
    rates = [rate(0.5, 3.0), rate(1.0, 0.3), rate(2.0, 0.03)]
    heat_figure([group("fixup", 8, rates, "train_loss")], tmp_path / "heat.png", title="",
                subtitle="", metric="train_loss")  # fmt: skip
    filled, frames = cells(drawn[0].axes[0])
    light = [brightness(filled[0, row]) for row in range(3)]
    assert light == sorted(light)
    assert set(frames) == {(0, 2)}


def test_the_best_is_framed_and_the_edge_dashed(drawn, tmp_path):
    rates = [rate(0.5, 0.7), rate(1.0, 0.9), rate(2.0, 0.89), rate(4.0, 0.6, diverged=2)]
    inner = {**group("fixup", 8, rates), "as_good": (1.0, 2.0)}
    heat_figure([inner, group("fixup", 32, rates[:2], at_edge="highest")], tmp_path / "heat.png",
                title="", subtitle="")  # fmt: skip
    _, frames = cells(drawn[0].axes[0])
    assert set(frames) == {(0, 1), (0, 2), (1, 1)}
    assert frames[0, 1].get_linewidth() > 2 * frames[0, 2].get_linewidth()
    assert frames[0, 1].get_linestyle() in ("-", "solid")
    assert frames[1, 1].get_linestyle() not in ("-", "solid")
    # Two of three seeds diverged: the mean of one, and a mark that says so.
    assert [t.get_text() for t in drawn[0].axes[0].texts].count("2$\\times$") == 1


def test_a_sweep_in_which_all_diverged_has_no_colour_bar(drawn, tmp_path):
    dead = [group("fixup", 8, [rate(1.0, None, diverged=3)])]
    heat_figure(dead, tmp_path / "heat.png", title="", subtitle="")
    assert len(drawn[0].axes) == 1


def test_what_cannot_be_drawn_is_refused(tmp_path):
    with pytest.raises(ValueError, match="optima has none of metric='test_accuracy'"):
        heat_figure([], tmp_path / "heat.png", title="", subtitle="")
    with pytest.raises(ValueError, match="metric='speed' found; expected one of"):
        heat_figure([], tmp_path / "heat.png", title="", subtitle="", metric="speed")
