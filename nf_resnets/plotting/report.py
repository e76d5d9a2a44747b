"""A sweep as one HTML file that can be mailed: figures, tables, settings, warnings, failures."""

from __future__ import annotations

import base64
import datetime
import html
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nf_resnets.plotting.rates import METRICS, series_title
from nf_resnets.plotting.whole import whole_file

Row = Mapping[str, Any]

RULES = {
    "strict": "A rate at which a larger share of the runs diverged stands behind the others.",
    "trimmed": (
        "Rates at which at least half of the runs finished are compared by the mean over these; "
        "the others stand behind."
    ),
}
"""How rates are compared at which some runs diverged."""

STATES = ("finished", "diverged", "running", "waiting", "failed", "oom")

# What a row of a ledger has besides the settings of its run.
_RESULTS = {
    "key", "program", "position", "state", "attempts", "steps_done", "test_accuracy", "test_loss",
    "train_loss", "train_accuracy", "seconds", "message", "finished_at", "resolved",
}  # fmt: skip
# More runs than these make the file too large to mail; all of them are in the ledger.
_RUNS = 2000
# A traceback of a run that failed deep inside a compiler can be megabytes.
_TEXT = 20_000
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
_STYLE = """
:root { --ink: #1c1e21; --soft: #5b6168; --page: #ffffff; --card: #f5f6f8; --line: #dcdfe3;
  --accent: #0072b2; --warn: #8a4b00; --warnback: #fff4e0; --bad: #b3261e; color-scheme: light; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ea; --soft: #a2a9b0; --page: #16181b; --card: #202327; --line: #383d43;
    --accent: #56b4e9; --warn: #ffc676; --warnback: #33291a; --bad: #ff8a80; color-scheme: dark; }
  figure img { filter: brightness(.92); }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.65rem; line-height: 1.25; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; padding-bottom: .3rem;
  border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
p, ul { margin: .4rem 0; max-width: 52rem; }
.soft { color: var(--soft); }
.states { display: flex; flex-wrap: wrap; gap: .6rem; margin: 1rem 0; padding: 0;
  max-width: none; list-style: none; }
.states li { background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  padding: .35rem .9rem; min-width: 6rem; }
.states b { display: block; font-size: 1.3rem; font-variant-numeric: tabular-nums; }
.warn { background: var(--warnback); border-left: 4px solid var(--warn); padding: .5rem .9rem;
  border-radius: 4px; max-width: none; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .8rem .28rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
td.n, th.n { text-align: right; }
td.wrap { white-space: normal; overflow-wrap: anywhere; min-width: 12rem; }
.edge { color: var(--warn); font-weight: 600; }
.bad { color: var(--bad); }
figure { margin: 1rem 0 1.6rem; }
figure img { display: block; max-width: 100%; height: auto; background: #fff; border-radius: 8px;
  border: 1px solid var(--line); padding: 6px; }
figcaption { color: var(--soft); font-size: .88rem; margin-top: .3rem; }
details { margin: .5rem 0; border: 1px solid var(--line); border-radius: 6px;
  padding: .4rem .8rem; }
summary { cursor: pointer; overflow-wrap: anywhere; }
pre { overflow-x: auto; background: var(--card); padding: .7rem; border-radius: 6px;
  font-size: .8rem; line-height: 1.4; }
sup { line-height: 0; }
@media print {
  :root { --ink: #000; --soft: #444; --page: #fff; --card: #fff; --line: #bbb; --warn: #8a4b00;
    --warnback: #fff; --bad: #b3261e; color-scheme: light; }
  body { font-size: 10pt; }
  main { max-width: none; padding: 0; }
  figure img { filter: none; border: 0; }
  figure, tr, .warn { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .scroll { overflow: visible; }
  th, td { white-space: normal; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
}
"""


