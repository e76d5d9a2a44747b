"""What training steps need of a TPU, by its compiler, on a machine without one.

A fixed list of programs is compiled with libtpu. Of each: FLOP and bytes of a step on a chip, those
of them in its main memory, temporaries, collectives. These numbers are the compiler's and the same
on every machine: ``tpu_programs.json`` beside this file has them, and a slow test compiles the
cheap ones again.

    python -m benchmarks.tpu_programs                      # prints the committed table
    python -m benchmarks.tpu_programs --compile NAME ...   # compiles, prints, and writes the file

Cost: two to six minutes a program on two idle cores, the cheap ones one.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import sys
from pathlib import Path
from typing import Any, Literal

import tyro

from benchmarks import fresh

FILE = Path(__file__).with_name("tpu_programs.json")


@dataclasses.dataclass(frozen=True)
class Program:
    """A program that is compiled; a run has all chips of the slice, ``runs`` are on one chip.

    BatchNorm has its statistics over the whole batch of a chip. The ``images`` of 32 x 32 x 3
    pixels lie in memory; sorting the order of many takes long to compile.
    """

    model: str = "wrn-16-2"
    scheme: str = "fixup"
    dtype: str = "bfloat16"
    batch_size: int = 128
    topology: str = "v5e:1x1"
    runs: int = 1
    vectorize: str = "vmap"
    remat: bool = False
    images: int = 50_000


PROGRAMS = {
    "wrn-16-2, float32": Program(dtype="float32"),
    "wrn-16-2": Program(),
    "wrn-16-2, batchnorm, float32": Program(scheme="batchnorm", dtype="float32"),
    "wrn-16-2, batchnorm": Program(scheme="batchnorm"),
    "wrn-16-2, 8 runs vectorised": Program(runs=8),
    "wrn-16-2, 8 runs in turn": Program(runs=8, vectorize="loop"),
    "wrn-16-2, batch 512 on 4 chips": Program(batch_size=512, topology="v5e:2x2"),
    "wrn-28-10, batch 1,024 on 16 chips": Program("wrn-28-10", batch_size=1024, topology="v5e:4x4"),
    "wrn-10000-1, batch 64": Program("wrn-10000-1", batch_size=64, remat=True),
    "wrn-10-1, float32": Program("wrn-10-1", dtype="float32", images=2_048),
    "wrn-10-1": Program("wrn-10-1", images=2_048),
}
"""By name; without another word in bfloat16, Fixup, batch 128 on one chip of v5e."""

CHEAP = ("wrn-10-1, float32", "wrn-10-1")


def compiled(name: str) -> dict[str, Any]:
    """Compiles a program, and says what it needs; to be called in a process of its own."""
    from nf_resnets import topology

    program = PROGRAMS[name]
    chips = topology.topology_devices(program.topology)
    footprint = topology.compile_footprint(_lowered(program, chips))
    seconds, by = footprint.bound(topology.chip_of(chips[0].device_kind))
    needs = dataclasses.asdict(footprint)
    del needs["peak"]
    return {**needs, "least_ms": round(1e3 * seconds, 4), "bound": by}


def _lowered(program: Program, chips: list[Any]) -> Any:
    import numpy as np

    from nf_resnets import data
    from nf_resnets.sweep import make_sweep
    from nf_resnets.sweep.engine import sweep_mesh

    def split(count: int) -> data.Split:
        # Only their shapes are looked at.
        images = np.broadcast_to(np.uint8(0), (count, 32, 32, 3))
        return data.Split(images, np.arange(count, dtype=np.int32) % 10)

    dataset = data.Dataset(
        "made", split(program.images), split(1_000), 10, tuple("0123456789"), (120.0,) * 3,
        (60.0,) * 3, 255.0,
    )  # fmt: skip
    base = {
        "model": program.model, "scheme": program.scheme, "dtype": program.dtype, "dataset": "made",
        "batch_size": program.batch_size, "ghost_batch": program.batch_size // len(chips),
        "epochs": 1.0, "padding": 4, "flip": True, "remat": program.remat,
    }  # fmt: skip
    sweep = make_sweep({"seed": (0,)}, base, load=lambda _: dataset)
    vectorize: Any = program.vectorize
    mesh = sweep_mesh(chips, len(chips))
    return sweep.task.lower(sweep.plans[0], mesh, runs_per_device=program.runs, vectorize=vectorize)


def versions() -> dict[str, str]:
    """Of what the numbers depend on."""
    return {name: importlib.metadata.version(name) for name in ("jax", "libtpu")}


def kept() -> dict[str, Any]:
    """The committed file: versions, and what each program needs."""
    return json.loads(FILE.read_text())


def table(programs: dict[str, dict[str, Any]]) -> str:
    """A line for each program."""
    titles = ("", "GFLOP", "MB", "in main memory", "temporaries MB",
              "least ms", "bound", "collectives")  # fmt: skip
    lines = [titles]
    for name, need in programs.items():
        each = (f"{count:g} {kind} of {size / 1e6:.3g} MB"
                for kind, (count, size) in need["collectives"].items())  # fmt: skip
        numbers = (need["bytes"], need["main_bytes"], need["temporaries"])
        lines.append((
            name, f"{need['flops'] / 1e9:,.4g}", *(f"{size / 1e6:,.4g}" for size in numbers),
            f"{need['least_ms']:.3g}", need["bound"], ", ".join(each) or "none",
        ))  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Command line."""

    compile: tuple[Literal[tuple(PROGRAMS)], ...] = ()
    """Names of programs to compile."""


def main(settings: Settings) -> int:
    record = kept()
    for name in settings.compile:
        record["programs"][name] = fresh.call("benchmarks.tpu_programs:compiled", name)
        record["versions"] = versions()
        print(table({name: record["programs"][name]}), flush=True)
        FILE.write_text(json.dumps(record, indent=1) + "\n")
    print(table(record["programs"]))
    return 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Settings, description=__doc__)))
