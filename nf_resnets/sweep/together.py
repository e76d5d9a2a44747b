"""How many runs a device carries at a time: measured, and remembered in the ledger."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from nf_resnets.sweep.ledger import Ledger
from nf_resnets.sweep.program import Plan, Program

CANDIDATES = (1, 2, 4, 8, 16)
GAIN = 1.1
"""Twice as many runs must be faster by this factor a run, or the search ends."""


def runs_per_device(
    wanted: int,
    ledger: Ledger | None,
    device: str,
    plan: Plan,
    build: Callable[[int], Program],
) -> int:
    """Chooses how many runs a device carries at a time.

    On a CPU one: several runs on one device come one after another there anyway, or, under
    ``vmap``, more slowly than that. Elsewhere twice as many are tried for as long as a run's steps
    get faster by it.

    Args:
      wanted: what the user asks for; 0 to choose.
      ledger: where it is looked up and kept; None to measure anew.
      device: the devices in words.
      plan: of the program.
      build: compiles it for a number of runs on a device.
    """
    if wanted:
        return wanted
    if jax.default_backend() == "cpu":
        return 1
    known = ledger.measured(plan.program, device) if ledger is not None else None
    if known is not None and known["runs_per_device"]:
        return int(known["runs_per_device"])
    best, seconds, compile_seconds = measure(build)
    if ledger is not None:
        ledger.measure(
            plan.program,
            device,
            runs_per_device=best,
            seconds_per_step=seconds,
            compile_seconds=compile_seconds,
        )
    return best


def measure(
    build: Callable[[int], Program], candidates: Sequence[int] = CANDIDATES
) -> tuple[int, float, float]:
    """Tries numbers of runs on a device, from few to many, until more do not pay.

    Returns:
      The number, the seconds of one step of one run then, and the seconds of compiling it.
    """
    best = (candidates[0], float("inf"), 0.0)
    for runs in candidates:
        try:
            program = build(runs)
            seconds = seconds_per_step(program)
        except Exception as error:
            if runs == candidates[0] or "RESOURCE_EXHAUSTED" not in str(error):
                raise
            break  # too many for the device's memory
        if best[1] < GAIN * seconds:
            break
        best = (runs, seconds, program.compile_seconds)
    return best


def seconds_per_step(program: Program, *, at_least: float = 0.2) -> float:
    """The seconds of one step of one run, with all slots taken; a median of several calls."""
    settings = program.plan.settings
    states: Any = program.empty()
    for slot in range(program.slots):
        states = program.begin(states, slot, settings)
    each = np.ones(program.slots, np.int32)
    states = jax.block_until_ready(program.steps(states, each).states)
    times: list[float] = []
    while len(times) < 3 or (sum(times) < at_least and len(times) < 50):
        start = time.perf_counter()
        states = jax.block_until_ready(program.steps(states, each).states)
        times.append(time.perf_counter() - start)
    return statistics.median(times) / program.slots


__all__ = ["CANDIDATES", "GAIN", "measure", "runs_per_device", "seconds_per_step"]
