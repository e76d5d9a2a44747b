"""A sweep as one HTML file that can be mailed: best rates, figure, command, settings, failures."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nf_resnets.plotting.rates import METRICS, series_title
from nf_resnets.plotting.style import power, whole_file

Row = Mapping[str, Any]
Cells = list[list[str]]
OUTCOMES = ("test_accuracy", "train_loss", "steps_done", "seconds")
# More runs than these make the file too large to mail; rows.csv has all of them.
MOST_RUNS = 2000


@dataclasses.dataclass(frozen=True)
class SweepResults:
    """What the figures, the table and the report of a sweep are made of.

    Attributes:
      title: what was swept.
      rows: one for each run: its settings, ``state``, ``key`` and results.
      optima: plain mappings of ``nf_resnets.sweep.select.Optimum``.
      regimes: plain mappings of ``nf_resnets.sweep.regimes.Regimes``.
      settings: the names of the settings among the columns of ``rows``.
      subtitle: the settings that it was made with.
      chance: the accuracy of guessing, 0 to 1.
      command: makes the same runs.
      curves: of runs at the best rates, with ``group``, ``step`` and ``train_loss``.
      facts: tables of versions and devices, by their headings.
      names: what to call schemes; else by their keys.
      targets: plain mappings of ``nf_resnets.sweep.targets.StepsToTarget``.
    """

    title: str
    rows: Sequence[Row]
    optima: Sequence[Row]
    regimes: Sequence[Row]
    settings: Sequence[str] = ()
    subtitle: str = ""
    chance: float | None = None
    command: str = ""
    curves: Sequence[Row] = ()
    facts: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    targets: Sequence[Row] = ()


def report(
    path: str | os.PathLike[str],
    sweep: SweepResults,
    best: Cells,
    notes: Sequence[str],
    svgs: Mapping[str, str],
) -> None:
    """Writes a sweep's report: one HTML file that needs no other, and no network.

    Args:
      path: where to write; the file is whole or not there.
      sweep: what it tells of.
      best: the cells of the table of best rates.
      notes: what stands below it.
      svgs: the figures, by the names of their files.
    """
    import jinja2

    template = jinja2.Template(
        Path(__file__).with_name("report.html").read_text(encoding="utf-8"), autoescape=True,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    values = {
        name: list(dict.fromkeys(str(_text(name, row.get(name))) for row in sweep.rows))
        for name in sweep.settings
    }
    varying = [name for name, each in values.items() if len(each) > 1]
    failures = [row for row in sweep.rows if row["state"] in ("failed", "oom")]
    page = template.render(
        sweep=sweep,
        states=Counter(row["state"] for row in sweep.rows),
        best=best,
        notes=notes,
        svgs={name: svg[svg.index("<svg") :] for name, svg in svgs.items()},
        targets=_targets(sweep),
        regimes=_regimes(sweep),
        grid=[["setting", "values"], *([name, ", ".join(values[name])] for name in varying)],
        fixed=[["setting", "value"], *([n, v[0]] for n, v in values.items() if len(v) == 1)],
        facts={
            name: [["what", "value"], *([str(what), str(value)] for what, value in table.items())]
            for name, table in sweep.facts.items()
        },
        failures=[(row, str(row.get("traceback") or "")[-20_000:]) for row in failures],
        runs=[
            ["key", "state", *varying, *OUTCOMES],
            *(
                [str(row["key"])[:12], row["state"],
                 *(_text(name, row.get(name)) for name in (*varying, *OUTCOMES))]
                for row in sweep.rows[:MOST_RUNS]
            ),
        ],
    )  # fmt: skip
    with whole_file(path) as new:
        new.write_text(page, encoding="utf-8")


def _text(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return power(value) if name.endswith("lr") else f"{value:.4g}"
    return str(value)


def _targets(sweep: SweepResults) -> Cells:
    """The steps to a target at each batch size, and the gradient noise scale."""
    if not sweep.targets:
        return []
    first = sweep.targets[0]
    name, factor, _ = METRICS[first["metric"]]
    target = f"steps to {name} {factor * first['target']:.4g}"
    cells = [["", "batch", target, "reached it", "rate", "noise scale"]]
    for one in sweep.targets:
        steps = "–" if one["steps"] is None else f"{one['steps']} ({one['low']} to {one['high']})"
        cells.append([
            series_title(one["group"], "batch_size", sweep.names),
            str(one["group"]["batch_size"]),
            steps,
            f"{one['reached']} of {one['runs']}",
            _text("peak_lr", one["rate"]),
            _text("", one["noise_scale"]),
        ])  # fmt: skip
    return cells


def _regimes(sweep: SweepResults) -> Cells:
    """The fits of the best rate against the batch size, with ranges of one standard error."""
    cells = [["", "by", "rate / B", "saturates at B", "largest rate", "left out"]]
    for fit in sweep.regimes:
        parts = [
            "–" if fit[part] is None
            else f"{fit[part]:.3g}" if fit[f"{part}_error"] is None
            else f"{fit[part]:.3g} ({fit[part] / 2 ** fit[f'{part}_error']:.3g} to "
            f"{fit[part] * 2 ** fit[f'{part}_error']:.3g})"
            for part in ("slope", "batch_size", "largest")
        ]  # fmt: skip
        left_out = "; ".join(f"B = {size:g}: {why}" for size, why in fit["left_out"].items())
        title = series_title(fit["group"], "batch_size", sweep.names)
        cells.append([title, METRICS[fit["metric"]][0].split(" (")[0], *parts, left_out])
    return cells if sweep.regimes else []


__all__ = ["SweepResults", "report"]
