"""What a training shows: a spinner and a bar in a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping

import rich.live
from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nf_resnets.training.compiling import Compiling, duration_text
from nf_resnets.training.progress import Progress


class Display:
    """Shows how one training gets on; a context manager that begins before it is compiled.

    Args:
      name: of the network.
      every: steps between two lines, and after the last step.
      shown: the metrics to show, by what they are called; accuracies are in percent.
      console: where to; standard output by default.
    """

    def __init__(
        self, name: str, every: int, shown: Mapping[str, str], console: Console | None = None
    ) -> None:
        self._console = console or Console()
        there = self._console.file.isatty() or console is not None
        self._in_terminal = (
            there and self._console.is_terminal and not self._console.is_dumb_terminal
        )
        self._every, self._shown = every, shown
        self._compiling = Compiling(name)
        self._sums: dict[str, float] = dict.fromkeys(shown, 0.0)
        self._count = self._step = self._steps = self._first = 0
        self._since = 0.0
        self._means = ""
        self._live = rich.live.Live(
            console=self._console, get_renderable=self._frame, transient=True,
            refresh_per_second=4, redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip

    def __enter__(self) -> Display:
        if self._in_terminal:
            self._live.start()
            self._console.show_cursor(True)  # a process that is killed cannot bring it back
        else:
            self._print(f"Compiling {self._compiling.name}")
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def on_begin(self, run: Progress) -> None:
        """A training begins, or goes on from a checkpoint, maybe between two lines."""
        for step in range(run.step - run.step % self._every, run.step):
            self._add(run.row(step))

    def _add(self, metrics: Mapping[str, float]) -> None:
        self._count += 1
        for name in self._sums:
            self._sums[name] += metrics[name]

    def on_step(self, step: int, steps: int, metrics: Mapping[str, float]) -> None:
        """A step was made."""
        if not self._step:
            self._first, self._since = step, time.monotonic()
        self._step, self._steps = step, steps
        self._add(metrics)
        self._means = ", ".join(
            f"{words} {self._text(name, self._sums[name] / self._count)}"
            for name, words in self._shown.items()
        )
        if step % self._every == 0 or step == steps:
            left = self._left(time.monotonic())
            end = f"; {duration_text(left)} left" if left and not self._in_terminal else ""
            self._print(f"  step {step:>{len(str(steps))}} of {steps}: {self._means}{end}")
            self._sums, self._count = dict.fromkeys(self._sums, 0.0), 0

    def _left(self, now: float) -> float | None:
        made = self._step - self._first
        return (now - self._since) / made * (self._steps - self._step) if made else None

    @staticmethod
    def _text(name: str, value: float) -> str:
        return f"{value:.1%}" if name == "accuracy" else f"{value:.3f}"

    def _print(self, line: str) -> None:
        if self._in_terminal:
            self._console.print(Text(line))
        else:
            # Not through rich, which would break lines at 80 columns.
            print(line, file=self._console.file, flush=True)

    def _frame(self) -> RenderableType:
        now = time.monotonic()
        if not self._step:
            return Text(self._compiling.text(now), no_wrap=True, overflow="ellipsis")
        left = self._left(now)
        words = [f"{self._step}/{self._steps}", self._means]
        if self._step == self._steps:
            words.insert(1, "testing")
        elif left is not None:
            words.insert(1, f"{duration_text(left)} left")
        grid, wide = Table.grid(padding=(0, 2, 0, 0)), min(self._console.width // 4, 30)
        grid.add_column(width=wide)
        grid.add_column(no_wrap=True, overflow="ellipsis")
        grid.add_row(ProgressBar(self._steps, self._step, width=wide), Text("  ".join(words)))
        return grid


__all__ = ["Display"]
