"""A sweep as one HTML file that can be mailed: figures, tables, settings, warnings, failures."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import html
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nf_resnets.plotting.rates import METRICS, series_title
from nf_resnets.plotting.style import power_of_two
from nf_resnets.plotting.whole import whole_file

Row = Mapping[str, Any]

RULES = {
    "strict": "A rate at which a larger fraction of the runs diverged stands behind the others.",
    "trimmed": (
        "Rates at which at least half of the runs finished are compared by the mean over these; "
        "the others stand behind."
    ),
}
"""How rates are compared at which some runs diverged."""

STATES = ("finished", "diverged", "failed", "oom")

# What a row has besides the settings of its run.
_RESULTS = {
    "key", "program", "state", "steps_done", "test_accuracy", "test_loss", "train_loss",
    "train_accuracy", "seconds", "message", "data", "traceback",
}  # fmt: skip
# More runs than these make the file too large to mail; rows.csv has all of them.
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
  --warn: #8a4b00; --warnback: #fff4e0; --bad: #b3261e; color-scheme: light; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8ea; --soft: #a2a9b0; --page: #16181b; --card: #202327; --line: #383d43;
    --warn: #ffc676; --warnback: #33291a; --bad: #ff8a80; color-scheme: dark; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1360px; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.65rem; margin: 0; }
h2 { font-size: 1.2rem; margin-top: 2.4rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
p, ul { margin: .4rem 0; max-width: 60rem; overflow-wrap: anywhere; }
ul { padding-left: 1.3rem; }
.soft, figcaption, th { color: var(--soft); }
.states { display: flex; flex-wrap: wrap; gap: .6rem; padding: 0; list-style: none; }
.states li { background: var(--card); border-radius: 8px; padding: .35rem .9rem; }
.states b { display: block; font-size: 1.3rem; }
.warn { background: var(--warnback); border-left: 4px solid var(--warn); padding: .5rem .9rem; }
.scroll, pre { overflow-x: auto; }
.figures { display: grid; gap: .4rem 1.6rem; grid-template-columns: 1fr; }
@media (min-width: 1200px) { .figures { grid-template-columns: 1fr 1fr; }
  .figures figure.wide { grid-column: 1 / -1; } }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .8rem .28rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); white-space: nowrap; }
td.n, th.n { text-align: right; }
td.wrap { white-space: normal; min-width: 12rem; }
.edge { color: var(--warn); font-weight: 600; }
.bad { color: var(--bad); }
figure { margin: .6rem 0 1rem; min-width: 0; }
figure img { display: block; width: 100%; background: #fff; border-radius: 8px; padding: 6px; }
@media (max-width: 700px) { main { padding: 1rem .8rem 3rem; }
  th, td { padding-right: .55rem; } td:first-child { white-space: normal; min-width: 5.5rem; } }
details { margin: .5rem 0; border: 1px solid var(--line); padding: .4rem .8rem; }
pre { white-space: pre-wrap; background: var(--card); padding: .7rem; font-size: .8rem; }
@media print {
  body { font-size: 10pt; background: #fff; color: #000; }
  figure, tr, .warn { break-inside: avoid; }
  .scroll { overflow: visible; }
  th, td, pre { white-space: pre-wrap; }
  .figures { grid-template-columns: 1fr; }
}
"""


@dataclasses.dataclass(frozen=True)
class SweepResults:
    """What the figures, the table and the report of a sweep are made of.

    Attributes:
      title: what was swept.
      rows: one for each run: its settings, ``state``, ``key`` and results. A setting is any field
        but the results of rows.
      optima: plain mappings of ``nf_resnets.sweep.select.Optimum``.
      regimes: plain mappings of ``nf_resnets.sweep.regimes.Regimes``.
      subtitle: the settings that it was made with.
      chance: the accuracy of guessing, 0 to 1.
      command: makes the same runs.
      curves: of runs at the best rates, with ``group``, ``step`` and ``train_loss``.
      facts: versions, devices and whatever else; a mapping among them is a table.
      failures: with ``key``, ``state``, ``message`` and ``traceback``, as far as they are there.
      names: what to call schemes; else by their keys.
      isolations: plain mappings of ``nf_resnets.sweep.select.Isolation``.
      targets: plain mappings of ``nf_resnets.sweep.targets.StepsToTarget``.
      knees: their fits, plain mappings of ``Regimes``.
    """

    title: str
    rows: Sequence[Row]
    optima: Sequence[Row]
    regimes: Sequence[Row]
    subtitle: str = ""
    chance: float | None = None
    command: str = ""
    curves: Sequence[Row] = ()
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    failures: Sequence[Row] = ()
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    isolations: Sequence[Row] = ()
    targets: Sequence[Row] = ()
    knees: Sequence[Row] = ()