def report(
    path: str | os.PathLike[str],
    *,
    title: str,
    rows: Sequence[Row],
    optima: Sequence[Row],
    regimes: Sequence[Row],
    figures: Mapping[str, bytes],
    facts: Mapping[str, Any] | None = None,
    failures: Sequence[Row] = (),
    names: Mapping[str, str] | None = None,
    batch_size: str = "batch_size",
    written: datetime.datetime | None = None,
) -> None:
    """Writes a sweep's report: one HTML file that needs no other, and no network.

    It says how many runs are in which state, what to beware of (a best rate at the edge of its
    grid, runs left out, a range with a gap), the best rate of each group by each metric with the
    range of rates as good, the fitted regimes in words, shows the figures, and lists the grid, the
    settings that all runs share, facts such as versions, every run, and the failures with their
    tracebacks. All text is escaped; the figures are images inside the file.

    Args:
      path: where to write; the file is whole or not there.
      title: what was swept.
      rows: one for each run: its settings, ``state``, ``key`` and results. A setting is any field
        but the results of a ledger's rows.
      optima: plain mappings of ``nf_resnets.sweep.select.Optimum``.
      regimes: plain mappings of ``nf_resnets.sweep.select.Regimes``.
      figures: what each shows, and its SVG or PNG.
      facts: versions, devices, the command and whatever else; a mapping among them is a table.
      failures: with ``key``, ``state``, ``message`` and ``traceback``, as far as they are there.
      names: what to call schemes; else by their keys.
      batch_size: the field of the batch size.
      written: when; None for now.

    Raises:
      ValueError: if a figure is neither SVG nor PNG.
    """
    when = written or datetime.datetime.now(datetime.UTC)
    settings = _settings(rows)
    grid = {name: values for name, values in settings.items() if len(values) > 1}
    parts = [
        f"<h1>{_text(title)}</h1>",
        f'<p class="soft">{len(rows)} runs. Written on {when:%Y-%m-%d at %H:%M} {when:%Z}</p>',
        _states(rows),
        _warnings(optima, names, batch_size),
        "<h2>Best learning rates</h2>",
        _best(optima, names, batch_size),
        _regimes(regimes, names, batch_size),
        *_figures(figures),
        "<h2>Grid</h2>",
        _table(
            ("field", "values"),
            [
                (_text(name), _class("wrap", ", ".join(_value(name, value) for value in values)))
                for name, values in grid.items()
            ],
        )
        if grid
        else "<p>All runs have the same settings.</p>",
        _fixed(settings, grid),
        *_facts(facts or {}),
        _failures(failures),
        _runs(rows, list(grid)),
    ]
    page = _PAGE.format(title=_text(title), style=_STYLE, body="\n".join(filter(None, parts)))
    with whole_file(path) as new:
        new.write_text(page, encoding="utf-8")


def _text(value: Any) -> str:
    return html.escape(str(value), quote=True)


def _class(name: str, inside: str) -> str:
    """A cell with a class; other cells are plain text."""
    return f'<td class="{name}">{inside}</td>'


def _table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table; cells are HTML already, with or without their ``<td>``."""
    lines = list(lines)
    # A head stands over its numbers: to the right, as they do.
    number = [bool(lines) and lines[0][i].startswith('<td class="n"') for i in range(len(heads))]
    head = "".join(
        f'<th class="n">{_text(name)}</th>' if right else f"<th>{_text(name)}</th>"
        for name, right in zip(heads, number, strict=True)
    )
    body = "\n".join(
        "<tr>"
        + "".join(cell if cell.startswith("<td") else f"<td>{cell}</td>" for cell in line)
        + "</tr>"
        for line in lines
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _power(value: float | None) -> str:
    """A rate as a power of two where it is one."""
    if value is None:
        return "–"
    exponent = math.log2(value) if value > 0 else math.nan
    if exponent == round(exponent, 9):
        return f"2<sup>{exponent:.0f}</sup>".replace("-", "−")
    return f"{value:.4g}"


def _value(name: str, value: Any) -> str:
    """A setting: rates as powers of two, other values as they are."""
    if isinstance(value, float) and name.endswith("lr") and value > 0:
        return _power(value)
    return _text("none" if value is None else value)


def _metric(metric: str, value: float | None, digits: int = 4) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    return f"{100 * value:.2f}" if metric.endswith("accuracy") else f"{value:.{digits}g}"


def _settings(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """The values of each field that is a setting, in order."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in _RESULTS and not isinstance(value, (dict, list)):
                found.setdefault(name, {})[repr(value)] = value
    return {
        name: sorted(
            values.values(),
            key=lambda value: (0, value) if isinstance(value, (int, float)) else (1, 0),
        )
        for name, values in found.items()
    }


