"""Against batch normalization: what it costs in step time and memory.

The same network in this library, with BatchNorm, with Fixup's scalars, and with SkipInit's one
scalar a branch. The steps take turns. Memory is what the compiler plans for a step besides its
arguments and results.

Cost: about five minutes on two cores; ``--quick`` half a minute, one network.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator

from benchmarks import cases
from benchmarks.cases import Case
from benchmarks.timing import Row, interleaved, ratio

TITLE = "Against batch normalization: the same network, normalized and not"

SCHEMES = ("batchnorm", "skipinit", "fixup")  # the last is what the others are compared with

CASES = (Case("cifar-resnet-20"), Case("cifar-resnet-110"), Case("wrn-16-4", 64))


def measure(*, quick: bool) -> Iterator[Row]:
    for case in [dataclasses.replace(CASES[0], batch=64)] if quick else CASES:
        yield from compare(case, rounds=3 if quick else 7)


def compare(case: Case, *, rounds: int) -> Iterator[Row]:
    """Compares each scheme with the last."""
    made = {s: cases.make_run(dataclasses.replace(case, scheme=s), 1) for s in SCHEMES}
    step_s = interleaved({scheme: run for scheme, (run, _) in made.items()}, rounds)
    mib = {
        scheme: [program.memory_analysis().temp_size_in_bytes / 2**20]
        for scheme, (_, program) in made.items()
    }
    *others, last = SCHEMES
    for words, unit, values in (("step time", "s", step_s), ("memory of a step", "mib", mib)):
        for scheme in others:
            yield Row(
                what=case.title.replace(f" {case.scheme}", ""),
                compared=f"{words}, {scheme} / {last}",
                ratio=ratio(values[scheme], values[last]),
                numbers={f"{s}_{unit}": statistics.median(values[s]) for s in (scheme, last)},
            )
