"""Plain optima to draw, and the figures that were saved."""

import pytest
from matplotlib.figure import Figure


@pytest.fixture
def drawn(monkeypatch):
    """The figures that would have been saved, to be looked into."""
    figures = []

    def savefig(figure, *args, **kwargs):
        if figure not in figures:  # an SVG is saved beside a PNG
            figures.append(figure)

    monkeypatch.setattr(Figure, "savefig", savefig)
    # Layouts are made as figures are drawn, which these are later.
    monkeypatch.setattr("nf_resnets.plotting.style.freeze", lambda figure: None)
    return figures


def rate(rate, mean, std=0.01, diverged=0):
    n = 0 if mean is None else 3 - diverged
    return {"rate": rate, "n": n, "mean": mean, "std": None if mean is None else std,
            "diverged": diverged}  # fmt: skip


def group(scheme, size, rates, metric="test_accuracy", at_edge=None):
    """An optimum of rates, of which the best is the whole range of rates as good."""
    alive = [one for one in rates if one["mean"] is not None and not one["diverged"]]
    pick = max if metric.endswith("accuracy") else min
    best = pick(alive, key=lambda one: one["mean"]) if alive else {}
    return {
        "group": {"scheme": scheme, "batch_size": size}, "metric": metric, "rates": rates,
        "best": best.get("rate"), "mean": best.get("mean"), "std": best.get("std"),
        "low": best.get("rate"), "high": best.get("rate"), "at_edge": at_edge,
        "as_good": tuple(one["rate"] for one in alive if one is best), "contiguous": True,
        "runs": 3 * len(rates), "left_out": {}, "rule": "strict", "passed_over": (),
    }  # fmt: skip


def sweep(sizes, schemes, metrics=("test_accuracy", "train_loss")):
    means = {"test_accuracy": [0.3, 0.9, 0.8], "train_loss": [2.0, 0.1, 0.3]}
    return [
        group(
            scheme,
            size,
            [
                *(rate(2.0 ** (k - 8), mean) for k, mean in enumerate(means[metric])),
                rate(2.0**-5, means[metric][0], diverged=1),
                rate(2.0**-4, None, diverged=3),
            ],
            metric,
        )
        for metric in metrics
        for scheme in schemes
        for size in sizes
    ]


def marks(axes):
    """The marks of runs that diverged."""
    return [line for line in axes.lines if line.get_zorder() == 6]