def report(
    path: str | os.PathLike[str],
    sweep: SweepResults,
    figures: Mapping[str, bytes],
    *,
    written: datetime.datetime | None = None,
) -> None:
    """Writes a sweep's report: one HTML file that needs no other, and no network.

    First stand the states of the runs, what to beware of (a best rate at the edge of its grid, runs
    left out, a range with a gap), and the best rate of each group by each metric with the range of
    rates as good. Then come figures, the command, the fitted regimes, the grid, the settings that
    all runs share, versions, the failures with their tracebacks, and every run. All text is
    escaped; the figures are images inside the file.

    Args:
      path: where to write; the file is whole or not there.
      sweep: what it tells of.
      figures: what each shows, and its SVG or PNG.
      written: when; None for now.

    Raises:
      ValueError: if a figure is neither SVG nor PNG.
    """
    when = written or datetime.datetime.now(datetime.UTC)

    def called(group: Row) -> str:
        return _text(series_title(group, "batch_size", sweep.names))

    settings = _settings(sweep.rows)
    grid = {name: values for name, values in settings.items() if len(values) > 1}
    fixed = {name: values for name, values in settings.items() if len(values) == 1}
    parts = [
        f"<h1>{_text(sweep.title)}</h1>",
        _states(sweep.rows),
        _warnings(sweep.optima, called),
        "<h2>Best learning rates</h2>",
        *_best(sweep.optima, called),
        *_figures(figures),
        *_made(sweep, f"{when:%Y-%m-%d at %H:%M} {when:%Z}"),
        *_regimes(sweep.regimes, called),
        *_targets(sweep.targets, sweep.knees, called),
        "<h2>Grid</h2>",
        _fields("values", grid) if grid else "<p>All runs have the same settings.</p>",
        f"<h3>The same in all runs</h3>\n{_fields('value', fixed)}" if fixed else "",
        *_facts(sweep.facts),
        *_failures(sweep.failures),
        _runs(sweep.rows, list(grid)),
    ]
    body = "\n".join(filter(None, parts))
    with whole_file(path) as new:
        page = _PAGE.format(title=_text(sweep.title), style=_STYLE, body=body)
        new.write_text(page, encoding="utf-8")


def _made(sweep: SweepResults, when: str) -> Iterable[str]:
    """The command that makes the runs, and when this was written."""
    yield "<h2>How it was made</h2>"
    if sweep.command:
        yield f"<pre>{_text(sweep.command)}</pre>"
    settings = f" {_text(sweep.subtitle)}." if sweep.subtitle else ""
    yield f'<p class="soft">{len(sweep.rows):,} runs.{settings} Written on {when}</p>'


def _fields(head: str, settings: Mapping[str, Sequence[Any]]) -> str:
    lines = [
        (_text(name), _wrapped(", ".join(_value(name, each) for each in values)))
        for name, values in settings.items()
    ]
    return _table(("field", head), lines)


def _text(value: Any) -> str:
    return html.escape(str(value), quote=True)


def _number(inside: Any) -> str:
    return f'<td class="n">{_text(inside)}</td>'


def _wrapped(inside: str) -> str:
    return f'<td class="wrap">{inside}</td>'


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table; cells are HTML already, with or without their ``<td>``."""
    # A head stands over its numbers: to the right, as they do.
    first = lines[0] if lines else [""] * len(heads)
    head = "".join(
        ('<th class="n">' if cell.startswith('<td class="n"') else "<th>") + f"{_text(name)}</th>"
        for name, cell in zip(heads, first, strict=True)
    )
    body = "\n".join(
        f"<tr>{''.join(c if c.startswith('<td') else f'<td>{c}</td>' for c in line)}</tr>"
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
    exponent = power_of_two(value)
    return f"{value:.4g}" if exponent is None else f"2<sup>{exponent}</sup>".replace("-", "−")


def _value(name: str, value: Any) -> str:
    """A setting: rates as powers of two, other values as they are."""
    if isinstance(value, float) and name.endswith("lr") and value > 0:
        return _power(value)
    return _text("none" if value is None else value)


def _metric(metric: str, value: float | None, digits: int = 4) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    return f"{100 * value:.2f}" if metric.endswith("accuracy") else f"{value:.{digits}g}"


def _head(metric: str) -> str:
    return METRICS[metric][0] if metric in METRICS else metric


def _by(metric: str) -> str:
    return _text(_head(metric).split(" (")[0])


def _settings(rows: Sequence[Row]) -> dict[str, list[Any]]:
    """The values of each field that is a setting, in order."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in _RESULTS and not isinstance(value, dict | list):
                found.setdefault(name, {})[repr(value)] = value

    def order(value: Any) -> tuple[int, float]:
        return (0, value) if isinstance(value, int | float) else (1, 0)

    return {name: sorted(values.values(), key=order) for name, values in found.items()}


