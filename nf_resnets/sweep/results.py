"""What a sweep shows when it ends: best rates, figures, table, report, and how long it took."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nf_resnets import plotting, schemes
from nf_resnets.places import whole_file
from nf_resnets.sweep.options import Options, parse_target
from nf_resnets.sweep.regimes import regimes_of
from nf_resnets.sweep.select import Row, grouped, optima
from nf_resnets.sweep.settings import FIELDS, axis_text, label
from nf_resnets.sweep.targets import steps_to_target
from nf_resnets.training.display import counted


@dataclasses.dataclass(frozen=True)
class Result:
    """What there is of a sweep when its command ends."""

    rows: list[dict[str, Any]]  # of the grid's runs that are over
    axes: Mapping[str, Sequence[Any]]  # with the rates that were added
    base: Mapping[str, Any]  # the other settings that are not the defaults
    counts: Mapping[str, int]  # of the runs in each state
    exit_code: int  # 0; 1 if runs failed; 143 and the like after a signal
    compiled: int  # programs
    makers: Sequence[Mapping[str, Any]]  # devices and versions, how many of the runs they made
    chance: float | None = None  # the accuracy of guessing, where all data have as many classes


def makers(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """On what devices and with which versions runs were made, how many, and when."""
    by_machine: dict[str, dict[str, Any]] = {}
    for row in rows:
        what = dict(row.get("made", {}))
        date = what.pop("date", "")
        maker = by_machine.setdefault(
            json.dumps(what, sort_keys=True), {"first": date, **what, "last": date, "runs": 0}
        )
        maker["first"], maker["last"] = min(maker["first"], date), max(maker["last"], date)
        maker["runs"] += 1
    return list(by_machine.values())


METRICS = ("test_accuracy", "train_loss")

STOPPED = "Stopped; all runs are kept where they stood, and the same command goes on."


def states_in_words(counts: Mapping[str, int]) -> str:
    """How many runs are in each state, on one line."""
    return ", ".join(f"{number:,} {state}" for state, number in counts.items() if number)


def draw(result: Result, folder: Path, *, title: str, target: str = "") -> list[str]:
    """Chooses the best rates, fits the regimes, draws everything; returns the files' names."""
    rows, axes = result.rows, result.axes
    if not rows:
        return []
    fields = [name for name in axes if name not in ("peak_lr", "seed")]
    by = list(dict.fromkeys(["scheme", *fields, "batch_size"]))
    best = [one for metric in METRICS for one in optima(rows, metric=metric, by=by)]
    sizes = len(axes.get("batch_size", ())) > 1
    fits = regimes_of(best) if sizes else []
    goal = parse_target(target)
    reached = steps_to_target(rows, goal[1], metric=goal[0], by=by) if goal else []
    results = plotting.SweepResults(
        title=title,
        subtitle=in_one_line(rows, axes, result.base),
        rows=rows,
        optima=[dataclasses.asdict(one) for one in best],
        regimes=[dataclasses.asdict(fit) for fit in fits],
        chance=result.chance,
        command=command_of(axes, result.base),
        facts={f"{maker['runs']} runs made": maker for maker in result.makers},
        names={name: schemes.get(name).title for name in {row["scheme"] for row in rows}},
        settings=[name for name in FIELDS if name in rows[0]],
        targets=[dataclasses.asdict(one) for one in reached],
    )
    return plotting.sweep_figures(folder, results)


def command_of(axes: Mapping[str, Sequence[Any]], base: Mapping[str, Any]) -> str:
    """A command that makes the same runs, its settings as axes of one value.

    Example:
      >>> command_of({"scheme": ("fixup",), "peak_lr": (0.25, 0.5)}, {"epochs": 2.0})
      "nf-resnets sweep --grid scheme=fixup 'peak_lr=2^-2,2^-1' epochs=2.0"
    """
    named = {**axes, **{name: (value,) for name, value in base.items()}}
    words = (axis_text(name, values) for name, values in named.items())
    return shlex.join(["nf-resnets", "sweep", "--grid"]) + " " + " ".join(map(shlex.quote, words))


def in_one_line(
    rows: Sequence[Row], axes: Mapping[str, Sequence[Any]], base: Mapping[str, Any]
) -> str:
    """The settings that all runs share, and the seeds that each point has a row of, on one line."""
    shown = ["model", "dataset", "steps" if rows[0]["steps"] else "epochs", *base]
    named = ("seed", "batch_size", "peak_lr", "scheme", *axes)  # in the figure, or here
    points = grouped(rows, [name for name in axes if name != "seed"]).values()
    seeds = sorted({len(point) for point in points})
    text = " to ".join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))
    shared = label(rows[0], [name for name in dict.fromkeys(shown) if name not in named])
    return ", ".join(filter(None, [shared, f"{text} seed{'s'[: seeds[-1] != 1]}"]))


def finish(result: Result, options: Options, *, title: str) -> int:
    """Draws everything, prints the table and the last words; returns the exit code.

    Raises:
      OSError: if a file cannot be written; the runs are kept.
    """
    folder = options.out.expanduser()
    try:
        files = draw(result, folder, title=title, target=options.target)
        _write_settings(result, folder)
    except OSError as error:
        raise OSError(f"{error}; the runs are kept, and the same command goes on.") from error
    print()
    if "table.txt" in files:
        print((folder / "table.txt").read_text())
    print(states_in_words(result.counts))
    if result.rows and result.counts.get("diverged") == len(result.rows):
        print("All runs diverged: lower the learning rates.")
    print(f"{counted(result.compiled, 'program')} compiled.")
    print(f"In {folder.resolve()}:")
    for file in [
        *files,
        "settings.json",
        "rows.csv",
        f"rows-{options.shard[0]}-of-{options.shard[1]}.jsonl",
    ]:
        if (folder / file).is_file():
            print(f"  {file}")
    if result.exit_code == 1:
        print("Failed runs are in the report with their tracebacks; --retry tries them again.")
    if result.exit_code > 1:
        print(STOPPED)
    return result.exit_code


def _write_settings(result: Result, folder: Path) -> None:
    """Keeps the grid, and on what its runs were made."""
    record: dict[str, Any] = {
        "grid": {name: list(values) for name, values in result.axes.items()},
        "settings": dict(result.base),
        "made": list(result.makers),
        "runs": {state: n for state, n in result.counts.items() if n},
    }
    with whole_file(folder / "settings.json") as new:
        new.write_text(json.dumps(record, indent=2) + "\n")
