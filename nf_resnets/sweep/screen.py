"""The table of a running sweep, as large as the terminal allows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nf_resnets.sweep.settings import FIELDS
from nf_resnets.sweep.words import SHORT, duration_text, percent, value_text

OVER = {"finished": "finished", "diverged": "diverged", "failed": "failed", "oom": "out of memory"}
"""The states of runs that are over, in words."""

_BAR = 10


@dataclasses.dataclass
class Running:
    """A run that is going on.

    Attributes:
      label: what it is called.
      settings: of the run.
      step: steps made.
      num_steps: steps of the whole run.
      loss: of the last step.
      accuracy: of the last test.
    """

    label: str
    settings: Mapping[str, Any]
    step: int
    num_steps: int
    loss: float | None = None
    accuracy: float | None = None


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """A sweep at one moment.

    Attributes:
      axes: of each swept setting its values.
      names: the settings that have a column each.
      total: runs of the grid.
      counts: of each state of :data:`OVER` the runs in it.
      elsewhere: runs that other workers are making.
      running: the runs that are going on here.
      compiling: programs in words, and for how many seconds they have been compiled.
      best: of each scheme and batch size the best so far, in words.
      elapsed: seconds since the start.
      left: seconds to go, None if nobody can tell.
    """

    axes: Mapping[str, tuple[Any, ...]]
    names: tuple[str, ...]
    total: int
    counts: Mapping[str, int]
    elsewhere: int
    running: Sequence[Running]
    compiling: Sequence[tuple[str, float]]
    best: Mapping[tuple[str, int], str]
    elapsed: float
    left: float | None

    @property
    def over(self) -> int:
        """Runs that are over."""
        return sum(self.counts.values())

    @property
    def to_go(self) -> int:
        """Runs that nobody has begun."""
        return max(0, self.total - self.over - len(self.running) - self.elsewhere)


def picture(now: Snapshot, console: Console) -> RenderableType:
    """Draws a sweep; never more lines or columns than the terminal has.

    Args:
      now: what to draw.
      console: for which.
    """
    width, height = console.size
    counts = Text(_counts(now))
    room = height - 3 - len(counts.wrap(console, max(width, 1)))
    compiling = [
        f"compiling {words or 'the program'}, {duration_text(seconds)}"
        for words, seconds in now.compiling
    ]
    if len(compiling) > 2:
        compiling[2:] = [f"and {len(compiling) - 2} more"]
    if room <= len(compiling):
        compiling = []
    room -= len(compiling)
    # Above each of the two tables stand an empty line and its heading.
    best, best_lines = _best(now, width, max(room // 2, room - len(now.running) - 2))
    room -= best_lines
    parts: list[RenderableType] = [_bar(now, width), counts]
    if now.running and room > 2:
        parts += [Text(), _running(now, width, room - 2)]
    parts += [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in compiling]
    if best is not None:
        parts += [Text(), best]
    return Group(*parts)


def _counts(now: Snapshot) -> str:
    parts = [f"{count} {OVER[state]}" for state, count in now.counts.items() if count]
    parts += [f"{len(now.running)} running"] * bool(now.running)
    parts += [f"{now.elsewhere} at other workers"] * bool(now.elsewhere)
    return ", ".join([*parts, f"{now.to_go} to go"])


def _bar(now: Snapshot, width: int) -> RenderableType:
    texts = [f"{now.over}/{now.total}", f"{duration_text(now.elapsed)} so far"]
    if now.over < now.total:
        texts.append(f"{'?' if now.left is None else duration_text(now.left)} left")
    line = "  ".join(texts)
    room = min(width - len(line) - 2, 40)
    if room < _BAR:
        return Text(line, no_wrap=True, overflow="ellipsis")
    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_row(ProgressBar(max(now.total, 1), now.over, width=room), Text(line, no_wrap=True))
    return row


def _running(now: Snapshot, width: int, room: int) -> RenderableType:
    running, names = now.running, now.names
    table = _plain_table()
    shown = running if len(running) <= room else running[: max(room - 1, 0)]
    steps = [f"{run.step}/{run.num_steps}" for run in shown]
    ends = [("" if run.loss is None else f"{run.loss:.3g}", percent(run.accuracy)) for run in shown]
    columns = [[value_text(name, run.settings[name]) for run in shown] for name in names]
    heads = [SHORT.get(name, name) for name in names]
    fixed = max(map(len, [*steps, "step"])) + 2 + 8 + 2 + 6
    wanted = sum(
        max(map(len, [head, *column])) + 2 for head, column in zip(heads, columns, strict=True)
    )
    room_for_bar = width - fixed - (_BAR + 2)
    with_bar = wanted <= room_for_bar or room_for_bar >= 30
    left = room_for_bar if with_bar else width - fixed
    if wanted > left or not names:
        # Too narrow for a column each: all in one, cut where the space ends.
        heads = ["run"]
        columns = [[run.label for run in shown]]
        longest = max(map(len, columns[0]), default=0)
        table.add_column(
            "run", no_wrap=True, overflow="ellipsis", width=max(min(longest, left - 2), 1)
        )
    else:
        for head, name in zip(heads, names, strict=True):
            numeric = FIELDS[name][0] in (int, float)
            table.add_column(Text(head), no_wrap=True, justify="right" if numeric else "left")
    if with_bar:
        table.add_column("", width=_BAR)
    table.add_column("step", no_wrap=True, justify="right")
    table.add_column("loss", no_wrap=True, justify="right", min_width=8)
    table.add_column("test", no_wrap=True, justify="right", min_width=6)
    for place, run in enumerate(shown):
        bar = [ProgressBar(max(run.num_steps, 1), run.step, width=_BAR)] if with_bar else []
        table.add_row(
            *(Text(column[place]) for column in columns),
            *bar,
            Text(steps[place]),
            *map(Text, ends[place]),
        )
    if len(shown) < len(running):
        more = Text(f"and {len(running) - len(shown)} more", style="dim")
        return Group(table, more)
    return table


def _best(now: Snapshot, width: int, room: int) -> tuple[RenderableType | None, int]:
    """The best so far: schemes against batch sizes whichever way it fits, else as a list."""
    best = now.best
    schemes = _there((scheme for scheme, _ in best), now.axes.get("scheme", ()))
    batches = _there((batch for _, batch in best), now.axes.get("batch_size", ()))
    if not best or room < 3:
        return None, 0
    by_scheme = [
        ["best so far", *(f"batch {batch}" for batch in batches)],
        *([s, *(best.get((s, b), "") for b in batches)] for s in schemes),
    ]
    by_batch = [
        ["best so far", *schemes],
        *([f"batch {b}", *(best.get((s, b), "") for s in schemes)] for b in batches),
    ]
    folded = _folded(
        [(s, b, best[s, b]) for s in schemes for b in batches if (s, b) in best], width
    )
    cells = next(
        (
            cells
            for cells in (by_scheme, by_batch)
            if _width(cells) <= width and len(cells) + 1 <= room
        ),
        folded,
    )
    if len(cells) + 1 > room:
        left_out = sum(any(row) for row in cells[room - 2 :])
        cells = cells[: room - 2]
        cells.append([f"and {left_out} more lines"] + [""] * (len(cells[0]) - 1))
    table = _plain_table()
    for place, head in enumerate(cells[0]):
        table.add_column(
            Text(head),
            no_wrap=True,
            overflow="ellipsis",
            justify="left" if place == 0 or head == "best so far" else "right",
        )
    for row in cells[1:]:
        table.add_row(*map(Text, row))
    return table, len(cells) + 1


def _there(values: Iterable[Any], axis: tuple[Any, ...]) -> list[Any]:
    """Each value once, in the axis's order, others behind in order."""
    found = set(values)
    return [each for each in axis if each in found] + sorted(found - set(axis))


def _width(cells: list[list[str]]) -> int:
    columns = zip(*cells, strict=True)
    return sum(max(map(len, column)) + 2 for column in columns) - 2


def _folded(best: list[tuple[str, int, str]], width: int) -> list[list[str]]:
    """A list in as many columns as there is space for, each read from top to bottom."""
    head = ["best so far", "batch", ""]
    rows = [[scheme, str(batch), text] for scheme, batch, text in best]
    columns = max(1, (width + 2) // (_width([head, *rows]) + 2))
    height = -(-len(rows) // columns)
    columns = -(-len(rows) // height)
    cells = [head * columns]
    for place in range(height):
        line = rows[place::height]
        cells.append([cell for row in line for cell in row] + ["", "", ""] * (columns - len(line)))
    return cells


def _plain_table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


__all__ = ["OVER", "Running", "Snapshot", "picture"]
