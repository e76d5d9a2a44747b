"""What a sweep shows in one folder: a table, a figure and a report."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nf_resnets.places import whole_file
from nf_resnets.plotting.curves import Curve, Panel, curves_figure
from nf_resnets.plotting.rates import LEGEND, METRICS, rate_range, rates_figure, series_title
from nf_resnets.plotting.report import SweepResults, report
from nf_resnets.plotting.style import NO_MATPLOTLIB, can_draw

Row = Mapping[str, Any]

EDGE = "!"
EDGE_NOTE = f"{EDGE} at the edge of the grid: the true best rate may lie outside"
PASSED = "*"
PASSED_NOTE = (
    f"{PASSED} another rate has a better mean over the runs that finished, but more of its diverged"
)


def sweep_figures(folder: Path, sweep: SweepResults) -> list[str]:
    """Writes ``table.txt``, ``figure.png`` and ``report.html`` into a folder.

    Files of these names are replaced, each whole. Without Matplotlib only the table is made, and a
    sentence says so. Returns the names of the files.
    """
    files = ["table.txt"]
    cells, notes = table_cells(sweep.optima, names=sweep.names)
    with whole_file(folder / "table.txt") as new:
        new.write_text("\n".join([text_table(cells), *notes]) + "\n")
    if not can_draw():
        print(NO_MATPLOTLIB, file=sys.stderr)
        return files
    sweep_figure(sweep, folder / "figure.png")
    report(folder / "report.html", sweep, cells, notes, (folder / "figure.svg").read_text())
    return [*files, "figure.png", "figure.svg", "report.html"]


def sweep_figure(sweep: SweepResults, path: Path) -> None:
    """Draws what suits the grid, a curve for each scheme.

    Against the batch size, or else against the depth or width of the networks, there are the best
    metric and the best rate with the range of rates as good; dashed is the fit.
    Where neither varies, it is metrics against the learning rate.
    """
    subtitle = f"{sweep.title}: {sweep.subtitle}"
    sizes, field, label = _sizes(sweep.optima)
    if not sizes:
        rates_figure(sweep.optima, path, title="Accuracy and training loss against the rate",
                     subtitle=subtitle, chance=sweep.chance, names=sweep.names)  # fmt: skip
        return
    panels = []
    for metric in dict.fromkeys(one["metric"] for one in sweep.optima):
        of_metric = [one for one in sweep.optima if one["metric"] == metric]
        groups: dict[str, list[Row]] = {}
        for one in of_metric:
            groups.setdefault(series_title(one["group"], field, sweep.names), []).append(one)
        fits = {
            series_title(fit["group"], field, sweep.names): fit
            for fit in sweep.regimes
            if fit["metric"] == metric
        }
        means, rates = list[Curve](), list[Curve]()
        for index, (title, optima) in enumerate(groups.items()):
            # Curves stand slightly apart, so that their bars can be seen.
            apart = 2 ** (0.4 * ((index + 0.5) / len(groups) - 0.5))
            placed = [(sizes[one["group"][field]], one) for one in optima]
            points = [(x * apart, one) for x, one in sorted(placed, key=lambda pair: pair[0])]
            means.append(_best(title, points, METRICS[metric][1], ("mean", "std")))
            rates.append(_best(title, points, 1, ("best",)))
            edges = [(x, one["best"]) for x, one in points if one["best"] and one["at_edge"]]
            rates.append(Curve(title, [x for x, _ in edges], [y for _, y in edges], style="open"))
            if title in fits:
                rates.append(_fitted(title, fits[title], list(sizes.values())))
        name, _, more_is_better = METRICS[metric]
        ticks = sorted(set(sizes.values()))
        panels += [
            Panel(label, f"best {name}", means, more_is_better=more_is_better, x_base=2,
                  ticks=ticks),
            Panel(label, f"best rate by {name.split(' (')[0]}", rates, x_base=2, y_base=2,
                  ticks=ticks),
        ]  # fmt: skip
    curves_figure(panels, path, title=f"The best learning rate against the {label}",
                  subtitle=subtitle, columns=2, legend=LEGEND)  # fmt: skip


def _sizes(optima: Sequence[Row]) -> tuple[dict[Any, float], str, str]:
    """The sizes that vary, by their values in the groups; their field, and what they are called."""
    batches = {one["group"].get("batch_size") for one in optima}
    if len(batches) > 1:
        return {size: float(size) for size in batches}, "batch_size", "batch size"
    models = {str(one["group"].get("model", "")) for one in optima}
    numbers = {model: [float(n) for n in re.findall(r"\d+", model)] for model in models}
    if len({re.sub(r"\d+", "#", model) for model in models}) == 1:
        varying = [at for at, all_ in enumerate(zip(*numbers.values(), strict=True))
                   if len(set(all_)) > 1]  # fmt: skip
        if len(varying) == 1:
            name = "depth" if varying == [0] else "width"
            return {model: each[varying[0]] for model, each in numbers.items()}, "model", name
    return {}, "", ""


def _best(
    title: str, optima: Sequence[tuple[float, Row]], factor: float, names: Sequence[str]
) -> Curve:
    """A curve of best means with their deviation, or of best rates with the rates as good."""
    done = [(x, one) for x, one in optima if one["best"] is not None]
    y = [factor * one[names[0]] for _, one in done]
    if len(names) == 2:
        low, high = (
            [m + s * factor * (one["std"] or 0.0) for m, (_, one) in zip(y, done, strict=True)]
            for s in (-1, 1)
        )
    else:
        low, high = ([one[end] for _, one in done] for end in ("low", "high"))
    lost = [x for x, one in optima if one["best"] is None and one["rates"]]
    return Curve(title, [x for x, _ in done], y, marked=True, low=low, high=high, lost=lost)


def _fitted(title: str, fit: Row, sizes: Sequence[float]) -> Curve:
    """The fitted curve, as far as the data show its parts."""
    ends = min(sizes), max(sizes)
    at = [ends[0] * (ends[1] / ends[0]) ** (step / 40) for step in range(41)]
    slope, largest = fit["slope"] or math.inf, fit["largest"] or math.inf
    rates = [min(slope * size, largest) for size in at]
    return Curve(title, at, [r if math.isfinite(r) else math.nan for r in rates], style="--")


def table_cells(
    optima: Sequence[Row], *, names: Mapping[str, str] | None = None
) -> tuple[list[list[str]], list[str]]:
    """The cells of the table of best rates, and the notes below it.

    A rate stands with the range of rates as good, and beside its mean how many of its runs
    finished, of those that came to an end; ``!`` marks a rate at the edge of its grid, ``*`` one
    that is best only because more runs diverged at a better one.
    """
    heads = ["", "batch", "test accuracy (%)", "runs", "best rate (as good)", "training loss",
             "runs", "best rate (as good)"]  # fmt: skip
    lines: dict[tuple[Any, ...], list[str]] = {}
    for one in optima:
        group = one["group"]
        where = (series_title(group, "batch_size", names), str(group["batch_size"]))
        lines.setdefault(where, [*where, *["-"] * 6])
        column = 2 if one["metric"] == "test_accuracy" else 5
        if one["best"] is None:
            diverged = sum(rate["diverged"] for rate in one["rates"])
            none = ["diverged", f"0 of {diverged}", ""] if diverged else ["-", "", ""]
            lines[where][column : column + 3] = none
            continue
        [at_best] = [rate for rate in one["rates"] if rate["rate"] == one["best"]]
        runs = f"{at_best['n']} of {at_best['n'] + at_best['diverged']}"
        factor, digits = (100, 1) if column == 2 else (1, 4)
        value = f"{factor * one['mean']:.{digits}f}"
        if one["std"] is not None:
            value += f" ± {factor * one['std']:.{digits}f}"
        marks = (EDGE if one["at_edge"] else "") + (PASSED if one["passed_over"] else "")
        lines[where][column : column + 3] = [value, runs, rate_range(one, marks=marks)]
    return [heads, *lines.values()], mark_notes(
        line[at] for line in lines.values() for at in (4, 7)
    )


def mark_notes(cells: Iterable[str]) -> list[str]:
    """What the marks of best rates mean, of those that stand in some cells."""
    text = "".join(cells)
    return [note for mark, note in ((EDGE, EDGE_NOTE), (PASSED, PASSED_NOTE)) if mark in text]


def text_table(cells: Sequence[Sequence[str]]) -> str:
    """Lays out lines of cells, the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )
