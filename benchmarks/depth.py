"""What depth costs: seconds to compile, seconds for each layer of a step, memory.

The blocks of a stage are one loop over their stacked parameters (``nf_resnets.models.stage``). The
targets, each a row with its limit:

1. a training step of a network of about 100 layers takes at most 1.15 times as long as with all
   blocks unrolled, the two taking turns;
2. compiling the step for 10,000 layers takes at most 1.5 times as long as for 100; each compilation
   is in a process of its own;
3. a layer of 10,000 takes at most 1.15 times as long as one of 100;
4. with ``remat``, activation memory grows no faster than the square root of the depth from 100 to
   10,000 layers: the ratio is that of the growths;
5. a whole training step of 10,000 layers on 64 images of 32x32 (parameters, gradients, momentum,
   activations) fits in 16 GiB.

The networks are WRN-n-1 (16 channels, ``n = 6N + 4``) with Fixup, the step is value_and_grad and
the SGD update. Times are those of 8x8 images. Memory is what the compiler plans. Activation memory
is by how much the plan for 128 images exceeds that for 64, which leaves gradients out.

Cost on two cores: ten minutes; ``--quick`` a minute, in which 1 is measured with 22 layers, 3 to
1,000 layers, and 4 not at all.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from benchmarks import fresh
from benchmarks.cases import Case, make_batches, make_state, make_step
from benchmarks.timing import Ratio, Row, interleaved, ratio

TITLE = "Depth: compilation, step time of a layer and memory, from 100 to 10,000 layers"
SHALLOW, DEEP = 100, 10_000
STEP_LIMIT, COMPILE_LIMIT, LAYER_LIMIT, MEMORY_LIMIT = 1.15, 1.5, 1.15, 16 * 1024
NO_CACHE = {"JAX_ENABLE_COMPILATION_CACHE": "0"}
MIB = 2**20

FORMS: dict[str, Callable[[int], dict[str, Any]]] = {
    "scanned": lambda _: {},
    "unrolled": lambda depth: {"unroll": depth},
    "remat": lambda _: {"remat": True},
}


def measure(*, quick: bool) -> Iterator[Row]:
    yield from _forms(quick)
    yield _compilation(quick)
    yield _layers(quick)
    yield from _memory(quick)


def _forms(quick: bool) -> Iterator[Row]:
    # Compiling a hundred layers one by one would take most of the quick run's time.
    network = "wrn-22-1" if quick else "wrn-100-1"
    seconds = _fresh("in_turns", network, 64, 8, 5 if quick else 9)
    numbers = {f"{form}_step_ms": _milli(values) for form, values in seconds.items()}
    for form, than, limit in (("scanned", "unrolled", STEP_LIMIT), ("remat", "scanned", None)):
        compared = f"step time, {form} / {than}"
        value = ratio(seconds[form], seconds[than])
        yield Row("depth", Case(network, 64, 8).title, compared, value, limit, numbers=numbers)


def in_turns(network: str, batch: int, side: int, rounds: int) -> dict[str, list[float]]:
    """The seconds of each form's steps, which take turns."""
    case = Case(network, batch, side)
    depth = int(network.split("-")[1])
    steps = {}
    for form, options in FORMS.items():
        compiled, images = compiled_step(case, **options(depth))
        steps[form] = Steps(compiled, make_state(case), images)
    seconds = interleaved(steps, rounds)
    # They are one network, whose first losses differ by rounding only. Fixup's head starts at zero:
    # the third loss is the first that the branches have changed.
    for form in steps:
        np.testing.assert_allclose(steps[form].losses[:3], steps["scanned"].losses[:3], rtol=1e-5)
    return seconds


class Steps:
    """A compiled step that is called again and again, on one batch.

    Attributes:
      losses: of the calls so far.
    """

    def __init__(self, compiled: Any, state: Any, batch: Any, repeats: int = 1) -> None:
        self._compiled, self._batch, self._repeats = compiled, jax.device_put(batch), repeats
        self._state = jax.device_put(state)
        self.losses: list[float] = []

    def __call__(self) -> None:
        for _ in range(self._repeats):
            self._state, metrics = self._compiled(self._state, self._batch)
            self.losses.append(float(metrics["loss"]))
        jax.block_until_ready(self._state)


