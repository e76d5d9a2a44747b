"""A sweep as one HTML file that can be mailed: best rates, figure, command, settings, failures."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nf_resnets.places import whole_file
from nf_resnets.plotting.rates import METRICS, series_title
from nf_resnets.plotting.style import power

Row = Mapping[str, Any]
OUTCOMES = ("test_accuracy", "train_loss", "steps_done", "seconds")
# More runs than these make the file too large to mail; rows.csv has all of them.
MOST_RUNS = 2000


@dataclasses.dataclass(frozen=True)
class SweepResults:
    """What the figures, the table and the report of a sweep are made of.

    Attributes:
      title: what was swept.
      rows: one for each run: its settings, ``state``, ``key`` and results.
      optima: what ``dataclasses.asdict`` makes of each ``nf_resnets.sweep.Optimum``.
      regimes: the same of ``nf_resnets.sweep.Regimes``.
      settings: the names of the settings among the columns of ``rows``.
      subtitle: the settings that it was made with.
      chance: the accuracy of guessing, 0 to 1.
      command: makes the same runs.
      facts: tables of versions and devices, by their headings.
      names: what to call schemes; else by their keys.
      targets: the same of ``nf_resnets.sweep.targets.StepsToTarget``.
    """

    title: str
    rows: Sequence[Row]
    optima: Sequence[Row]
    regimes: Sequence[Row]
    settings: Sequence[str] = ()
    subtitle: str = ""
    chance: float | None = None
    command: str = ""
    facts: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    targets: Sequence[Row] = ()


def report(
    path: str | os.PathLike[str],
    sweep: SweepResults,
    best: Sequence[Sequence[str]],
    notes: Sequence[str],
    svg: str,
) -> None:
    """Writes a sweep's report: one HTML file that needs no other, and no network.

    ``best`` are the cells of the table of best rates, ``notes`` what stands below it, ``svg`` the
    figure.
    """
    import jinja2

    template = jinja2.Template(
        Path(__file__).with_name("report.html").read_text(encoding="utf-8"), autoescape=True,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    values = {
        name: list(dict.fromkeys(_text(name, row.get(name)) for row in sweep.rows))
        for name in sweep.settings
    }
    page = template.render(
        sweep=sweep,
        states=Counter(row["state"] for row in sweep.rows),
        best=best,
        notes=notes,
        svg=svg[svg.index("<svg") :],
        varying={name: each for name, each in values.items() if len(each) > 1},
        fixed=[(name, *each) for name, each in values.items() if len(each) == 1],
        failures=[row for row in sweep.rows if row["state"] in ("failed", "oom")],
        runs=sweep.rows[:MOST_RUNS],
        outcomes=OUTCOMES,
        metrics=METRICS,
        text=_text,
        series_title=series_title,
    )
    with whole_file(path) as new:
        new.write_text(page, encoding="utf-8")


def _text(name: str, value: Any) -> str:
    """A value of a setting or a result in words."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return power(value) if name.endswith("lr") else f"{value:.4g}"
    return str(value)
