"""How costs grow: with the runs of a sweep, with depth and with devices.

Each cost is measured at sizes ten times, four times or twice apart, each time in a fresh process,
and written as the exponent ``log(cost ratio) / log(size ratio)`` of the two largest sizes; in
brackets are the least and the greatest exponent of all neighbours. Work is proportional to runs,
layers and devices (as each device has its own images), so that an exponent of 1 is what work costs.
The limit of 1.05 leaves 7% for timings between sizes four times apart, 12% for ten times.

- **Runs**: a sweep from its command to its report, and the memory of its process. A run is small:
  22 steps of a WRN-10-1 of 4 channels on the digits.
- **Depth**: a training step of WRN-n-1 with Fixup on 64 images of 8x8: lowering and compiling, the
  step, and the memory for activations, for blocks that are kept and for blocks that are recomputed
  (``remat``), whose memory is to grow as the square root. It is what the compiler plans beside
  arguments, results and a gradient of each parameter.
- **Devices**: virtual ones, which share the cores; a data-parallel step with 64 images a device.

Cost: 15 minutes on two cores; ``--quick`` two, with the smaller sizes.
"""

from __future__ import annotations

import functools
import math
import resource
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from benchmarks import fresh
from benchmarks.cases import Case, make_batches, make_state, make_step
from benchmarks.timing import Ratio, Row

TITLE = "Growth: exponents of costs against runs, layers and devices"
WORK = 1.05
FORMS: dict[str, dict[str, bool]] = {"": {}, " with remat": {"remat": True}}


def measure(*, quick: bool) -> Iterator[Row]:
    each = functools.partial(costs, rounds=1 if quick else 3)
    runs, depths, devices = (24, 96, 384, 1536), (10, 100, 1000, 10_000), (1, 2, 4, 8)
    limits = {"command to report, s": WORK, "memory of the process, MiB": WORK}
    yield from each("sweep", "runs", runs[:2] if quick else runs, limits)
    depths = depths[:3] if quick else depths
    limits = {"lower and compile, s": WORK, "step, s": WORK, "step with remat, s": WORK}
    yield from each("depth", "layers", depths, limits)
    limits = {"activations, MiB": WORK, "activations with remat, MiB": 0.5}
    yield from costs("activations", "layers", depths, limits, rounds=1)
    limits = {"trace and compile, s": WORK, "step, s": WORK}
    yield from each("devices", "devices", devices[:2] if quick else devices, limits)


def costs(
    function: str, unit: str, sizes: Sequence[int], limits: dict[str, float], *, rounds: int
) -> Iterator[Row]:
    """Calls a function of this module with each size in turn; a row for each of its costs."""
    found: dict[int, list[dict[str, float]]] = {size: [] for size in sizes}
    for _ in range(rounds):
        for size in sizes:
            count = f"--xla_force_host_platform_device_count={size if unit == 'devices' else 1}"
            environment = {"JAX_ENABLE_COMPILATION_CACHE": "0", "XLA_FLAGS": count}
            found[size].append(fresh.call(f"{__name__}:{function}", size, **environment))
    for cost, limit in limits.items():
        medians = {size: statistics.median(one[cost] for one in found[size]) for size in sizes}
        yield Row(
            what=f"{sizes[0]:,} to {sizes[-1]:,} {unit}",
            compared=f"exponent of: {cost}",
            ratio=exponent(medians),
            limit=limit,
            numbers={f"{size} {unit}": round(value, 5) for size, value in medians.items()},
        )


def exponent(costs: dict[int, float]) -> Ratio:
    """Of the two largest sizes; the least and the greatest of neighbours."""
    pairs = list(costs.items())
    neighbours = [
        math.log(cost / before) / math.log(size / smaller)
        for (smaller, before), (size, cost) in zip(pairs, pairs[1:], strict=False)
    ]
    return Ratio(neighbours[-1], min(neighbours), max(neighbours))


def sweep(runs: int) -> dict[str, float]:
    """Of so many runs, made by the command."""
    from benchmarks import whole_job

    seconds, _ = whole_job.sweep(runs, "wrn-10-1", 1, "--stem-channels", "4")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {"command to report, s": seconds, "memory of the process, MiB": peak}


def depth(layers: int) -> dict[str, float]:
    """Of a training step of a network of so many layers."""
    found: dict[str, float] = {}
    for form, options in FORMS.items():
        start = time.perf_counter()
        lowered, batch = lowered_step(layers, **options)
        compiled = lowered.compile()
        found[f"lower and compile{form}, s"] = time.perf_counter() - start
        state = jax.device_put(make_state(Case(f"wrn-{layers}-1", 64, 8)))
        found[f"step{form}, s"] = seconds_of(
            lambda state, compiled=compiled, batch=batch: compiled(state, batch)[0], state
        )
    return found


def activations(layers: int) -> dict[str, float]:
    """Of the same step the memory for activations."""
    state = make_state(Case(f"wrn-{layers}-1", 64, 8), abstract=True)
    gradients = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.params))
    found: dict[str, float] = {}
    for form, options in FORMS.items():
        # Memory is assigned before LLVM begins, whose optimisations take most of the time.
        compiled = lowered_step(layers, **options)[0].compile({"xla_backend_optimization_level": 0})
        planned = compiled.memory_analysis().temp_size_in_bytes
        found[f"activations{form}, MiB"] = (planned - gradients) / 2**20
    return found


def lowered_step(layers: int, **options: Any) -> tuple[jax.stages.Lowered, Any]:
    """A training step, lowered from shapes alone, and a batch for it."""
    case = Case(f"wrn-{layers}-1", 64, 8)
    batch = jax.device_put({name: leaf[0] for name, leaf in make_batches(case).items()})
    step = jax.jit(make_step(case.model(**options)), donate_argnums=(0,))
    return step.lower(make_state(case, abstract=True), batch), batch


def devices(count: int) -> dict[str, float]:
    """Of a data-parallel step over so many devices."""
    from benchmarks.together import Trainer

    start = time.perf_counter()
    trainer = Trainer(channels=16, steps=1, runs=1, devices=count)
    trainer.losses()
    made = time.perf_counter() - start
    return {"trace and compile, s": made, "step, s": seconds_of(lambda _: trainer.losses(), None)}


def seconds_of(call: Callable[[Any], Any], state: Any) -> float:
    """The median of seven calls, each on what the last one returned; one is not counted."""
    state = jax.block_until_ready(call(state))
    seconds = []
    for _ in range(7):
        start = time.perf_counter()
        state = jax.block_until_ready(call(state))
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