def _states(rows: Sequence[Row]) -> str:
    counts = Counter(str(row["state"]) for row in rows)
    items = [
        f"<li><b>{counts[state]}</b>{_text('out of memory' if state == 'oom' else state)}</li>"
        for state in [*STATES, *sorted(set(counts) - set(STATES))]
        if counts[state]
    ]
    return f'<ul class="states">{"".join(items)}</ul>' if items else ""


def _warnings(optima: Sequence[Row], called: Callable[[Row], str]) -> str:
    """What a reader must know before believing the tables."""
    kinds: dict[str, dict[str, list[str]]] = {}

    def warn(kind: str, where: str, metric: str) -> None:
        kinds.setdefault(kind, {}).setdefault(where, []).append(_by(metric))

    for one in optima:
        metric = one["metric"]
        where = f"{called(one['group'])}, B = {_text(one['group'].get('batch_size', '–'))}"
        if one["best"] is None:
            warn("no run finished, so there is no best rate", where, metric)
        elif one["at_edge"] == "only":
            warn("only one rate was tried", f"{where} ({_power(one['best'])})", metric)
        elif one["at_edge"]:
            way = "lower" if one["at_edge"] == "lowest" else "higher"
            kind = f"the best rate is the {_text(one['at_edge'])} tried; the true one may be {way}"
            warn(kind, f"{where} ({_power(one['best'])})", metric)
        if one["passed_over"]:
            rates = ", ".join(map(_power, one["passed_over"]))
            kind = (
                "the mean over the runs that finished is better at a rate that stands behind the "
            )
            warn(f"{kind}best for the runs that diverged", f"{where} ({rates})", metric)
        if not one["contiguous"]:
            warn("a rate inside the range of rates as good is worse than they are", where, metric)
        if one["left_out"]:
            out = ", ".join(f"{count} {_text(state)}" for state, count in one["left_out"].items())
            warn("some runs have no number", f"{where} ({out} of {one['runs']})", metric)
    if not kinds:
        return ""
    every = len({one["metric"] for one in optima})
    lines = []
    for kind, places in kinds.items():
        shown = (
            where if len(metrics) == every else f"{where} by {' and '.join(metrics)}"
            for where, metrics in places.items()
        )
        lines.append(f"<b>{kind[0].upper()}{kind[1:]}</b>: {'; '.join(shown)}.")
    items = "".join(f"<li>{line}</li>" for line in lines)
    many = sum(map(len, kinds.values()))
    if many > 6:
        summary = f"<summary><b>{many} warnings</b>: what to beware of</summary>"
        return f'<div class="warn"><details>{summary}<ul>{items}</ul></details></div>'
    return f'<div class="warn"><ul>{items}</ul></div>'


