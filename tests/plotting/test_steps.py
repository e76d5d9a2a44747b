"""The figure of steps to a target: points, perfect scaling, the knee, the noise scale."""

import dataclasses

import pytest

from nf_resnets.plotting.steps import steps_figure
from nf_resnets.sweep.regimes import regimes
from tests.plotting.sweep_results import drawn, marks

__all__ = ["drawn"]
SIZES = (8, 32, 128, 512)


def target(size, steps, *, scheme="fixup", at_edge=None, noise=None):
    return {
        "group": {"scheme": scheme, "batch_size": size}, "metric": "train_loss", "target": 0.5,
        "rate": 0.1, "steps": steps, "low": steps and 0.9 * steps, "high": steps and 1.1 * steps,
        "reached": 2, "runs": 2, "at_edge": at_edge, "noise_scale": noise,
    }  # fmt: skip


def knee(steps, scheme="fixup"):
    points = [(size, 1 / s, 1 / s, 1 / s) for size, s in zip(SIZES, steps, strict=True)]
    return dataclasses.asdict(regimes(points, group={"scheme": scheme}))


def figure(drawn, tmp_path, targets, knees):
    steps_figure(targets, knees, tmp_path / "steps.png", title="A sweep", subtitle="of rates")
    return drawn[0]


@pytest.mark.parametrize("form", ["bent", "smooth"])
def test_perfect_scaling_the_fit_and_its_knee(drawn, tmp_path, form):
    def steps(size):
        return 100 * (1 + 64 / size if form == "smooth" else max(1, 64 / size))

    made = figure(drawn, tmp_path, [target(size, steps(size)) for size in SIZES],
                  [knee(list(map(steps, SIZES)))])  # fmt: skip
    (axes,) = made.axes
    assert axes.get_xscale() == axes.get_yscale() == "log"
    markers = {line.get_xdata()[0]: line.get_ydata()[0] for line in axes.lines
               if line.get_markersize() == 7}  # fmt: skip
    assert markers == {size: steps(size) for size in SIZES}
    (perfect,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert list(perfect.get_xdata()) == [8, 512]
    assert list(perfect.get_ydata()) == pytest.approx([steps(8), steps(8) * 8 / 512])
    (fitted,) = [line for line in axes.lines if line.get_linestyle() == ":"]
    assert list(fitted.get_ydata()) == pytest.approx(list(map(steps, fitted.get_xdata())), rel=1e-4)
    (arrow,) = [line for line in axes.lines if line.get_marker() == "^"]
    assert arrow.get_xdata()[0] == pytest.approx(64, rel=1e-4)
    assert "training loss ≤ 0.5" in axes.get_title(loc="left")


def test_the_noise_scale_stands_beside_the_knee(drawn, tmp_path):
    steps = [100 * max(1, 64 / size) for size in SIZES]
    targets = [target(size, s, noise=50 + size) for size, s in zip(SIZES, steps, strict=True)]
    made = figure(drawn, tmp_path, targets, [knee(steps)])
    _, noise = made.axes
    (points,) = [line for line in noise.lines if line.get_markersize() == 7]
    assert list(points.get_ydata()) == [58, 82, 178, 562]
    (level,) = [line for line in noise.lines if line.get_linestyle() == ":"]
    assert list(level.get_ydata()) == pytest.approx([64, 64]) and len(noise.collections) == 1


def test_edges_are_hollow_and_what_is_not_reached_is_marked_above(drawn, tmp_path):
    targets = [target(8, 100, at_edge="lowest"), target(32, None),
               target(8, 90, scheme="skipinit")]  # fmt: skip
    made = figure(drawn, tmp_path, targets, [])
    (axes,) = made.axes
    styles = [line.get_fillstyle() for line in axes.lines if line.get_markersize() == 7
              and line.get_marker() != "x"]  # fmt: skip
    assert styles == ["none", "full"]
    assert [line.get_xdata()[0] for line in marks(axes)] == [32]
    assert [label.get_text() for label in axes.get_yticklabels()][-1] == "not reached"
    entries = [text.get_text() for text in made.legends[0].get_texts()]
    assert entries == [
        "fixup", "skipinit", "perfect scaling", "at the grid's edge"
    ]  # fmt: skip
    with pytest.raises(ValueError, match="targets is empty"):
        steps_figure([], [], tmp_path / "steps.png", title="", subtitle="")
