"""The figure of one setting at a time: configurations, the best of them, what is infeasible."""

import pytest

from nf_resnets.plotting.isolation import isolation_figure
from tests.plotting.sweep_results import drawn, marks

__all__ = ["drawn"]


def configuration(mean, diverged=0, n=2):
    return {"rate": 0.1, "n": n, "mean": mean, "std": None if mean is None else 0.01,
            "values": (), "diverged": diverged, "left_out": 0}  # fmt: skip


DEAD = configuration(None, diverged=2, n=0)


def isolation(field="momentum", values=(0.0, 0.5, 0.9), scheme="fixup", metric="test_accuracy"):
    configurations = ((configuration(0.5), configuration(0.7)), (configuration(0.8, 1), DEAD),
                      (DEAD, DEAD))  # fmt: skip
    return {
        "group": {"scheme": scheme}, "field": field, "metric": metric, "values": values,
        "configurations": configurations,
        "best": (configurations[0][1], configurations[1][0], None),
    }  # fmt: skip


def test_the_best_is_a_line_and_the_infeasible_are_on_the_axis(drawn, tmp_path):
    isolation_figure([isolation(), isolation("peak_lr", (0.125, 0.25, 1.0))],
                     tmp_path / "isolation.png", title="A sweep", subtitle="of two")  # fmt: skip
    momentum, rate = drawn[0].axes
    (line,) = [line for line in momentum.lines if line.get_linestyle() == "-"]
    assert list(line.get_xdata()) == [0.0, 0.5] and list(line.get_ydata()) == [70, 80]
    dots = [tuple(line.get_ydata()) for line in momentum.lines if line.get_marker() == "."]
    assert dots == [(50, 70), (80,), ()]
    # Large where all seeds diverged, with how many configurations; small where some did.
    at = [(mark.get_xdata()[0], mark.get_ydata()[0] < 0.2) for mark in marks(momentum)]
    assert at == [(0.5, True), (0.5, True), (0.9, True)]
    sizes = [mark.get_markersize() for mark in marks(momentum)]
    assert sizes[0] == sizes[2] > 1.5 * sizes[1]
    assert len({mark.get_ydata()[0] for mark in marks(momentum)[:2]}) == 2
    assert [text.get_text().strip() for text in momentum.texts] == ["1", "1", "2"]
    assert rate.get_xscale() == "log" and momentum.get_xscale() == "linear"
    entries = [text.get_text() for text in drawn[0].legends[0].get_texts()]
    assert entries == ["fixup", "one configuration", "some seeds diverged"]


def test_values_that_are_no_numbers_stand_in_their_order(drawn, tmp_path):
    isolation_figure([isolation("schedule", ("constant", "halving", "none"), metric="train_loss")],
                     tmp_path / "isolation.png", title="", subtitle="")  # fmt: skip
    (axes,) = drawn[0].axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["constant", "halving", "none"]
    # Less is better: the bad end is above.
    assert all(mark.get_ydata()[0] > 0.8 for mark in marks(axes))
    with pytest.raises(ValueError, match="isolations is empty"):
        isolation_figure([], tmp_path / "isolation.png", title="", subtitle="")
