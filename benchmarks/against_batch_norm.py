"""Against batch normalization: what it costs in step time and memory.

The same network in this library, with BatchNorm, with Fixup's scalars, and with SkipInit's one
scalar a branch. The steps take turns. Memory is what the compiler plans for a step besides its
arguments and results.

Target: on a CUDA GPU, in bfloat16, BatchNorm takes at least 1.2 times as long as Fixup for
WRN-28-10 and ResNet-50; those on CIFAR's small networks are shown without a target.

Cost: about five minutes on two cores; ``--quick`` half a minute, one network.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator

import jax

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
        yield from compare(case, steps=10 if gpu else 1, rounds=3 if quick else 7)


def compare(case: Case, *, steps: int, rounds: int) -> Iterator[Row]:
    """Compares each scheme with the last, ``steps`` in one dispatch."""
    made = {s: cases.make_run(dataclasses.replace(case, scheme=s), steps) for s in SCHEMES}
    seconds = interleaved({scheme: run for scheme, (run, _) in made.items()}, rounds)
    step_s = {scheme: [value / steps for value in values] for scheme, values in seconds.items()}
    mib = {
        scheme: [program.memory_analysis().temp_size_in_bytes / 2**20]
        for scheme, (_, program) in made.items()
    }
    *others, last = SCHEMES
    for words, unit, values in (("step time", "s", step_s), ("memory of a step", "mib", mib)):
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
