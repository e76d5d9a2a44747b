"""All benchmarks: a table of ratios, each of two things measured side by side in this run.

``make bench`` runs them, ``make bench BENCH_ARGS=--quick`` in three minutes. Seconds depend on the
machine and on what else it does; the ratios hardly do, since what is compared takes turns.
On a rented GPU, ``python -m benchmarks --gpu`` makes in 11 minutes what is to be known of it first.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Literal, get_args

import jax

from benchmarks import gpu
from benchmarks.timing import Row
from nf_resnets import command_line
from nf_resnets.machine import device_name, versions

Part = Literal["against_torch", "against_batch_norm", "growth", "together", "whole_job", "profile"]
PARTS: tuple[Part, ...] = get_args(Part)
AGAINST_TORCH = ("against_torch", "whole_job", "profile")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Command line of the benchmarks."""

    quick: bool = False
    """Fewer and smaller cases, fewer rounds."""
    gpu: bool = False
    """On one GPU: step time against compiled PyTorch, runs together, then 1,000 layers of Fixup's
    figure 3, its table 1 with ResNet-20 and SkipInit's sweep, on CIFAR-10, each with a time limit;
    --quick tries it on a CPU."""
    minutes: float = 11.0
    """For all parts of --gpu."""
    data_dir: str | None = None
    """Where tensorflow-datasets keeps CIFAR-10, or its binary files lie, for --gpu."""
    only: tuple[Part, ...] = PARTS
    """The parts to run."""
    out: Path | None = None
    """The folder for bench.json and table.txt, which must not be there yet; by default one in runs/
    that is named after the date."""


def main(settings: Settings) -> int:
    # Nothing that is compiled here may come from an earlier run; and PyTorch needs room on a GPU.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax.config.update("jax_enable_compilation_cache", False)
    if settings.gpu and not settings.quick and jax.default_backend() != "gpu":
        print(f"--gpu found {jax.devices()[0].device_kind}, no GPU; --quick tries it on a CPU.",
              file=sys.stderr)  # fmt: skip
        return 2
    started = datetime.datetime.now()
    about = {"date": f"{started:%Y-%m-%d}", "device": device_name(), **versions()}
    if has_torch := importlib.util.find_spec("torch") is not None:
        about["torch"] = importlib.metadata.version("torch")
    out = settings.out or Path(f"runs/bench-{started:%Y%m%d-%H%M%S}")
    if out.exists():
        print(f"--out {out} is there already; name a new folder.", file=sys.stderr)
        return 2
    out.mkdir(parents=True)
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    if settings.gpu:
        todo = gpu.tasks(out, quick=settings.quick, data_dir=settings.data_dir)
        return gpu.run(todo, settings.minutes)
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    seconds: dict[str, float] = {}
    record = {"machine": about, "quick": settings.quick, "seconds": seconds, "skipped": skipped}
    for name in settings.only:
        part = importlib.import_module(f"benchmarks.{name}")
        print(f"\n{part.TITLE}", flush=True)
        if name in AGAINST_TORCH and not has_torch:
            skipped[name] = "PyTorch is not installed (pip install torch)"
            print(f"  left out: {skipped[name]}")
            continue
        start = time.perf_counter()
        for row in part.measure(quick=settings.quick):
            rows.append(row)
            seconds[name] = round(time.perf_counter() - start, 1)
            print(f"  {row.what} | {row.compared} | {row.ratio} {row.verdict}", flush=True)
            keep(out, record, rows)
    keep(out, record, rows)
    print(f"\n{targets(rows)}\nkept in {out}")
    return int(any(row.held is False for row in rows))


def keep(out: Path, record: dict[str, Any], rows: list[Row]) -> None:
    """Writes what there is so far; after every row, since a run may be cut."""
    measured = [{**dataclasses.asdict(row), "held": row.held} for row in rows]
    (out / "bench.json").write_text(json.dumps({**record, "rows": measured}, indent=1) + "\n")
    (out / "table.txt").write_text(targets(rows) + "\n")


def targets(rows: list[Row]) -> str:
    """The rows that have a target, as plain text."""
    lines = [
        (row.what, row.compared, str(row.ratio), row.verdict)
        for row in rows
        if row.limit is not None
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


if __name__ == "__main__":
    sys.exit(main(command_line.read(Settings, description=__doc__)))
