"""The ledger of claims: `docs/claims.toml` with its numbers, read from `results/`.

`python -m docs.machinery.claims` writes `docs/claims.md`. No number of ours is typed: a claim names
them by terms, which are read whenever the page is written. A term is words in any order but the
first:

    test_accuracy%            the column, in per cent; `1-test_accuracy%` is an error
    scheme=fixup depth=1000   the rows: equal text or number; `step=46..50` is a range
    min, max, diverged        of all rows, not the mean over seeds; how many runs diverged
    best/peak_lr              the mean at the rate where it is highest; `argbest/peak_lr` that rate
    largest/peak_lr           the largest rate at which every run has half of the best mean
    ±error                    the spread is this column, not the standard deviation over seeds
    curves.csv, @NAME         another file than rows.csv, another folder than the claim's own
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import functools
import html
import io
import math
import re
import shlex
import statistics
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docs.machinery import results
from nf_resnets.sweep.select import optimum

ROOT = results.ROOT
RESULTS = ROOT / "results"
LIST = ROOT / "docs" / "claims.toml"
PAGE = ROOT / "docs" / "claims.md"
VERDICTS = ("shown", "in part", "not shown", "contradicted", "not run")
STATISTICS = {"mean": statistics.mean, "min": min, "max": max}
DATASETS = {
    "digits": "8x8 digits", "digits_jpeg": "digits streamed at 32 pixels", "cifar10": "CIFAR-10",
    "cifar10[:5000]": "5,000 images of CIFAR-10", "made": "generated sentences",
    "multi30k_translate/de-en": "Multi30k",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Number:
    """A number of ours."""

    value: float  # in per cent if so asked; NaN if every run diverged
    text: str  # as the page has it
    spread: float = 0.0
    steps: tuple[int, ...] = ()  # of the runs, or of the curves' last line


@dataclasses.dataclass(frozen=True)
class Claim:
    """A row of the page; the attributes are the keys of `docs/claims.toml`."""

    paper: str
    where: str  # section, figure or table
    claim: str  # quoted or closely paraphrased
    verdict: str
    published: str = ""
    experiment: str = ""  # of `experiments`, which carries it
    folder: str = ""  # in `results/`
    network: str = ""  # that was run here; by default those of its folders
    smaller: tuple[str, ...] = ()  # folders that are linked as well
    what: str = ""  # was measured, where the names of the numbers do not say it
    ours: dict[str, str] = dataclasses.field(default_factory=dict)  # terms, by name
    holds: str = ""  # the verdict's condition in Python of these names; x_sd: the spread of x
    tests: Sequence[str] = ()  # file::function, which carry what is exact
    note: str = ""

    @property
    def folders(self) -> list[str]:
        """The folders that its numbers are read from, its own first."""
        terms = self.ours.values()
        folders = [self.folder] if any("@" not in term for term in terms) else []
        named = [name for term in terms for name in re.findall(r"@(\S+)", term)]
        return list(dict.fromkeys([*folders, *named]))


def load(file: Path = LIST) -> dict[str, list[Claim]]:
    """The claims by section; what a section says holds for all of its claims that do not say it."""
    content = tomllib.loads(file.read_text())
    sections: dict[str, list[Claim]] = {}
    for section in content["section"]:
        defaults = {name: section[name] for name in section if name not in ("title", "claim")}
        sections[section["title"]] = claims = []
        for entry in section["claim"]:
            fields: dict[str, Any] = {**defaults, **entry}
            if "ours" in fields and "experiment" in fields:
                folder, *smaller = content["folders"][fields["experiment"]]
                fields = {"folder": folder, "smaller": tuple(smaller)} | fields
            claim = Claim(**fields)
            if not claim.network:
                networks = dict.fromkeys(content["networks"][each] for each in claim.folders)
                claim = dataclasses.replace(claim, network="; ".join(networks))
            claims.append(claim)
    return sections


def read(term: str, folder: str) -> Number:
    """Reads a number from a file of results.

    Raises:
      ValueError: if a word is not known, or no row is meant.
    """
    column, *words = shlex.split(term)
    file, statistic, filters, spread_of = "rows.csv", "mean", {}, ""
    for word in words:
        if word[0] == "@":
            folder = word[1:]
        elif "=" in word:
            filters.update([word.split("=", 1)])
        elif word[0] == "±":
            spread_of = word[1:]
        elif word.endswith(".csv"):
            file = word
        elif re.fullmatch(r"mean|min|max|diverged|(best|argbest|largest)/\w+", word):
            statistic = word
        else:
            raise ValueError(f"{word!r} found in the term {term!r}; expected what claims.py names.")
    name = column.rstrip("%").removeprefix("1-")
    rows = _rows(folder, file)
    rows = [row for row in rows if all(_is(row[key], wish) for key, wish in filters.items())]
    if not rows:
        raise ValueError(f"results/{folder}/{file} has no row for {term!r}.")
    at = ""
    if "/" in statistic:
        kind, axis = statistic.split("/")
        rows, rate = _at_rate(rows, name, axis, largest=kind == "largest")
        if kind != "best":
            return Number(rate, _rate(axis, rate), steps=_steps(rows))
        statistic, at = "mean", f" at {_rate(axis, rate)}"
    states = [row.get("status", row.get("state")) for row in rows]
    diverged = states.count("diverged")
    if statistic == "diverged":
        return Number(diverged, f"{diverged} of {len(rows)} diverged", steps=_steps(rows))
    values = _values(rows, name, by_seed=statistic == "mean")
    if not values:
        return Number(math.nan, f"diverged ({diverged} of {len(rows)})")
    factor = 100 if column.endswith("%") else 1
    value = STATISTICS[statistic](values)
    value = factor * (1 - value if column.startswith("1-") else value)
    spread, notes = math.nan, []
    if spread_of:
        spread = factor * float(rows[0][spread_of])
    elif len(values) > 1 and statistic == "mean":
        spread, notes = factor * statistics.stdev(values), [f"{len(values)} runs"]
    notes += [f"{diverged} diverged"] if diverged else []
    text = _text(value, spread, factor > 1) + (f" ({', '.join(notes)})" if notes else "") + at
    return Number(value, text, 0.0 if math.isnan(spread) else spread, _steps(rows))


def numbers(claim: Claim) -> dict[str, Number]:
    """Its numbers, after its condition has been found to hold.

    Raises:
      ValueError: if the verdict has no ground, or one that the rows do not carry.
    """
    name = f"{claim.paper}, {claim.where}: {claim.claim[:60]!r}"
    grounds = bool(claim.holds or claim.tests)
    if (
        claim.verdict not in VERDICTS
        or grounds == (claim.verdict == "not run")
        or (grounds and claim.ours and not claim.holds)
    ):
        raise ValueError(f"{name} is {claim.verdict!r} with the condition {claim.holds!r}.")
    ours = {each: read(term, claim.folder) for each, term in claim.ours.items()}
    if claim.holds:
        names: dict[str, Any] = {each: number.value for each, number in ours.items()}
        names |= {f"{each}_sd": number.spread for each, number in ours.items()}
        names |= {"fails": fails, "abs": abs, "max": max, "min": min, "__builtins__": {}}
        if not eval(claim.holds, names):
            values = ", ".join(f"{each} = {number.text}" for each, number in ours.items())
            raise ValueError(f"{name} is {claim.verdict!r} if {claim.holds}, with {values}.")
    return ours


def fails(percent: float) -> bool:
    """Whether an accuracy is that of a network that diverged or guesses one of ten classes."""
    return math.isnan(percent) or percent <= 13


def totals(sections: dict[str, list[Claim]], paper: str = "") -> str:
    """How many claims have which verdict, of one paper or of all."""
    counts = collections.Counter(
        claim.verdict for claims in sections.values() for claim in claims
        if paper in ("", claim.paper)
    )  # fmt: skip
    parts = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS]
    return f"{counts.total()} claims: {', '.join(parts)}"


def page(sections: dict[str, list[Claim]]) -> str:
    """The page, in Markdown: a line a claim, which unfolds."""
    commands = {result.name: result.command for result in results.committed()}
    papers = dict.fromkeys(claim.paper for claims in sections.values() for claim in claims)
    parts = ["# Claims", f"**{totals(sections)}.**"]
    parts += ["\n".join(f"- {paper}: {totals(sections, paper)}" for paper in papers)]
    parts += ["A claim unfolds to the published number, ours, and what makes it again."]
    introduction = tomllib.loads(LIST.read_text())["introduction"].strip()
    parts += [f"<details>\n<summary>What the verdicts and the numbers mean</summary>\n\n"
              f"{introduction}\n\n</details>"]  # fmt: skip
    for title, claims in sections.items():
        parts += [f"## {title}", *(_folded(claim, commands) for claim in claims)]
    return "\n\n".join(parts) + "\n"


def _folded(claim: Claim, commands: dict[str, str]) -> str:
    ours = numbers(claim)
    lines = [claim.note, f"Published: {claim.published}" if claim.published else ""]
    if ours:
        words = ", ".join(f"`{name}` {number.text}" for name, number in ours.items())
        lines.append(f"Here: {words} ({_scale(claim, ours)}).")
    files = dict.fromkeys(["rows.csv", *re.findall(r"\S+\.csv", " ".join(claim.ours.values()))])
    smaller = claim.smaller if claim.folder in claim.folders else ()
    folders = dict.fromkeys([*claim.folders, *smaller])
    for folder in folders:
        there = [file for file in files if (RESULTS / folder / file).exists()]
        links = ", ".join(f"[{file}](../results/{folder}/{file})" for file in there)
        lines.append(f"`{commands[folder]}`: {links}")
    if not folders and claim.experiment and claim.verdict == "not run":
        lines.append(f"`python -m experiments.{claim.experiment} --scale paper`")
    tests = [f"[{test.split('::')[1]}](../{test.split('::')[0]})" for test in claim.tests]
    lines.append("Tests: " + ", ".join(tests) if tests else "")
    items = "\n".join(f"- {' '.join(line.split())}" for line in lines if line)
    summary = re.sub(
        r"`(.+?)`", r"<code>\1</code>", html.escape(" ".join(claim.claim.split()), False)
    )
    return (
        f'<details class="claim" data-verdict="{claim.verdict}" data-paper="{claim.paper}">\n'
        f"<summary><b>{claim.verdict}</b> {summary} <i>{html.escape(claim.where, False)}</i>"
        f"</summary>\n\n{items}\n\n</details>"
    )


def _scale(claim: Claim, ours: dict[str, Number]) -> str:
    """What was run: network, data, and the fewest and the most steps."""
    parts = [claim.network, claim.what]
    for folder in claim.folders:
        settings = results.read_committed(RESULTS / folder / "settings.json")
        parts += [DATASETS.get(name, name) for name in re.findall(r'"dataset": "(.+?)"', settings)]
    steps = sorted({step for number in ours.values() for step in number.steps})
    if steps:
        ends = dict.fromkeys([steps[0], steps[-1]])
        parts.append(" to ".join(f"{step:,}" for step in ends) + " steps")
    return ", ".join(filter(None, dict.fromkeys(parts)))


@functools.cache
def _rows(folder: str, file: str) -> list[dict[str, str]]:
    text = results.read_committed(RESULTS / folder / file)
    return list(csv.DictReader(io.StringIO(text, newline="")))


def _is(cell: str, wish: str) -> bool:
    try:
        low, is_range, high = wish.partition("..")
        return float(low) <= float(cell) <= float(high or ("inf" if is_range else low))
    except ValueError:
        return cell == wish


def _at_rate(
    rows: list[dict[str, str]], column: str, axis: str, *, largest: bool
) -> tuple[list[dict[str, str]], float]:
    """The runs at the best rate, as tables choose it, or at the largest that trains all."""
    groups = collections.defaultdict(list)
    for row in rows:
        groups[float(row[axis])].append(row)
    values = {rate: _values(each, column, by_seed=False) for rate, each in groups.items()}
    if largest:
        trains = max((statistics.mean(each) for each in values.values() if each), default=0) / 2
        rates = [
            rate
            for rate, each in values.items()
            if len(each) == len(groups[rate]) and min(each) > trains
        ]
        if not rates:
            raise ValueError(f"no {axis} trains all runs of {rows[0]}.")
        return groups[max(rates)], max(rates)
    summary = optimum(
        {"peak_lr": rate, "seed": at, "state": "finished", "test_accuracy": value}
        for rate, each in groups.items()
        # NaN for each run that diverged.
        for at, value in enumerate(values[rate] + [math.nan] * (len(each) - len(values[rate])))
    )
    return (rows, math.nan) if summary.best is None else (groups[summary.best], summary.best)


def _values(rows: list[dict[str, str]], column: str, *, by_seed: bool) -> list[float]:
    """Those that are numbers; by seed, the mean of each seed's."""
    seeds = collections.defaultdict(list)
    for at, row in enumerate(rows):
        if row[column] and math.isfinite(value := float(row[column])):
            seeds[row.get("seed", at) if by_seed else at].append(value)
    return [statistics.mean(each) for each in seeds.values()]


def _steps(rows: list[dict[str, str]]) -> tuple[int, ...]:
    """Of the runs that did not diverge, or the last step of the lines of curves."""
    if "step" in rows[0]:
        return (max(int(row["step"]) for row in rows),)
    done = [row for row in rows if row.get("status", row.get("state")) == "finished"]
    return tuple(int(row.get("steps_done", row["steps"])) for row in done)


def _rate(axis: str, rate: float) -> str:
    if axis.startswith("log2_"):
        return f"2^{rate:g}"
    power = math.log2(rate)
    return f"2^{power:g}" if axis.endswith("_lr") and power.is_integer() else f"{axis} {rate:g}"


def _text(value: float, spread: float, percent: bool) -> str:
    parts = [value] if math.isnan(spread) else [value, spread]
    if not percent:
        return " ± ".join(f"{float(f'{part:.3g}'):,g}" for part in parts)
    return " ± ".join(f"{part:.{1 if value >= 10 else 2}f}" for part in parts) + "%"


if __name__ == "__main__":
    ledger = load()
    PAGE.write_text(page(ledger))
    print(f"{PAGE.relative_to(ROOT)}: {totals(ledger)}", file=sys.stderr)