def _states(rows: Sequence[Row]) -> str:
    counts = Counter(str(row["state"]) for row in rows)
    order = [*STATES, *sorted(set(counts) - set(STATES))]
    items = [
        f"<li><b>{counts[state]}</b>{_text('out of memory' if state == 'oom' else state)}</li>"
        for state in order
        if counts[state]
    ]
    return f'<ul class="states">{"".join(items)}</ul>' if items else ""


def _warnings(optima: Sequence[Row], names: Mapping[str, str] | None, batch_size: str) -> str:
    """What a reader must know before believing the tables."""
    lines: list[str] = []
    counted: list[Any] = []
    for one in optima:
        where = (
            f"{_text(series_title(one['group'], batch_size, names))}, "
            f"B = {_text(one['group'].get(batch_size, '–'))}, by {_by(one['metric'])}: "
        )
        if one["best"] is None:
            lines.append(f"{where}no run finished, so there is no best rate.")
        elif one["at_edge"] == "only":
            lines.append(f"{where}only one rate, {_power(one['best'])}, was tried.")
        elif one["at_edge"]:
            way = "lower" if one["at_edge"] == "lowest" else "higher"
            lines.append(
                f"{where}the best rate, {_power(one['best'])}, is the {_text(one['at_edge'])} "
                f"tried; the true one may be {way}."
            )
        if one["passed_over"]:
            rates = ", ".join(map(_power, one["passed_over"]))
            lines.append(
                f"{where}the mean over the runs that finished is better at {rates} than at the "
                "best rate, behind which it stands for the runs that diverged."
            )
        if not one["contiguous"]:
            lines.append(f"{where}a rate inside the range of rates as good is worse than they are.")
        # The same runs are left out whatever they are compared by.
        if one["left_out"] and (one["group"], one["left_out"]) not in counted:
            counted.append((one["group"], one["left_out"]))
            where = where.removesuffix(f", by {_by(one['metric'])}: ") + ": "
            out = ", ".join(f"{count} {_text(state)}" for state, count in one["left_out"].items())
            lines.append(f"{where}of {one['runs']} runs some have no number: {out}.")
    if not lines:
        return ""
    if len(lines) > 6:
        shown = "".join(f"<li>{line}</li>" for line in lines)
        return (
            f'<div class="warn"><details><summary><b>{len(lines)} warnings</b>: a best rate at the '
            f"edge of its grid, runs without a number, or a gap in a range</summary>"
            f"<ul>{shown}</ul></details></div>"
        )
    return '<div class="warn"><ul>' + "".join(f"<li>{line}</li>" for line in lines) + "</ul></div>"


def _by(metric: str) -> str:
    return _text(METRICS[metric][0].split(" (")[0] if metric in METRICS else metric)


def _best(optima: Sequence[Row], names: Mapping[str, str] | None, batch_size: str) -> str:
    if not optima:
        return "<p>No runs.</p>"
    parts = [
        "<p>The best rate has the best mean over its seeds; as good is every rate whose mean lies "
        "within one standard deviation of it, the best rate's own over its seeds. "
        + " ".join(RULES[rule] for rule in dict.fromkeys(one["rule"] for one in optima))
        + "</p>"
    ]
    for metric in dict.fromkeys(one["metric"] for one in optima):
        lines = []
        for one in optima:
            if one["metric"] != metric:
                continue
            at_best = next((r for r in one["rates"] if r["rate"] == one["best"]), None)
            spread = "" if one["std"] is None else f" ± {_metric(metric, one['std'], 2)}"
            here = {"n": 0, "diverged": 0} if at_best is None else at_best
            diverged = sum(rate["diverged"] for rate in one["rates"])
            size = one["group"].get(batch_size)
            ends = {_power(one["low"]): None, _power(one["high"]): None}
            lines.append(
                (
                    _text(series_title(one["group"], batch_size, names)),
                    _class("n", _text("–" if size is None else size)),
                    _power(one["best"]),
                    " to ".join(ends) + ("" if one["contiguous"] else ", with a gap"),
                    _class("n", _metric(metric, one["mean"]) + spread),
                    _class("n", _text(here["n"])),
                    _class("n", _text(here["diverged"])),
                    _class("n", _text(f"{diverged} of {one['runs']}")),
                    "–" if one["best"] is None or not size else f"{one['best'] / size:.3g}",
                    _edge(one["at_edge"]),
                )
            )
        label = METRICS[metric][0] if metric in METRICS else metric
        parts += [
            f"<h3>By {_by(metric)}</h3>",
            _table(
                (
                    "runs",
                    "B",
                    "best rate",
                    "as good",
                    label,
                    "finished",
                    "diverged",
                    "diverged of all",
                    "rate / B",
                    "",
                ),
                lines,
            ),
        ]
    return "\n".join(parts)


