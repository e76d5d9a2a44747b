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
from nf_resnets.sweep.program import Plan, Program
from nf_resnets.sweep.together import seconds_per_step


@dataclasses.dataclass(frozen=True)
class Cost:
    """What the runs of a program cost.

    Attributes:
      plan: of the first of them.
      runs: how many are still to be made.
      seconds_per_step: of one run on the devices of one lane, with its share of the tests.
      compile_seconds: of the program.
      known: whether it comes from runs that were made, not from a few steps made for it.
    """

    plan: Plan
    runs: int
    seconds_per_step: float
    compile_seconds: float
    known: bool

    @property
    def seconds(self) -> float:
        """Of all runs, one after another."""
        return self.compile_seconds + self.runs * self.plan.num_steps * self.seconds_per_step


def estimate(
    programs: Mapping[str, tuple[Plan, int]],
    ledger: Ledger | None,
    device: str,
    build: Callable[[Plan], Program],
    *,
    lanes: int = 1,
    told: Callable[[str], Any] = lambda text: None,
) -> list[Cost]:
    """Says what programs cost: as measured by runs in the ledger, else by a few steps made now.

    As many programs are measured at a time as lanes will be at work, since they share the cores.

    Args:
      programs: of each program one of its plans, and how many runs are still to be made.
      ledger: where measurements are looked up; nothing is written.
      device: the devices in words.
      build: compiles a program.
      lanes: how many are at work at a time.
      told: is told what is being measured.
    """

    def cost(item: tuple[str, tuple[Plan, int]]) -> Cost:
        name, (plan, runs) = item
        known = ledger.measured(name, device) if ledger is not None else None
        if known is not None and known["seconds_per_step"]:
            seconds, compile_seconds = known["seconds_per_step"], known["compile_seconds"]
            return Cost(plan, runs, seconds, compile_seconds, known=True)
        told(f"measuring {describe(plan)}")
        start = time.perf_counter()
        program = build(plan)
        states: Any = program.begin(program.empty(), 0, plan.settings)
        program.test(states)
        compile_seconds = time.perf_counter() - start
        tests = []
        for _ in range(3):
            start = time.perf_counter()
            program.test(states)
            tests.append(time.perf_counter() - start)
        every = min(plan.steps_per_epoch * plan.settings.evaluate_every, plan.num_steps)
        seconds = seconds_per_step(program) + statistics.median(tests) / every / program.slots
        return Cost(plan, runs, seconds, compile_seconds, known=False)

    with concurrent.futures.ThreadPoolExecutor(lanes) as pool:
        return list(pool.map(cost, programs.items()))


def total(costs: Sequence[Cost], lanes: int) -> float:
    """Seconds of all runs, spread over lanes; no shorter than the longest program's compilation."""
    if not costs:
        return 0.0
    longest = max(cost.compile_seconds for cost in costs)
    return max(sum(cost.seconds for cost in costs) / lanes, longest)


def remember(ledger: Ledger, rows: Sequence[Mapping[str, Any]], programs: Sequence[Program],
             device: str) -> None:  # fmt: skip
    """Writes down what a step has cost, from the runs that this worker made."""
    times_of: dict[str, list[float]] = {}
    for row in rows:
        if row["state"] == "finished" and row["seconds"] and row["steps_done"]:
            times_of.setdefault(row["program"], []).append(row["seconds"] / row["steps_done"])
    for program in programs:
        name = program.plan.program
        times = times_of.get(name)
        if times:
            ledger.measure(
                name,
                device,
                runs_per_device=program.slots * len(program.mesh.devices[0]) // len(jax.devices()),
                seconds_per_step=statistics.median(times),
                compile_seconds=program.compile_seconds,
            )


def describe(plan: Plan) -> str:
    """A program in a few words."""
    settings = plan.settings
    return f"{settings.model}, {settings.scheme}, batch {settings.batch_size}"


__all__ = ["Cost", "describe", "estimate", "remember", "total"]
