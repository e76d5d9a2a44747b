"""A dry run for a TPU slice that is elsewhere: what each program needs, and the least time."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jax.sharding import Mesh

from nf_resnets.sweep.engine import Execution, sweep_mesh
from nf_resnets.sweep.image_task import ImageTask
from nf_resnets.sweep.programs import describe
from nf_resnets.sweep.settings import make
from nf_resnets.topology import (
    Chip,
    DoesNotFitError,
    Footprint,
    chip_of,
    compile_footprint,
    shortest_step,
)
from nf_resnets.training.display import duration_text
from nf_resnets.training.mesh import DATA, SWEEP
from nf_resnets.training.run import Plan

CANDIDATES = (1, 2, 4, 8, 16)
"""Runs on a chip that are tried."""

GAIN = 1.1
"""Twice as many runs must be faster by this factor a run, or the search ends."""


@dataclasses.dataclass(frozen=True)
class Fit:
    """A program as the slice's chips would run it.

    Attributes:
      footprint: of one step of all slots, on each chip.
      runs_per_device: how many runs a chip carries.
      most: about how many would fit.
      refused: what did not fit, in a sentence; empty if nothing was too large.
    """

    footprint: Footprint
    runs_per_device: int
    most: int
    refused: str = ""


def report(
    task: ImageTask,
    left: Mapping[str, tuple[Plan, int]],
    devices: Sequence[Any],
    execution: Execution,
    topology: str | None,
) -> int:
    """Compiles every program for a slice, prints what it needs, and the least time of the grid.

    Args:
      task: what the runs are.
      left: of each program one of its runs, and how many are to be made.
      devices: of the slice (:func:`nf_resnets.topology.topology_devices`).
      execution: how many devices and runs go together; where ``runs_per_device`` is 0, more runs
        are tried on a chip for as long as each of them becomes faster by ``GAIN``.
      topology: the slice's name.

    Returns:
      How many programs do not fit as they are asked for.
    """
    chip = chip_of(devices[0].device_kind)
    mesh = sweep_mesh(devices, execution.devices_per_run or len(devices))
    print(
        f"Chips: {len(devices)} of {topology}, each with {size(chip.memory)}, "
        f"{size(chip.usable)} of it for programs, "
        f"{chip.bandwidth / 1e9:,.0f} GB/s and {chip.bfloat16 / 1e12:,.0f} TFLOP/s in bfloat16 "
        f"({chip.source}); {len(devices) // mesh.shape[SWEEP]} to a run"
    )
    print(f"Programs: {len(left)}, compiled here for these chips; nothing ran")
    compiler = _Compiler(task, mesh, execution, chip)
    seconds, too_large = 0.0, 0
    for run, runs in left.values():
        print(f"  {describe(run)}: {_count(runs)} of {run.num_steps:,} steps", flush=True)
        fit = compiler.fit(run, runs)
        if isinstance(fit, str):
            print(f"    {fit}")
            too_large += 1
            continue
        if fit.refused:
            print(f"    {fit.refused}")
            too_large += 1
        slots = mesh.shape[SWEEP] * fit.runs_per_device
        for line in _lines(fit, slots, chip):
            print(f"    {line}")
        seconds += least_seconds(runs, run.num_steps, slots, fit.footprint.bound(chip)[0])
    without = f", without the {too_large} that do not fit as asked for" if too_large else ""
    print(
        f"Time: at least {duration_text(seconds)}, {seconds / 3600 * len(devices):.3g} chip-hours"
        f"{without}: a lower bound, with every step as short as the data sheet allows, and no time "
        "for tests, checkpoints, compiling or what the chips send each other"
    )
    return too_large


def least_seconds(runs: int, num_steps: int, slots: int, step: float) -> float:
    """The least time of a program's runs, so many at a time, in seconds.

    ``ceil(runs / slots) num_steps step``: a step takes as long however many slots are taken.

    Example:
      >>> least_seconds(runs=9, num_steps=100, slots=4, step=0.01)
      3.0
    """
    return -(-runs // slots) * num_steps * step


def most_runs(memory: float, shared: float, used: Sequence[tuple[int, float]]) -> int:
    """About how many runs fit on a chip, by a straight line through what few of them use.

    Args:
      memory: bytes of the chip.
      shared: bytes that all runs share, such as the data.
      used: numbers of runs, and the bytes that so many use.

    Example:
      >>> most_runs(16.0, 1.0, [(1, 2.0)]), most_runs(16.0, 1.0, [(1, 2.0), (2, 2.5)])
      (15, 29)
    """
    runs, bytes_ = used[-1]
    before, bytes_before = used[-2] if len(used) > 1 else (0, shared)
    each = (bytes_ - bytes_before) / (runs - before)
    return runs if each <= 0 else max(runs, runs + int((memory - bytes_) / each))


def size(bytes_: float) -> str:
    """Bytes in words.

    >>> size(16 * 2**30), size(3.5 * 2**20), size(12)
    ('16 GiB', '3.5 MiB', '12 bytes')
    """
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if bytes_ >= unit:
            return f"{bytes_ / unit:.3g} {name}"
    return f"{bytes_:.0f} bytes"


@dataclasses.dataclass(frozen=True)
class _Compiler:
    """Compiles the programs of a task for the chips of a mesh."""

    task: ImageTask
    mesh: Mesh
    execution: Execution
    chip: Chip

    def footprint(self, run: Plan, runs_per_device: int) -> Footprint:
        """What a program needs; a ``DoesNotFitError`` if it is more than the chip has."""
        lowered = self.task.lower(
            run, self.mesh, runs_per_device=runs_per_device, vectorize=self.execution.vectorize
        )
        found = compile_footprint(lowered)
        needed = found.memory + self.test_bytes(run)
        if needed > self.chip.usable:
            raise DoesNotFitError(f"it needs {size(needed)} of {size(self.chip.usable)}")
        return found

    def test_bytes(self, run: Plan) -> int:
        """Bytes of the test split, which lies on each chip beside what the steps need."""
        split = self.task.dataset(run.settings["dataset"]).test
        return int(split.images.nbytes + split.labels.nbytes)

    def most(self, run: Plan, used: Sequence[tuple[int, Footprint]]) -> int:
        """About how many runs fit on a chip."""
        train = self.task.dataset(run.settings["dataset"]).train
        shared = self.test_bytes(run)
        data = train.images.nbytes + train.labels.nbytes + used[0][1].code
        return most_runs(
            self.chip.usable - shared, data, [(runs, found.memory) for runs, found in used]
        )

    def fit(self, run: Plan, runs: int) -> Fit | str:
        """The program with as many runs on a chip as asked for, or as pay; a sentence if none fit.

        More runs than there are to be made are not tried.
        """
        wanted = self.execution.runs_per_device
        if wanted > 1:
            return self._halved(run, wanted)
        used: list[tuple[int, Footprint]] = []
        each_has = -(-runs // self.mesh.shape[SWEEP])
        tried = [1] if wanted else [runs for runs in CANDIDATES if runs <= max(1, each_has)]
        best, shortest = 0, float("inf")
        for runs_per_device in tried:
            try:
                found = self.footprint(run, runs_per_device)
            except DoesNotFitError as error:
                if runs_per_device == 1:
                    return self._smaller_batch(run, error)
                break
            used.append((runs_per_device, found))
            seconds = found.bound(self.chip)[0] / runs_per_device
            if shortest < GAIN * seconds:
                break
            best, shortest = len(used) - 1, seconds
        return Fit(used[best][1], used[best][0], self.most(run, used))

    def _halved(self, run: Plan, wanted: int) -> Fit | str:
        """The program with so many runs on a chip, or half of them and so on until they fit."""
        runs, refused = wanted, ""
        while True:
            try:
                found = self.footprint(run, runs)
            except DoesNotFitError as error:
                if runs == 1:
                    return self._smaller_batch(run, error)
                refused = refused or f"{wanted:,} runs do not fit on a chip: {error}"
                runs //= 2
                continue
            if refused:
                refused += f"; {runs:,} fit: --runs-per-device {runs}"
            return Fit(found, runs, self.most(run, [(runs, found)]), refused)

    def _smaller_batch(self, run: Plan, error: DoesNotFitError) -> str:
        """The sentence about a run that alone is too large, with the batch that fits."""
        text = f"One run does not fit on its chips: {error}"
        batch = run.settings["batch_size"] // 2
        while batch:
            with contextlib.suppress(ValueError, DoesNotFitError):
                smaller = self.task.plan(make({**run.settings, "batch_size": batch}))
                self.task.check(smaller, self.mesh.shape[DATA])
                self.footprint(smaller, 1)
                return f"{text}; a batch of {batch:,} fits: --batch-size {batch}"
            batch //= 2
        return f"{text}; nor does a smaller batch: a smaller network or more chips a run may"


def _count(runs: int) -> str:
    return f"{runs:,} run{'' if runs == 1 else 's'}"


def _lines(fit: Fit, slots: int, chip: Chip) -> Iterator[str]:
    """What a report says of a program that fits."""
    need = fit.footprint
    yield (
        f"fits: {size(need.memory)} at a time in {size(chip.usable)} ({size(need.arguments)} of "
        f"arguments, {size(need.temporaries)} of temporaries, {size(need.outputs)} of outputs, "
        f"{size(need.code)} of code); about {fit.most:,} runs a chip would"
    )
    yield (
        f"a step of {_count(slots)}, {fit.runs_per_device:,} a chip: "
        f"{need.flops:.3g} FLOP and {need.bytes:.3g} bytes a chip, {need.main_bytes:.3g} of them "
        "in its main memory; besides, a call of many steps moves "
        f"{need.call_bytes:.3g} bytes there"
    )
    seconds, by = need.bound(chip)
    whole = 1e3 * shortest_step(need.flops, need.bytes, chip)[0]
    yield (
        f"bound by {by}: at least {1e3 * seconds:.3g} ms a step; {whole:.3g} ms if all bytes were "
        "in main memory"
    )
    each = (
        f"{count:,.0f} {kind} of {size(bytes_)}"
        for kind, (count, bytes_) in sorted(need.collectives.items())
    )
    yield f"collectives a step: {', '.join(each) or 'none'}"
    yield f"compiled in {need.compile_seconds:.0f} s"


__all__ = ["Fit", "least_seconds", "most_runs", "report", "size"]