def _edge(at_edge: str | None) -> str:
    if at_edge is None:
        return ""
    words = "only rate tried" if at_edge == "only" else f"{at_edge} rate tried"
    return _class("edge", _text(words))


def _range(value: float, error: float | None) -> str:
    """A value with the range of one standard error of its logarithm."""
    if error is None:
        return f"{value:.3g}"
    return f"{value:.3g} ({value / 2**error:.3g} to {value * 2**error:.3g})"


def _regimes(regimes: Sequence[Row], names: Mapping[str, str] | None, batch_size: str) -> str:
    if not regimes:
        return ""
    parts = [
        "<h2>How the best rate moves with the batch size</h2>",
        "<p>Fitted: rate = min(slope · B, largest), by least squares of the logarithms, each "
        "weighed by its range of rates as good (at least half a step of the grid). In brackets the "
        "range of one standard error. A part is said to show if the fit without it is worse by "
        "3.84 in χ² (95%).</p>",
    ]
    for metric in dict.fromkeys(fit["metric"] for fit in regimes):
        parts.append(f"<h3>By {_by(metric)}</h3><ul>")
        parts += [
            f"<li><b>{_text(series_title(fit['group'], batch_size, names))}</b>: {_words(fit)}</li>"
            for fit in regimes
            if fit["metric"] == metric
        ]
        parts.append("</ul>")
    return "\n".join(parts)


def _words(fit: Row) -> str:
    """A fit in a few sentences."""
    points = len(fit["residuals"])
    slope = f"rate / B = {_range(fit['slope'], fit['slope_error'])}" if fit["slope"] else ""
    largest = _range(fit["largest"], fit["largest_error"]) if fit["largest"] else ""
    said = {
        "both": f"linear in B with {slope}",
        "linear": f"linear in B over all batch sizes, with {slope}; no saturation is seen",
        "saturated": f"the same for all batch sizes, {largest}; no linear part is seen",
        "neither": f"{points} batch size{'s' if points != 1 else ''} with a best rate "
        f"{'do' if points != 1 else 'does'} not tell a linear part from a saturated one.",
    }[fit["shows"]]
    if fit["shows"] == "both":
        meet = _range(fit["batch_size"], fit["batch_size_error"]) if fit["batch_size"] else "–"
        said += f", up to B = {meet}; then saturated at {largest}"
    if fit["shows"] == "linear":
        said += f" (the largest rate is at least {fit['largest_at_least']:.3g})"
    if fit["shows"] == "saturated":
        said += f" (rate / B is at least {fit['slope_at_least']:.3g})"
    if fit["chi2"] is not None:
        said += f". χ² = {fit['chi2']:.2g} with {fit['freedom']} degrees of freedom."
    for out in fit["left_out"]:
        said += f" B = {out['batch_size']:g} is left out: {_text(out['reason'])}"
        said += (
            '; <span class="bad">the fitted curve lies on the other side of it.</span>'
            if out["contradicts"]
            else "."
        )
    return said