def _best(optima: Sequence[Row], called: Callable[[Row], str]) -> Iterable[str]:
    if not optima:
        yield "<p>No runs.</p>"
        return
    rules = " ".join(RULES[rule] for rule in dict.fromkeys(one["rule"] for one in optima))
    yield (
        "<p>The best rate has the best mean over its seeds; as good is every rate whose mean lies "
        "within one standard deviation of it, the best rate's own over its seeds. " + rules + "</p>"
    )
    for metric in dict.fromkeys(one["metric"] for one in optima):
        lines = []
        for one in optima:
            if one["metric"] != metric:
                continue
            spread = "" if one["std"] is None else f" ± {_metric(metric, one['std'], 2)}"
            at_best = [rate for rate in one["rates"] if rate["rate"] == one["best"]]
            finished, diverged = (sum(rate[name] for rate in at_best) for name in ("n", "diverged"))
            gone = sum(rate["diverged"] for rate in one["rates"])
            size = one["group"].get("batch_size")
            ends = dict.fromkeys((_power(one["low"]), _power(one["high"])))
            edge = f'<td class="edge">{_text(one["at_edge"])} rate tried</td>'
            lines.append((
                called(one["group"]),
                _number("–" if size is None else size),
                _number(_metric(metric, one["mean"]) + spread),
                _power(one["best"]),
                " to ".join(ends) + ("" if one["contiguous"] else ", with a gap"),
                *map(_number, (finished, diverged, f"{gone} of {one['runs']}")),
                "–" if one["best"] is None or not size else f"{one['best'] / size:.3g}",
                edge if one["at_edge"] else "",
            ))  # fmt: skip
        heads = ("runs", "B", _head(metric), "best rate", "as good", "finished", "diverged",
                 "diverged of all", "rate / B", "")  # fmt: skip
        yield f"<h3>By {_by(metric)}</h3>\n{_table(heads, lines)}"


def _range(value: float | None, error: float | None) -> str:
    """A value with the range of one standard error of its logarithm."""
    if value is None:
        return "–"
    if error is None:
        return f"{value:.3g}"
    return f"{value:.3g} ({value / 2**error:.3g} to {value * 2**error:.3g})"


def _regimes(regimes: Sequence[Row], called: Callable[[Row], str]) -> Iterable[str]:
    if regimes:
        yield "<h2>How the best rate moves with the batch size</h2>"
        yield (
            "<p>Fitted: rate = min(slope · B, largest), or the same without its corner if that is "
            "nearer, by least squares of the logarithms, each weighed by its range of rates as "
            "good (at least half a step of the grid). In brackets the range of one standard error. "
            "A part is said to show if the fit without it is worse by 3.84 in χ² (95%).</p>"
        )
    for metric in dict.fromkeys(fit["metric"] for fit in regimes):
        of_metric = [fit for fit in regimes if fit["metric"] == metric]
        heads = ("rate / B", "saturates at B", "largest rate")
        yield f"<h3>By {_by(metric)}</h3>\n{_fits(of_metric, called, heads)}"


def _fits(
    fits: Sequence[Row], called: Callable[[Row], str], heads: Sequence[str], inverse: bool = False
) -> str:
    """A line for each fit; ``inverse`` gives the least steps in place of the largest rate."""
    lines = []
    for fit in fits:
        largest = fit["largest"] and (1 / fit["largest"] if inverse else fit["largest"])
        cells = [
            _range(fit["slope"], fit["slope_error"]),
            _range(fit["batch_size"], fit["batch_size_error"]),
            _range(largest, fit["largest_error"]),
        ]
        out = "; ".join(
            f"B = {each['batch_size']:g} left out: {_text(each['reason'])}"
            for each in fit["left_out"]
        )
        shows = fit["shows"] + (", smooth" if fit["form"] == "smooth" else "")
        lines.append([called(fit["group"]), shows, *map(_number, cells), _wrapped(out)])
    return _table(("runs", "shows", *heads, ""), lines)


def _targets(
    targets: Sequence[Row], knees: Sequence[Row], called: Callable[[Row], str]
) -> Iterable[str]:
    """The steps to a target at each batch size, and where more examples stop helping."""
    if not targets:
        return
    metric, value = targets[0]["metric"], targets[0]["target"]
    yield (
        f"<h2>Steps to a {_by(metric)} of {_metric(metric, value)}</h2><p>The fewest over the "
        "rates, of each the median over its seeds; in brackets from the last step at which the "
        "quickest seed had not reached it to the step at which the slowest had. B<sub>noise</sub> "
        "is the gradient noise scale of these runs up to the target.</p>"
    )
    lines = []
    for one in targets:
        steps = "–" if one["steps"] is None else f"{one['steps']} ({one['low']} to {one['high']})"
        noise = "–" if one["noise_scale"] is None else f"{one['noise_scale']:.3g}"
        edge = f'<td class="edge">{_text(one["at_edge"])} rate tried</td>'
        lines.append((
            called(one["group"]),
            _number(one["group"]["batch_size"]),
            *map(_number, (steps, f"{one['reached']} of {one['runs']}")),
            _power(one["rate"]),
            _number(noise),
            edge if one["at_edge"] else "",
        ))  # fmt: skip
    yield _table(("runs", "B", "steps", "reached it", "rate", "B_noise", ""), lines)
    heads = ("1 / (steps · B)", "scales up to B", "least steps")
    yield _fits(knees, called, heads, inverse=True) if knees else ""


