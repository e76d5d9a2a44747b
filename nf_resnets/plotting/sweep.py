"""All pictures of a sweep in one folder: its figures, a table, the report."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nf_resnets.plotting.curves import Curve, Panel, curves_figure
from nf_resnets.plotting.heat import heat_figure
from nf_resnets.plotting.isolation import isolation_figure
from nf_resnets.plotting.optima import optima_figure
from nf_resnets.plotting.rates import rates_figure, series_title
from nf_resnets.plotting.report import RULES, SweepResults, report
from nf_resnets.plotting.steps import steps_figure
from nf_resnets.plotting.style import NO_MATPLOTLIB, can_draw, power_of_two
from nf_resnets.plotting.whole import whole_file

Row = Mapping[str, Any]


def sweep_figures(
    folder: Path, sweep: SweepResults, *, failed: Callable[[str, Exception], Any] | None = None
) -> list[str]:
    """Draws a sweep into a folder: ``rates``, ``optima``, ``heat``, the table and the report.

    Where several settings are swept, ``isolation`` is drawn as well, ``steps`` where there are
    steps to a target at several batch sizes, and ``curves`` where there are curves. Without
    Matplotlib only the table and the report are made, and a sentence says so.

    Args:
      folder: where to; files of these names are replaced, each whole.
      sweep: what is drawn.
      failed: called with the name of a file that cannot be made, and why; the others are made all
        the same. By default that is an error.

    Returns:
      The names of the files that were made.
    """
    files: list[str] = []
    svgs: dict[str, bytes] = {}

    @contextlib.contextmanager
    def making(name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if failed is None:
                raise
            failed(name, error)
        else:
            files.append(name)

    # The table first: on a disk that is nearly full it is worth the most.
    with making("table.txt"), whole_file(folder / "table.txt") as new:
        new.write_text(table(sweep.optima, names=sweep.names) + "\n")
    if not can_draw():
        print(NO_MATPLOTLIB, file=sys.stderr)
    for name, (caption, draw) in _drawings(sweep).items() if can_draw() else ():
        with making(f"{name}.png"), whole_file(folder / f"{name}.png") as new:
            draw(new)
            with contextlib.suppress(OSError):
                svgs[caption] = new.with_suffix(".svg").read_bytes()
                files.append(f"{name}.svg")
    with making("report.html"):
        report(folder / "report.html", sweep, svgs)
    return files


def _drawings(sweep: SweepResults) -> dict[str, tuple[str, Callable[[Path], None]]]:
    """Each figure by the name of its file: what it shows, and what draws it."""
    subtitle, names = f"{sweep.title}: {sweep.subtitle}", sweep.names

    def called(group: Row) -> str:
        return series_title(group, "batch_size", names)

    def drawing(title: str, draw: Callable[..., None]) -> tuple[str, Callable[[Path], None]]:
        return title, lambda path: draw(path, title=title, subtitle=subtitle)

    drawings = {
        "rates": drawing(
            "Accuracy and training loss against the learning rate",
            functools.partial(rates_figure, sweep.optima, chance=sweep.chance, names=names),
        ),
        "optima": drawing(
            "The best rate against the batch size",
            functools.partial(optima_figure, sweep.optima, sweep.regimes, names=names),
        ),
        "heat": drawing(
            "Test accuracy by learning rate and batch size",
            functools.partial(heat_figure, sweep.optima, names=names),
        ),
    }
    if sweep.isolations:
        drawings["isolation"] = drawing(
            "One setting at a time, by the best of the others",
            functools.partial(isolation_figure, sweep.isolations, names=names),
        )
    if sweep.targets:
        drawings["steps"] = drawing(
            "Steps to a target against the batch size",
            functools.partial(steps_figure, sweep.targets, sweep.knees, names=names),
        )
    if sweep.curves:
        drawings["curves"] = drawing(
            "Training at the best rates",
            functools.partial(training_figure, sweep.curves, called=called),
        )
    return drawings


def training_figure(
    curves: Sequence[Row],
    path: str | os.PathLike[str],
    *,
    called: Callable[[Row], str],
    title: str,
    subtitle: str,
) -> None:
    """Draws the training loss of runs against their steps, a panel for each batch size.

    Args:
      curves: one for each run, with ``group``, ``step`` and ``train_loss``; runs of one group are
        seeds, drawn as their mean in a band from the lowest to the highest.
      path: where to save; the suffix chooses the format. A PNG also has an SVG of its name.
      called: ``called(group)`` names the curve of a group.
      title: what the figure shows.
      subtitle: the settings it was made with.
    """
    panels: dict[Any, dict[str, list[Row]]] = {}
    for one in sorted(curves, key=lambda one: one["group"]["batch_size"]):
        of_size = panels.setdefault(one["group"]["batch_size"], {})
        of_size.setdefault(called(one["group"]), []).append(one)
    drawn = []
    for size, groups in panels.items():
        means = []
        for name, runs in groups.items():
            points = list(zip(*(run["train_loss"] for run in runs), strict=False))
            steps = runs[0]["step"][: len(points)]
            ends = [list(map(end, points)) for end in (min, max)] if len(runs) > 1 else [(), ()]
            mean = [sum(point) / len(point) for point in points]
            means.append(Curve(name, steps, mean, low=ends[0], high=ends[1]))
        drawn.append(Panel("step", f"training loss, B = {size}", means, more_is_better=False))
    curves_figure(drawn, path, title=title, subtitle=subtitle, columns=min(len(drawn), 4))


EDGE = "!"
"""What marks a best rate at the edge of its grid in a table of text."""
EDGE_NOTE = f"{EDGE} at the edge of the grid: the true best rate may lie outside"
"""The line below a table that has such a mark."""
PASSED = "*"
"""What marks a best rate behind which a better one stands, of which more runs diverged."""
PASSED_NOTE = (
    f"{PASSED} another rate has a better mean over the runs that finished, but more of its diverged"
)
"""The line below a table that has such a mark."""


def table(optima: Sequence[Row], *, names: Mapping[str, str] | None = None) -> str:
    """The best rates as text: a line for each group, both metrics side by side.

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
            told = ["diverged", f"0 of {diverged}", ""] if diverged else ["-", "", ""]
            lines[where][column : column + 3] = told
            continue
        [at_best] = [rate for rate in one["rates"] if rate["rate"] == one["best"]]
        runs = f"{at_best['n']} of {at_best['n'] + at_best['diverged']}"
        factor, digits = (100, 1) if column == 2 else (1, 4)
        value = f"{factor * one['mean']:.{digits}f}"
        if one["std"] is not None:
            value += f" ± {factor * one['std']:.{digits}f}"
        marks = (EDGE if one["at_edge"] else "") + (PASSED if one["passed_over"] else "")
        rate = _power(one["best"]) + marks
        if one["low"] != one["high"]:
            rate += f" ({_power(one['low'])} to {_power(one['high'])})"
        lines[where][column : column + 3] = [value, runs, rate]
    texts = [text_table([heads, *lines.values()])]
    if any(one["at_edge"] for one in optima):
        texts.append(EDGE_NOTE)
    if any(one["passed_over"] for one in optima):
        texts.append(PASSED_NOTE)
    if any(one["rule"] == "trimmed" for one in optima):
        texts.append(RULES["trimmed"])
    return "\n".join(texts)


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


def _power(rate: float) -> str:
    """A rate, as a power of two where it is one."""
    exponent = power_of_two(rate)
    return f"{rate:g}" if exponent is None else f"2^{exponent}"


__all__ = [
    "EDGE", "EDGE_NOTE", "PASSED", "PASSED_NOTE", "sweep_figures", "table", "text_table",
    "training_figure",
]  # fmt: skip
