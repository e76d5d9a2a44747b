"""From the rows of a sweep to what a person looks at: table, figures, report, last words."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nf_resnets import data, plotting, schemes
from nf_resnets.sweep.command import STOPPED, Made, Options, states_in_words
from nf_resnets.sweep.selection import Rule, optima, regimes_of
from nf_resnets.sweep.words import duration_text, value_text

METRICS = ("test_accuracy", "train_loss")


def draw(
    rows: Sequence[Mapping[str, Any]],
    folder: Path,
    *,
    axes: Mapping[str, Sequence[Any]],
    base: Mapping[str, Any],
    title: str,
    chance: float | None = None,
    failures: Mapping[str, str] | None = None,
    makers: Sequence[Mapping[str, Any]] = (),
    rule: Rule = "strict",
) -> list[str]:
    """Chooses the best rates, fits the regimes, and draws everything into a folder.

    Args:
      rows: of the runs, as a ledger has them.
      folder: where to.
      axes: the grid.
      base: the other settings that are not the defaults.
      title: what the sweep is.
      chance: the accuracy of guessing, 0 to 1.
      failures: the tracebacks of failed runs, by key.
      makers: on what and with which versions the runs were made.
      rule: how rates are compared of which some seeds diverged.

    Returns:
      The names of the files; none if there is no run.
    """
    if not rows:
        return []
    fields = [name for name in axes if name not in ("peak_lr", "seed")]
    by = list(dict.fromkeys(["scheme", *fields, "batch_size"]))
    best = [one for metric in METRICS for one in optima(rows, metric=metric, by=by, rule=rule)]
    fits = regimes_of(best) if len(axes.get("batch_size", ())) > 1 else []
    names = {name: schemes.get(name).title for name in {row["scheme"] for row in rows}}
    plain_best = [dataclasses.asdict(one) for one in best]
    plain_fits = [dataclasses.asdict(fit) for fit in fits]
    tracebacks = failures or {}
    files = plotting.sweep_figures(
        folder,
        title=title,
        subtitle=in_one_line(rows[0], axes, base),
        rows=rows,
        optima=plain_best,
        regimes=plain_fits,
        chance=chance,
        facts={f"{maker['runs']} runs made": maker for maker in makers},
        failures=[
            {"key": row["key"], "state": row["state"], "message": row["message"],
             "traceback": tracebacks.get(row["key"], "")}
            for row in rows
            if row["state"] in ("failed", "oom")
        ],
        names=names,
    )  # fmt: skip
    return files


def in_one_line(
    row: Mapping[str, Any], axes: Mapping[str, Sequence[Any]], base: Mapping[str, Any]
) -> str:
    """The settings that all runs share, as far as they matter, on one line."""
    budget = f"{row['steps']:,} steps" if row["steps"] else f"{row['epochs']:g} epochs"
    seeds = len(axes.get("seed", (0,)))
    words = [
        "" if "model" in axes else row["model"],
        "" if "dataset" in axes else f"on {row['dataset']}",
        "" if {"epochs", "steps"} & set(axes) else budget,
        f"{seeds} seed{'s' if seeds > 1 else ''}",
    ]
    shown = ("model", "dataset", "epochs", "steps", "seed", "batch_size", "peak_lr", "scheme")
    words += [f"{n} {value_text(n, value)}" for n, value in base.items() if n not in shown]
    return ", ".join(word for word in words if word)


def finish(made: Made, options: Options, base: Mapping[str, Any], *, title: str) -> int:
    """Draws everything, prints the table and the last words; returns the exit code.

    Args:
      made: what the command made.
      options: of the command line.
      base: the settings that are not the defaults.
      title: what the sweep is.
    """
    datasets = {row["dataset"] for row in made.rows}
    chance = None
    if len(datasets) == 1:
        chance = 1 / data.load(datasets.pop(), options.data_dir).num_classes
    files = draw(
        made.rows,
        options.out,
        axes=made.axes,
        base=base,
        title=title,
        chance=chance,
        failures=made.failures,
        makers=made.makers,
        rule=options.best,
    )
    _write_settings(made, options.out, base)
    print()
    if "table.txt" in files:
        print((options.out / "table.txt").read_text())
    print(states_in_words(made.counts))
    if made.rows and made.counts.get("diverged") == len(made.rows):
        print("All runs diverged: lower the learning rates.")
    print(_time(made))
    print(f"In {options.out.resolve()}:")
    for file in [*files, "settings.json", "rows.csv", *([] if options.ledger else ["ledger.db"])]:
        print(f"  {file}")
    if made.exit_code == 1:
        print("Failed runs are in the report with their tracebacks; --retry tries them again.")
    if made.exit_code > 1:
        print(STOPPED)
    return made.exit_code


def _write_settings(made: Made, folder: Path, base: Mapping[str, Any]) -> None:
    """Keeps the grid, on what its runs were made, and what the last driver spent."""
    record: dict[str, Any] = {
        "grid": {name: list(values) for name, values in made.axes.items()},
        "settings": dict(base),
        "made": made.makers,
        "runs": dict(made.counts),
    }
    if made.compiled:
        # A start that finds all done has nothing to say of what it took.
        seconds = made.clock.seconds()
        record["seconds"] = {kind: round(spent, 1) for kind, spent in seconds.items()}
        record["cores"] = os.cpu_count()
    elif (folder / "settings.json").exists():
        before = json.loads((folder / "settings.json").read_text())
        record |= {name: before[name] for name in ("seconds", "cores") if name in before}
    new = folder / f".settings-{os.getpid()}.json"
    new.write_text(json.dumps(record, indent=2) + "\n")
    new.replace(folder / "settings.json")


def _time(made: Made) -> str:
    seconds = made.clock.seconds()
    computing, compiling = (duration_text(seconds[kind]) for kind in ("computing", "compiling"))
    programs = f"{made.compiled} program{'' if made.compiled == 1 else 's'}"
    text = f"{computing} of computing, {compiling} of compiling {programs}"
    if seconds["computing"]:
        text += f"; {100 * made.clock.share_outside():.1f}% of the time outside compiled functions"
    return text + "."


__all__ = ["METRICS", "draw", "finish", "in_one_line"]
