"""The committed results, read from ``results/``: tables, figures, and what made them."""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SUMS = ROOT / "results" / "SHA256SUMS"
"""The SHA-256 of each committed file that tables, figures and claims are made of."""

OPTIONS = {
    "fixup_fig3_depth-cifar-lsuv": "model=wrn-10-1 scheme=fixup,lsuv",
    "fixup_fig4_ablation-cifar-56": "model=cifar-resnet-56 seed=0",
    "fixup_table1_resnet110-laptop-20":
        "model=cifar-resnet-20 scheme=batchnorm,fixup peak_lr=0.1 seed=0",
    "fixup_table1_resnet110-laptop-56":
        "model=cifar-resnet-56 scheme=batchnorm,fixup peak_lr=0.1 seed=0",
    "fixup_table2_imagenet-laptop-rate-0.1": "peak_lr=0.1",
    "fixup_table2_imagenet-laptop-10-epochs": "peak_lr=0.1 epochs=10 'drops=0.3 0.6 0.9'",
    "fixup_table2_imagenet-laptop-tests":
        "evaluate_every=1 model=resnet-26 epochs=8 scheme=batchnorm,fixup mixup=0,0.7",
    "fixup_table3_translation-laptop-layers-6": "model=transformer-6",
    "fixup_table4_regularized-laptop-20-epochs": "epochs=20 seed=0:4",
    "rescale_imagenet-laptop-uncalibrated":
        "model=resnet-50 scheme=rescalenet_dropout,rescalenet_at_0 seed=0:5",
    "rescale_imagenet-laptop-uncalibrated-rate-0.4":
        "model=resnet-50 scheme=rescalenet_dropout,rescalenet_at_0 peak_lr=0.1 seed=0:2",
    "skipinit_imagenet-laptop-fixup-skipinit": "scheme=fixup,skipinit",
    "skipinit_lr_batch-cifar-2":
        "batch_size=2 peak_lr=2^-11:2^-3 scheme=skipinit,fixup,alpha_one",
    "skipinit_lr_batch-cifar-8":
        "batch_size=8 peak_lr=2^-9:2^-1 scheme=batchnorm,skipinit,fixup,alpha_one",
    "skipinit_lr_batch-cifar-alpha_one": "scheme=alpha_one",
    "skipinit_lr_batch-cifar-steps": "steps=390 batch_size=32,128,512 seed=0",
}  # fmt: skip
"""The ``--grid`` of the commands of folders whose settings do not say it."""


@dataclasses.dataclass(frozen=True)
class Result:
    """A folder of committed results, and what made it."""

    folder: Path
    module: str  # the experiment, as ``python -m`` takes it
    command: str  # the whole one, which makes them again
    title: str  # the first sentence of the experiment's docstring
    made: str  # when and on what, and with which versions

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def figures(self) -> tuple[Path, ...]:
        """Its pictures."""
        return tuple(sorted(self.folder.glob("*.svg")))

    @property
    def table(self) -> str:
        """What the command printed."""
        return (self.folder / "table.txt").read_text()


def read_committed(path: Path) -> str:
    """The text of a committed file, which must be the one that was committed.

    Raises:
      ValueError: if it is another one, or ``results/SHA256SUMS`` does not have it.
    """
    content = path.read_bytes()
    name = path.relative_to(SUMS.parent).as_posix()
    if _sums().get(name) != hashlib.sha256(content).hexdigest():
        raise ValueError(
            f"results/{name} is not what results/SHA256SUMS says; a file that was made again is "
            "committed with `python -m docs.machinery.results`."
        )
    return content.decode()


@functools.cache
def _sums() -> dict[str, str]:
    lines = (line.split("  ", 1) for line in SUMS.read_text().splitlines())
    return {name: sum_ for sum_, name in lines}


def write_sums() -> None:
    """Writes ``results/SHA256SUMS`` anew, as ``sha256sum`` does."""
    files = [path for path in SUMS.parent.rglob("*") if path.suffix in (".csv", ".json", ".jsonl")]
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  "
        f"{path.relative_to(SUMS.parent).as_posix()}\n"
        for path in sorted(files)
    ]
    SUMS.write_text("".join(lines))


def committed() -> tuple[Result, ...]:
    """All results of experiments and benchmarks, by the names of their folders."""
    # A folder without a table is one that is still being made.
    return tuple(_result(path.parent) for path in sorted((ROOT / "results").glob("*/table.txt")))


def lines_of(result: Result, wanted: Callable[[str], bool]) -> str:
    """The lines of a result's tables that have a wanted cell, below their headers."""
    parts = []
    for table in result.table.split("\n\n"):
        header, *lines = table.splitlines() or [""]
        rows = [line for line in lines if any(map(wanted, re.split(" {2,}", line.strip())))]
        parts += ["\n".join([header, *rows])] if rows else []
    return "\n\n".join(parts)


def _result(folder: Path) -> Result:
    (record,) = [*folder.glob("settings.json"), *folder.glob("bench.json")]
    settings = json.loads(read_committed(record))
    if folder.name.startswith("bench"):
        module, source = "benchmarks", ROOT / "benchmarks" / "__main__.py"
        command = "make bench"
        if part := folder.name.removeprefix("bench-cpu").removeprefix("-"):
            command += f" BENCH_ARGS='--only {part}'"
    else:
        name, _, rest = folder.name.partition("-")
        source = ROOT / "experiments" / f"{name}.py"
        module = f"experiments.{name}"
        # One folder of an earlier version names a scale behind another.
        scale = "multi30k" if rest.endswith("multi30k") else rest.partition("-")[0]
        command = f"python -m {module} --scale {scale}"
        own = shlex.join(settings["grid"]) if "scale" in settings else ""
        if grid := OPTIONS.get(folder.name, own):
            command += f" --grid {grid}"
    docstring = ast.get_docstring(ast.parse(source.read_text())) or ""
    title = docstring.partition("\n\n")[0].replace("\n", " ")
    return Result(folder, module, command, title, _made(settings))


def _made(settings: dict[str, Any]) -> str:
    machine = settings.get("machine") or settings["made"][-1]
    when = machine.get("date") or machine.get("last")
    parts = [str(when)[:10]] if when else []
    if machine.get("device"):
        parts.append(str(machine["device"]))
    parts += [f"{name} {machine[name]}" for name in ("python", "jax", "flax") if name in machine]
    return ", ".join(parts)


if __name__ == "__main__":
    write_sums()
