"""A dry run for a TPU slice that is elsewhere: what each program needs, and the least time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.sharding import Mesh

from nf_resnets.sweep.engine import Execution, sweep_mesh
from nf_resnets.sweep.image_task import ImageTask
from nf_resnets.topology import (
    Chip,
    DoesNotFitError,
    Footprint,
    chip_of,
    compile_footprint,
)
from nf_resnets.training.display import counted, duration_text
from nf_resnets.training.mesh import SWEEP
from nf_resnets.training.run import Plan


def report(
    task: ImageTask,
    left: Sequence[Sequence[Plan]],
    devices: Sequence[Any],
    execution: Execution,
    topology: str | None,
) -> int:
    """Compiles every program for a slice, prints what it needs, and the least time of the grid.

    ``left`` has the runs of each program that are to be made. Returns how many programs do not
    fit.
    """
    chip = chip_of(devices[0].device_kind)
    mesh = sweep_mesh(devices, execution.devices_per_run or len(devices))
    print(
        f"Chips: {len(devices)} of {topology}, each with {size(chip.memory)}, "
        f"{size(chip.usable)} of it for programs, "
        f"{chip.bandwidth / 1e9:,.0f} GB/s and {chip.bfloat16 / 1e12:,.0f} TFLOP/s in bfloat16 "
        f"by Google Cloud's documentation; {len(devices) // mesh.shape[SWEEP]} to a run"
    )
    print(f"Programs: {len(left)}, compiled here for these chips; nothing ran")
    each_has = execution.runs_per_device or 1
    seconds, too_large = 0.0, 0
    for plan, *others in left:
        runs = 1 + len(others)
        print(f"  {describe(plan, runs)}", flush=True)
        try:
            need = _footprint(task, plan, mesh, each_has, chip)
        except DoesNotFitError as error:
            fewer = "fewer" if each_has > 1 else "a smaller batch or more chips a run"
            print(f"    {counted(each_has)} a chip: {error}; expected {fewer}")
            too_large += 1
            continue
        slots = mesh.shape[SWEEP] * each_has
        for line in _lines(need, each_has, slots, chip):
            print(f"    {line}")
        # A step takes as long however many slots run.
        seconds += -(-runs // slots) * plan.num_steps * need.bound(chip)[0]
    without = f", without the {too_large} that do not fit" if too_large else ""
    print(
        f"Time: at least {duration_text(seconds)}, {seconds / 3600 * len(devices):.3g} chip-hours"
        f"{without}: a lower bound, with every step as short as the data sheet allows, and no time "
        "for tests, checkpoints, compiling or what the chips send each other"
    )
    return too_large


def describe(plan: Plan, runs: int) -> str:
    """A program, and what is to be made by it, in a few words."""
    settings = plan.settings
    name = f"{settings['model']}, {settings['scheme']}, batch {settings['batch_size']}"
    return f"{name}: {counted(runs)} of {plan.num_steps:,} steps"


def size(bytes_: float) -> str:
    """Bytes in words.

    >>> size(16 * 2**30), size(3.5 * 2**20), size(12)
    ('16 GiB', '3.5 MiB', '12 bytes')
    """
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if bytes_ >= unit:
            return f"{bytes_ / unit:.3g} {name}"
    return f"{bytes_:.0f} bytes"


def _footprint(task: ImageTask, plan: Plan, mesh: Mesh, each_has: int, chip: Chip) -> Footprint:
    """What a program needs; a ``DoesNotFitError`` if it is more than the chip has."""
    need = compile_footprint(task.lower(plan, mesh, runs_per_device=each_has))
    test = task.dataset(plan.settings["dataset"]).test  # lies beside what the steps need
    memory = need.memory + test.images.nbytes + test.labels.nbytes
    if memory > chip.usable:
        raise DoesNotFitError(f"it needs {size(memory)} of {size(chip.usable)}")
    return need


def _lines(need: Footprint, each_has: int, slots: int, chip: Chip) -> list[str]:
    """What a report says of a program that fits."""
    seconds, by = need.bound(chip)
    each = (
        f"{count:,.0f} {kind} of {size(bytes_)}"
        for kind, (count, bytes_) in sorted(need.collectives.items())
    )
    return [
        f"fits: {size(need.memory)} at a time in {size(chip.usable)} ({size(need.arguments)} of "
        f"arguments, {size(need.temporaries)} of temporaries, {size(need.outputs)} of outputs, "
        f"{size(need.code)} of code)",
        f"a step of {counted(slots)}, {each_has:,} a chip: "
        f"{need.flops:.3g} FLOP and {need.bytes:.3g} bytes a chip, {need.main_bytes:.3g} of them "
        "in its main memory",
        f"bound by {by}: at least {1e3 * seconds:.3g} ms a step",
        f"collectives a step: {', '.join(each) or 'none'}",
    ]