def _figures(figures: Mapping[str, bytes]) -> Iterable[str]:
    if figures:
        yield '<h2>Figures</h2>\n<div class="figures">'
    for name, data in figures.items():
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            kind = "image/png"
        elif data[:400].lstrip().startswith((b"<svg", b"<?xml")):
            kind = "image/svg+xml"
        else:
            raise ValueError(f"figures[{name!r}] is neither SVG nor PNG; it begins {data[:8]!r}.")
        # As an image an SVG runs no script and shares no names with the page.
        inside = base64.b64encode(data).decode("ascii")
        width = re.search(rb'<svg[^>]*? width="([\d.]+)pt"', data[:2000])
        points = float(width[1]) if width else 500.0
        wide = ' class="wide"' if points > 700 else ""
        # On a narrow screen a figure scrolls: letters of 10 points have 9 pixels at least.
        yield (
            f'<figure{wide}><div class="scroll"><img style="min-width: {0.9 * points:.0f}px" '
            f'src="data:{kind};base64,{inside}" alt="{_text(name)}"></div>'
            f"<figcaption>{_text(name)}</figcaption></figure>"
        )
    if figures:
        yield "</div>"


def _facts(facts: Mapping[str, Any]) -> Iterable[str]:
    if facts:
        yield "<h2>Versions and devices</h2>"
    tables = {name: value for name, value in facts.items() if isinstance(value, Mapping)}
    plain = {name: value for name, value in facts.items() if name not in tables}
    for name, table in {"": plain, **tables}.items():
        lines = [
            (_text(fact), _wrapped(_text(v if isinstance(v, str) else json.dumps(v, default=str))))
            for fact, v in table.items()
        ]
        if lines or name:
            yield (f"<h3>{_text(name)}</h3>" if name else "") + _table(("what", "value"), lines)


def _failures(failures: Sequence[Row]) -> Iterable[str]:
    if failures:
        yield f"<h2>Failures ({len(failures)})</h2>"
    for one in failures:
        trace = str(one.get("traceback") or "")
        # The end of a traceback says what happened.
        if len(trace) > _TEXT:
            trace = f"... {len(trace) - _TEXT:,} characters left out ...\n{trace[-_TEXT:]}"
        last = trace.strip().splitlines()[-1:] or [""]
        state = "" if one.get("state") is None else f"{_text(one['state'])}: "
        what = " ".join(str(one.get("message") or last[0] or "no message").split())
        what = what if len(what) <= 200 else what[:200] + "…"
        body = f"<pre>{_text(trace)}</pre>" if trace else "<p>No traceback was kept.</p>"
        others = [
            f"{_text(name)} = {_text(value)}"
            for name, value in one.items()
            if name not in ("key", "state", "message", "traceback") and value is not None
        ]
        yield (
            f"<details><summary><code>{_text(str(one.get('key') or '–')[:12])}</code> "
            f'<span class="bad">{state}</span>{_text(what)}</summary>'
            f"{'<p>' + ', '.join(others) + '</p>' if others else ''}{body}</details>"
        )


def _runs(rows: Sequence[Row], fields: Sequence[str]) -> str:
    if not rows:
        return ""
    results = [
        name
        for name in ("test_accuracy", "train_loss", "steps_done", "seconds")
        if any(row.get(name) is not None for row in rows)
    ]

    def result(row: Row, name: str) -> str:
        if name in METRICS:
            return _metric(name, row.get(name))
        return "–" if row.get(name) is None else f"{row[name]:.6g}"

    lines = [
        [
            f"<code>{_text(str(row.get('key') or '')[:12])}</code>",
            _text(row["state"]),
            *(_value(name, row.get(name)) for name in fields),
            *(_number(result(row, name)) for name in results),
        ]
        for row in rows[:_RUNS]
    ]
    more = "" if len(rows) <= _RUNS else f", the first {_RUNS:,} of {len(rows):,}"
    return (
        f"<h2>Runs</h2>\n<details><summary>All runs{more}</summary>\n"
        f"{_table(['key', 'state', *fields, *map(_head, results)], lines)}\n</details>"
    )


__all__ = ["RULES", "STATES", "SweepResults", "report"]