def lowered_step(case: Case, **options: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """The step, lowered from shapes alone, and a batch for it."""
    batch = {name: leaf[0] for name, leaf in make_batches(case).items()}
    step = jax.jit(make_step(case.model(**options)), donate_argnums=(0,))
    return step.lower(make_state(case, abstract=True), batch), batch


def compiled_step(case: Case, **options: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """The step, compiled, and a batch for it."""
    lowered, batch = lowered_step(case, **options)
    return lowered.compile(), batch


def _compilation(quick: bool) -> Row:
    rounds = range(1 if quick else 3)
    deep, shallow = ([_fresh("compile_seconds", n) for _ in rounds] for n in (DEEP, SHALLOW))
    return Row(
        "depth",
        "WRN-n-1 fixup, 64 x 8x8",
        f"lower and compile, {DEEP} layers / {SHALLOW}",
        ratio(deep, shallow),
        COMPILE_LIMIT,
        numbers={"deep_s": statistics.median(deep), "shallow_s": statistics.median(shallow)},
    )


def compile_seconds(depth: int) -> float:
    """Tracing, lowering and compiling, from shapes alone."""
    start = time.perf_counter()
    compiled_step(Case(f"wrn-{depth}-1", batch=64, side=8))
    return time.perf_counter() - start


def _layers(quick: bool) -> Row:
    deepest = 1000 if quick else DEEP
    seconds = _fresh("layer_seconds", [SHALLOW, deepest], 64, 8, 3 if quick else 5)
    deep, shallow = seconds[str(deepest)], seconds[str(SHALLOW)]
    return Row(
        "depth",
        "WRN-n-1 fixup, 64 x 8x8",
        f"step time of a layer, {deepest} layers / {SHALLOW}",
        ratio(deep, shallow),
        LAYER_LIMIT,
        numbers={"deep_layer_ms": _milli(deep), "shallow_layer_ms": _milli(shallow)},
    )


def layer_seconds(depths: list[int], batch: int, side: int, rounds: int) -> dict[str, list[float]]:
    """The seconds of a step over the number of layers, of networks that take turns."""
    steps, layers = {}, {}
    for depth in depths:
        case = Case(f"wrn-{depth}-1", batch, side)
        # Of a shallow network several steps in a turn, so that turns are alike in length.
        repeats = max(1, min(20, max(depths) // depth))
        compiled, images = compiled_step(case)
        steps[str(depth)] = Steps(compiled, make_state(case), images, repeats)
        layers[str(depth)] = depth * repeats
    seconds = interleaved(steps, rounds, warm_up=1)
    return {name: [value / layers[name] for value in values] for name, values in seconds.items()}


def _memory(quick: bool) -> Iterator[Row]:
    for form in () if quick else ("remat", "scanned"):
        mib = {depth: activations_mib(depth, form, 64, 8) for depth in (SHALLOW, DEEP)}
        growth = mib[DEEP] / mib[SHALLOW] / math.sqrt(DEEP / SHALLOW)
        yield Row(
            "depth",
            f"WRN-n-1 fixup, 64 x 8x8, {form}",
            f"growth of activation memory / of sqrt(depth), {SHALLOW} to {DEEP} layers",
            Ratio(growth, growth, growth),
            1.0 if form == "remat" else None,
            numbers={f"layers_{n}_mib": mib[n] for n in mib},
        )
    case = Case(f"wrn-{DEEP}-1", batch=64)
    memory = planned(case, remat=True)
    share = memory["all_mib"] / MEMORY_LIMIT
    yield Row(
        "depth",
        f"{case.title}, remat",
        "memory that a step is planned to need / 16 GiB",
        Ratio(share, share, share),
        1.0,
        numbers=memory,
    )


def activations_mib(depth: int, form: str, batch: int, side: int) -> float:
    """What a batch twice as large adds to the plan: what is kept for each image."""
    once, twice = (
        planned(Case(f"wrn-{depth}-1", size, side), **FORMS[form](depth))["temporary_mib"]
        for size in (batch, 2 * batch)
    )
    return twice - once


def planned(case: Case, **options: Any) -> dict[str, float]:
    """The memory that the compiled step asks for; the new state takes the place of the old one."""
    # Memory is assigned before LLVM begins, whose optimisations take most of the time.
    quickly = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    compiled = lowered_step(case, **options)[0].compile(quickly)
    memory = compiled.memory_analysis()
    arguments, temporary = memory.argument_size_in_bytes, memory.temp_size_in_bytes
    new = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return {
        "arguments_mib": arguments / MIB,
        "temporary_mib": temporary / MIB,
        "all_mib": (arguments + temporary + new) / MIB,
    }


def _fresh(function: str, *arguments: Any) -> Any:
    return fresh.call(f"{__name__}:{function}", *arguments, **NO_CACHE)


def _milli(seconds: list[float]) -> float:
    return 1000 * statistics.median(seconds)
