"""How long a sweep is going to take, from measured steps."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from nf_resnets.sweep.ledger import Ledger
from nf_resnets.sweep.programs import seconds_per_step
from nf_resnets.sweep.task import Resolved, Task
from nf_resnets.training.program import Program


@dataclasses.dataclass(frozen=True)
class Cost:
    """What the runs of a program cost.

    Attributes:
      run: the first of them.
      runs: how many are still to be made.
      seconds_per_step: of one run on the devices of one program, with its part of the tests.
      compile_seconds: of the program.
      known: whether it comes from runs that were made, not from a few steps made for it.
    """

    run: Resolved
    runs: int
    seconds_per_step: float
    compile_seconds: float
    known: bool

    @property
    def seconds(self) -> float:
        """Of all runs, one after another."""
        return self.compile_seconds + self.runs * self.run.num_steps * self.seconds_per_step


def estimate(
    programs: Mapping[str, tuple[Resolved, int]],
    ledger: Ledger | None,
    device: str,
    task: Task,
    build: Callable[[Resolved], Program],
    *,
    workers: int = 1,
    on_message: Callable[[str], Any] = lambda text: None,
) -> list[Cost]:
    """Says what programs cost: as measured by runs in the ledger, else by a few steps made now.

    As many programs are measured at a time as will be at work, since they share the cores.

    Args:
      programs: of each program one of its runs, and how many runs are still to be made.
      ledger: where measurements are looked up; nothing is written.
      device: the devices in words.
      task: what the runs are.
      build: compiles a program.
      workers: how many are at work at a time.
      on_message: hears what is being measured.
    """

    def cost(item: tuple[str, tuple[Resolved, int]]) -> Cost:
        name, (run, runs) = item
        known = ledger.measured(name, device) if ledger is not None else None
        if known is not None and known["seconds_per_step"]:
            seconds, compile_seconds = known["seconds_per_step"], known["compile_seconds"]
            return Cost(run, runs, seconds, compile_seconds, known=True)
        on_message(f"measuring {describe(run)}")
        start = time.perf_counter()
        program = build(run)
        states: Any = program.begin(program.empty(), 0, task.start(run))
        program.test(states)
        compile_seconds = time.perf_counter() - start
        tests = []
        for _ in range(3):
            start = time.perf_counter()
            program.test(states)
            tests.append(time.perf_counter() - start)
        every = min(run.steps_per_epoch * run.evaluate_every, run.num_steps)
        seconds = (
            seconds_per_step(program, task.start(run))
            + statistics.median(tests) / every / program.slots
        )
        return Cost(run, runs, seconds, compile_seconds, known=False)

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return list(pool.map(cost, programs.items()))


def total(costs: Sequence[Cost], workers: int) -> float:
    """Seconds of all runs, spread over workers; no shorter than the longest compilation."""
    if not costs:
        return 0.0
    longest = max(cost.compile_seconds for cost in costs)
    return max(sum(cost.seconds for cost in costs) / workers, longest)


def remember(ledger: Ledger, rows: Sequence[Mapping[str, Any]], programs: Mapping[str, Program],
             device: str) -> None:  # fmt: skip
    """Writes down what a step has cost, from the runs that this worker made."""
    times_of: dict[str, list[float]] = {}
    for row in rows:
        if row["state"] == "finished" and row["seconds"] and row["steps_done"]:
            times_of.setdefault(row["program"], []).append(row["seconds"] / row["steps_done"])
    for name, program in programs.items():
        times = times_of.get(name)
        if times:
            ledger.measure(
                name,
                device,
                runs_per_device=program.slots * len(program.mesh.devices[0]) // len(jax.devices()),
                seconds_per_step=statistics.median(times),
                compile_seconds=program.compile_seconds,
            )


def describe(run: Resolved) -> str:
    """A program in a few words."""
    settings = run.settings
    return f"{settings['model']}, {settings['scheme']}, batch {settings['batch_size']}"


__all__ = ["Cost", "describe", "estimate", "remember", "total"]
