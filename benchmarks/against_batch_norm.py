"""Against batch normalization: what it costs in step time, memory and compile time.

The same network in this library, with BatchNorm, with Fixup's scalars, and with SkipInit's one
scalar a branch. The steps take turns, and so do the compilations. Memory is what the compiler plans
for a step besides its arguments and results.

Target: on a CUDA GPU, in bfloat16, BatchNorm takes at least 1.2 times as long as Fixup for
WRN-28-10 and ResNet-50; those on CIFAR's small networks are shown without a target.

Cost: about five minutes on two cores; ``--quick`` half a minute, one network.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from benchmarks import cases
from benchmarks.cases import Case
from benchmarks.timing import Row, interleaved, ratio

TITLE = "Against batch normalization: the same network, normalized and not"

SCHEMES = ("batchnorm", "skipinit", "fixup")  # the last is what the others are compared with

ON_CPU = (Case("cifar-resnet-20"), Case("cifar-resnet-110"), Case("wrn-16-4", 64))
ON_GPU = (
    Case("wrn-28-10", dtype="bfloat16"),
    Case("resnet-50", side=224, dtype="bfloat16"),
    *(dataclasses.replace(case, batch=128, dtype="bfloat16") for case in ON_CPU),
)
LIMIT, WITH_TARGET = 1.2, ("wrn-28-10", "resnet-50")


def measure(*, quick: bool) -> Iterator[Row]:
    gpu = jax.default_backend() == "gpu"
    chosen = ON_GPU if gpu else ON_CPU
    for case in [dataclasses.replace(chosen[0], batch=64)] if quick else chosen:
        yield from compare(
            case,
            steps=10 if gpu else 1,
            rounds=3 if quick else 7,
            compilations=1 if quick or gpu else 2,
        )


def compare(case: Case, *, steps: int, rounds: int, compilations: int) -> Iterator[Row]:
    """Compares each scheme with the last, ``steps`` in one dispatch.

    Raises:
      RuntimeError: if a loss is not finite.
    """
    twins = {scheme: dataclasses.replace(case, scheme=scheme) for scheme in SCHEMES}
    programs, compile_s = compile_in_turn(twins, steps, compilations)
    step_s = step_in_turn(twins, programs, steps, rounds)
    mib = {
        scheme: [program.memory_analysis().temp_size_in_bytes / 2**20]
        for scheme, program in programs.items()
    }
    *others, last = SCHEMES
    measured = (
        ("step time", "s", step_s), ("memory of a step", "mib", mib),
        ("compile time of a step", "compile_s", compile_s),
    )  # fmt: skip
    for words, unit, values in measured:
        for scheme in others:
            has_target = case in ON_GPU and case.network in WITH_TARGET and scheme == "batchnorm"
            yield Row(
                part="against_batch_norm",
                what=case.title.replace(f" {case.scheme}", ""),
                compared=f"{words}, {scheme} / {last}",
                ratio=ratio(values[scheme], values[last]),
                limit=LIMIT if has_target and unit == "s" else None,
                at_least=True,
                numbers={f"{s}_{unit}": statistics.median(values[s]) for s in (scheme, last)},
            )


def compile_in_turn(
    twins: dict[str, Case], steps: int, times: int
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Traces and compiles each step so many times, from shapes; the programs, and the seconds."""
    programs: dict[str, Any] = {}

    def compile_one(name: str) -> None:
        case = twins[name]
        state = cases.make_state(case, abstract=True)
        batches = jax.eval_shape(lambda: cases.make_batches(case, steps))
        programs[name] = cases.make_steps(case.model()).lower(state, batches).compile()

    functions = {name: functools.partial(compile_one, name) for name in twins}
    # One uncounted round would cost as much as it counts; the order turns instead.
    return programs, interleaved(functions, times, warm_up=0)


def step_in_turn(
    twins: dict[str, Case], programs: dict[str, Any], steps: int, rounds: int
) -> dict[str, list[float]]:
    """The seconds of a step of each."""
    states = {name: jax.device_put(cases.make_state(case)) for name, case in twins.items()}
    batches = jax.device_put(cases.make_batches(next(iter(twins.values())), steps))
    losses: dict[str, Any] = {}

    def step(name: str) -> None:
        states[name], losses[name] = jax.block_until_ready(programs[name](states[name], batches))

    seconds = interleaved({name: functools.partial(step, name) for name in twins}, rounds)
    for name, values in losses.items():
        if not np.isfinite(np.asarray(values)).all():
            raise RuntimeError(f"{twins[name].title}: losses {values} found; expected finite ones.")
    return {name: [value / steps for value in values] for name, values in seconds.items()}
