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


def report(
    task: ImageTask,
    left: Mapping[str, tuple[Plan, int]],
    devices: Sequence[Any],
    execution: Execution,
    topology: str | None,
) -> int:
    """Compiles every program for a slice, prints what it needs, and the least time of the grid.

    ``left`` has for each program one of its runs, and how many are to be made. Where
    ``execution.runs_per_device`` is 0, more runs are tried on a chip for as long as each of them
    becomes faster by ``GAIN``. Returns how many programs do not fit as they are asked for.
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
    seconds, too_large = 0.0, 0
    for run, runs in left.values():
        print(f"  {describe(run)}: {_count(runs)} of {run.num_steps:,} steps", flush=True)
        compiler = _Compiler(task, run, mesh, execution, chip)
        try:
            used = compiler.fitting(runs)
        except DoesNotFitError as error:
            print(f"    {error}")
            too_large += 1
            continue
        runs_per_device, footprint = used[-1]
        slots = mesh.shape[SWEEP] * runs_per_device
        for line in _lines(footprint, runs_per_device, slots, compiler.most(used), chip):
            print(f"    {line}")
        seconds += least_seconds(runs, run.num_steps, slots, footprint.bound(chip)[0])
    without = f", without the {too_large} that do not fit as asked for" if too_large else ""
    print(
        f"Time: at least {duration_text(seconds)}, {seconds / 3600 * len(devices):.3g} chip-hours"
        f"{without}: a lower bound, with every step as short as the data sheet allows, and no time "
        "for tests, checkpoints, compiling or what the chips send each other"
    )
    return too_large


def least_seconds(runs: int, num_steps: int, slots: int, step: float) -> float:
    """The least seconds of a program's runs: a step takes as long however many slots run."""
    return -(-runs // slots) * num_steps * step


def most_runs(memory: float, shared: float, used: Sequence[tuple[int, float]]) -> int:
    """About how many runs fit on a chip, by a straight line through what few of them use.

    All runs share some of the bytes, such as the data.

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
    """Compiles a run's program for the chips of a mesh."""

    task: ImageTask
    run: Plan
    mesh: Mesh
    execution: Execution
    chip: Chip

    def footprint(self, run: Plan, runs_per_device: int) -> Footprint:
        """What a program needs; a ``DoesNotFitError`` if it is more than the chip has."""
        lowered = self.task.lower(
            run, self.mesh, runs_per_device=runs_per_device, vectorize=self.execution.vectorize
        )
        found = compile_footprint(lowered)
        needed = found.memory + self.split_bytes("test")
        if needed > self.chip.usable:
            raise DoesNotFitError(f"it needs {size(needed)} of {size(self.chip.usable)}")
        return found

    def split_bytes(self, name: str) -> int:
        """Bytes of a split, which lies on each chip beside what the steps need."""
        split = getattr(self.task.dataset(self.run.settings["dataset"]), name)
        return int(split.images.nbytes + split.labels.nbytes)

    def fitting(self, runs: int) -> list[tuple[int, Footprint]]:
        """The numbers of runs on a chip that were tried, with as many as asked for or pay last.

        More runs than there are to be made are not tried.

        Raises:
          DoesNotFitError: if not even one fits, or not as many as asked for.
        """
        wanted = self.execution.runs_per_device
        each_has = -(-runs // self.mesh.shape[SWEEP])
        tried = [wanted] if wanted else [n for n in CANDIDATES if n <= max(1, each_has)]
        used: list[tuple[int, Footprint]] = []
        shortest = float("inf")
        for runs_per_device in tried:
            try:
                found = self.footprint(self.run, runs_per_device)
            except DoesNotFitError as error:
                if used:
                    break
                raise self._too_large(runs_per_device, error) from None
            seconds = found.bound(self.chip)[0] / runs_per_device
            if shortest < GAIN * seconds:
                break
            used.append((runs_per_device, found))
            shortest = seconds
        return used

    def most(self, used: Sequence[tuple[int, Footprint]]) -> int:
        """About how many runs fit on a chip."""
        memory = self.chip.usable - self.split_bytes("test")
        shared = self.split_bytes("train") + used[0][1].code
        return most_runs(memory, shared, [(runs, found.memory) for runs, found in used])

    def _too_large(self, runs: int, error: DoesNotFitError) -> DoesNotFitError:
        """The sentence about runs that are too large; of one alone, with the batch that fits."""
        if runs > 1:
            return DoesNotFitError(f"{runs:,} runs do not fit on a chip: {error}; expected fewer")
        text, batch = f"One run does not fit on its chips: {error}", self.run.settings["batch_size"]
        while batch := batch // 2:
            with contextlib.suppress(ValueError, DoesNotFitError):
                smaller = self.task.plan(make({**self.run.settings, "batch_size": batch}))
                self.task.check(smaller, self.mesh.shape[DATA])
                self.footprint(smaller, 1)
                return DoesNotFitError(f"{text}; a batch of {batch:,} fits: --batch-size {batch}")
        return DoesNotFitError(
            f"{text}; nor does a smaller batch: a smaller network or more chips a run may"
        )


def _count(runs: int) -> str:
    return f"{runs:,} run{'' if runs == 1 else 's'}"


def _lines(
    need: Footprint, runs_per_device: int, slots: int, most: int, chip: Chip
) -> Iterator[str]:
    """What a report says of a program that fits."""
    yield (
        f"fits: {size(need.memory)} at a time in {size(chip.usable)} ({size(need.arguments)} of "
        f"arguments, {size(need.temporaries)} of temporaries, {size(need.outputs)} of outputs, "
        f"{size(need.code)} of code); about {most:,} runs a chip would"
    )
    yield (
        f"a step of {_count(slots)}, {runs_per_device:,} a chip: "
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


__all__ = ["least_seconds", "most_runs", "report", "size"]
