"""What scanning over the blocks costs in a training step, and what it saves in compilation.

Two claims, each with its limit:

1. a training step of a network of about 110 layers, scanned over the blocks of a stage, takes at
   most 1.15 times as long as the same step with all blocks unrolled;
2. compiling the step of a scanned WRN of 1,000 layers takes at most 1.5 times as long as that of
   one of 100 layers.

The step is value_and_grad and the SGD update (momentum, weight decay, Fixup's slower scalars),
through ``nf_resnets.training.replica_step``. Its two forms are timed in turn, a step of one and a
step of the other, so that whatever else the machine does meets both; the ratio is of medians, and
``paired`` is the median of the ratios of neighbours. Each compilation is in a process of its own.

On two cores of an AMD EPYC, jax 0.10.2: ResNet-110 0.83 (8x8) and 0.5 (32x32), WRN-112 1.07 and
1.0; compiling 1,000 layers instead of 100: 1.0. What a scan costs is the copying of activations
into and out of their stack.

Cost there: about 4 minutes; ``--quick`` about one, with fewer steps and the 8x8 networks only.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import flax
import jax
import jaxlib
import numpy as np
import tyro

from nf_resnets import init, training
from nf_resnets.models import CifarResNet, WideResNet
from nf_resnets.optim import sgd

STEP_LIMIT, COMPILE_LIMIT = 1.15, 1.5
COMPILE_DEPTHS = (100, 1000)
HYPER = {"learning_rate": 0.1, "weight_decay": 5e-4}


@dataclasses.dataclass(frozen=True)
class Case:
    """A network and the batch of its training step."""

    network: str
    depth: int
    side: int
    batch: int
    scheme: str = "fixup"

    @property
    def title(self) -> str:
        return f"{self.network}-{self.depth} {self.scheme}, {self.batch} x {self.side}x{self.side}"

    def model(self, **options: Any) -> Any:
        if self.network == "ResNet":
            return CifarResNet(depth=self.depth, scheme=self.scheme, **options)
        return WideResNet(depth=self.depth, scheme=self.scheme, **options)


QUICK = (Case("ResNet", 110, 8, 64), Case("WRN", 112, 8, 64))
CASES = (*QUICK, Case("ResNet", 110, 32, 32), Case("WRN", 112, 32, 32))


@dataclasses.dataclass(frozen=True)
class Settings:
    """Command line of the benchmark."""

    quick: bool = False
    """Fewer steps, and 8x8 images only."""
    out: Path | None = None
    """A JSON file to write the numbers to."""
    steps: int | None = None
    """Timed steps of each form; by default 30, or 10 with --quick."""
    compile_depth: int | None = None
    """Do nothing but compile the scanned WRN-n-1 of this depth n, and print the seconds."""


def optimizer(hyper: dict[str, jax.Array]) -> Any:
    return sgd(hyper["learning_rate"], weight_decay=hyper["weight_decay"])


def make_state(case: Case, *, abstract: bool = False) -> training.TrainState:
    """The state before the first step; ``abstract`` gives its shapes only."""
    model = case.model()
    images = jax.ShapeDtypeStruct((case.batch, case.side, case.side, 3), np.float32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), images)

    def create(variables: Any) -> training.TrainState:
        params = init.fixup(variables["params"], model.num_branches, key=jax.random.key(0))
        stats = variables.get("batch_stats")
        return training.create_state(params, optimizer, HYPER, batch_stats=stats)

    if abstract:
        return jax.eval_shape(create, shapes)
    return create(jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes))


def make_batch(case: Case) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    image = rng.standard_normal((case.batch, case.side, case.side, 3), dtype=np.float32)
    return {"image": image, "label": rng.integers(0, 10, case.batch, dtype=np.int32)}


def make_step(model: Any) -> Any:
    apply_fn = training.train_apply(model)

    def step(state: training.TrainState, batch: dict[str, jax.Array]) -> Any:
        return training.replica_step(state, batch, apply_fn=apply_fn, optimizer=optimizer)

    return jax.jit(step, donate_argnums=(0,))


def time_steps(case: Case, steps: int) -> dict[str, Any]:
    """Times scanned and unrolled steps in turn."""
    batch = jax.device_put(make_batch(case))
    models = {"scanned": case.model(), "unrolled": case.model(unroll=case.depth)}
    states, compiled, compile_s = {}, {}, {}
    for form, model in models.items():
        states[form] = jax.device_put(make_state(case))
        start = time.perf_counter()
        compiled[form] = make_step(model).lower(states[form], batch).compile()
        compile_s[form] = time.perf_counter() - start
    times: dict[str, list[float]] = {form: [] for form in models}
    losses: dict[str, list[float]] = {form: [] for form in models}
    for turn in range(steps + 2):  # the first two are warm-up
        for form in models:
            start = time.perf_counter()
            states[form], metrics = jax.block_until_ready(compiled[form](states[form], batch))
            if turn >= 2:
                times[form].append(time.perf_counter() - start)
            losses[form].append(float(metrics["loss"]))
    np.testing.assert_allclose(losses["scanned"][:2], losses["unrolled"][:2], rtol=1e-4)
    pairs = [a / b for a, b in zip(times["scanned"], times["unrolled"], strict=True)]
    medians = {form: statistics.median(values) for form, values in times.items()}
    return {
        "case": case.title,
        "ms": {form: [1000 * value for value in values] for form, values in times.items()},
        "ratio": medians["scanned"] / medians["unrolled"],
        "paired": statistics.median(pairs),
        "compile_s": compile_s,
    }


def compile_once(depth: int) -> dict[str, float]:
    """Lowers and compiles the scanned step, from shapes alone."""
    case = Case("WRN", depth, 8, 64)
    state, batch = make_state(case, abstract=True), make_batch(case)
    start = time.perf_counter()
    lowered = make_step(case.model()).lower(state, batch)
    middle = time.perf_counter()
    lowered.compile()
    return {"lower": middle - start, "compile": time.perf_counter() - middle}


def time_compilations(repeats: int) -> dict[str, Any]:
    """Compiles each depth in fresh processes, in turn."""
    totals: dict[int, list[float]] = {depth: [] for depth in COMPILE_DEPTHS}
    for _ in range(repeats):
        for depth in COMPILE_DEPTHS:
            command = [sys.executable, "-m", "benchmarks.scan", "--compile-depth", str(depth)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            totals[depth].append(sum(json.loads(done.stdout.splitlines()[-1]).values()))
    low, high = (statistics.median(totals[depth]) for depth in COMPILE_DEPTHS)
    return {"seconds": totals, "ratio": high / low}


def machine() -> dict[str, Any]:
    return {
        "device": jax.devices()[0].device_kind,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "flax": flax.__version__,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _spread(values: list[float], unit: str) -> str:
    return f"{statistics.median(values):.4g} {unit} ({min(values):.4g}-{max(values):.4g})"


def _verdict(ratio: float, limit: float) -> str:
    return f"{ratio:.2f} (limit {limit:g}{'' if ratio <= limit else ', EXCEEDED'})"


def main(settings: Settings) -> int:
    jax.config.update("jax_enable_compilation_cache", False)
    if settings.compile_depth is not None:
        print(json.dumps(compile_once(settings.compile_depth)))
        return 0

    about = machine()
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    steps = settings.steps or (10 if settings.quick else 30)
    rows = []
    print(f"\nTraining step, median (min-max) of {steps}")
    for case in QUICK if settings.quick else CASES:
        row = time_steps(case, steps)
        rows.append(row)
        compile_s = row["compile_s"]
        print(
            f"  {row['case']:32} scanned {_spread(row['ms']['scanned'], 'ms')}, "
            f"unrolled {_spread(row['ms']['unrolled'], 'ms')}, "
            f"ratio {_verdict(row['ratio'], STEP_LIMIT)}, paired {row['paired']:.2f}; "
            f"compiled in {compile_s['scanned']:.1f} and {compile_s['unrolled']:.1f} s",
            flush=True,
        )
    compilations = time_compilations(1 if settings.quick else 3)
    print("\nLower and compile, scanned WRN-n-1, 64 x 8x8, median (min-max)")
    for depth, seconds in compilations["seconds"].items():
        print(f"  n = {depth:<5} {_spread(seconds, 's')}")
    print(f"  ratio {_verdict(compilations['ratio'], COMPILE_LIMIT)}")
    if settings.out is not None:
        record = {"machine": about, "steps": rows, "compilations": compilations}
        settings.out.write_text(json.dumps(record, indent=2) + "\n")
    exceeded = compilations["ratio"] > COMPILE_LIMIT or any(r["ratio"] > STEP_LIMIT for r in rows)
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Settings, description=__doc__)))