def _figures(figures: Mapping[str, bytes]) -> list[str]:
    parts = ["<h2>Figures</h2>"] if figures else []
    for name, data in figures.items():
        start = data[:400].lstrip()
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            kind = "image/png"
        elif start.startswith((b"<svg", b"<?xml")):
            kind = "image/svg+xml"
        else:
            raise ValueError(f"figures[{name!r}] is neither SVG nor PNG; it begins {data[:8]!r}.")
        # As an image an SVG runs no script and shares no names with the page.
        inside = base64.b64encode(data).decode("ascii")
        parts.append(
            f'<figure><img src="data:{kind};base64,{inside}" alt="{_text(name)}">'
            f"<figcaption>{_text(name)}</figcaption></figure>"
        )
    return parts


def _fixed(settings: Mapping[str, Sequence[Any]], grid: Mapping[str, Any]) -> str:
    fixed = {name: values[0] for name, values in settings.items() if name not in grid}
    if not fixed:
        return ""
    lines = [(_text(name), _class("wrap", _value(name, value))) for name, value in fixed.items()]
    return "<h3>The same in all runs</h3>\n" + _table(("field", "value"), lines)


def _facts(facts: Mapping[str, Any]) -> list[str]:
    parts = ["<h2>How it was made</h2>"] if facts else []
    plain = {name: value for name, value in facts.items() if not isinstance(value, Mapping)}
    tables: list[tuple[str, Mapping[str, Any]]] = [("", plain)] if plain else []
    tables += [(name, value) for name, value in facts.items() if isinstance(value, Mapping)]
    for name, table in tables:
        if name:
            parts.append(f"<h3>{_text(name)}</h3>")
        lines = []
        for fact, value in table.items():
            words = value if isinstance(value, str) else json.dumps(value, default=str)
            lines.append((_text(fact), _class("wrap", _text(words))))
        parts.append(_table(("what", "value"), lines))
    return parts


def _failures(failures: Sequence[Row]) -> str:
    if not failures:
        return ""
    parts = [f"<h2>Failures ({len(failures)})</h2>"]
    for one in failures:
        trace = str(one.get("traceback") or "")
        # The end of a traceback says what happened.
        if len(trace) > _TEXT:
            trace = f"... {len(trace) - _TEXT:,} characters left out ...\n{trace[-_TEXT:]}"
        last = trace.strip().splitlines()[-1:] or [""]
        state = "" if one.get("state") is None else f"{_text(one['state'])}: "
        what = " ".join(str(one.get("message") or last[0] or "no message").split())
        what = what if len(what) <= 200 else what[:200] + "…"
        key = _text(str(one.get("key") or "–")[:12])
        body = f"<pre>{_text(trace)}</pre>" if trace else "<p>No traceback was kept.</p>"
        others = [
            f"{_text(name)} = {_text(value)}"
            for name, value in one.items()
            if name not in ("key", "state", "message", "traceback") and value is not None
        ]
        parts.append(
            f'<details><summary><code>{key}</code> <span class="bad">{state}</span>{_text(what)}'
            f"</summary>{'<p>' + ', '.join(others) + '</p>' if others else ''}{body}</details>"
        )
    return "\n".join(parts)


def _runs(rows: Sequence[Row], fields: Sequence[str]) -> str:
    if not rows:
        return ""
    results = [
        name
        for name in ("test_accuracy", "train_loss", "steps_done", "seconds")
        if any(row.get(name) is not None for row in rows)
    ]
    lines = []
    for row in rows[:_RUNS]:
        cells = [f"<code>{_text(str(row.get('key') or '')[:12])}</code>", _text(row["state"])]
        cells += [_value(name, row.get(name)) for name in fields]
        cells += [
            _class("n", _metric(name, row.get(name)))
            if name in METRICS
            else _class("n", "–" if row.get(name) is None else f"{row[name]:.6g}")
            for name in results
        ]
        lines.append(cells)
    heads = ["key", "state", *fields]
    heads += [METRICS[name][0] if name in METRICS else name for name in results]
    more = "" if len(rows) <= _RUNS else f", the first {_RUNS:,} of {len(rows):,}"
    return (
        f"<h2>Runs</h2>\n<details><summary>All runs{more}</summary>\n"
        f"{_table(heads, lines)}\n</details>"
    )


__all__ = ["STATES", "report"]
