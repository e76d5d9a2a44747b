"""Where a step's time goes: operations, threads that wait, page faults; ours and PyTorch's.

Each profile is of a fresh process. The times of operations come from the library's own tracing, in
steps that are not timed. An operation's time is that of the thread that began it, which waits for
others that share its work.

Cost: five minutes on two cores; ``--quick`` one, of one network.
"""

from __future__ import annotations

import glob
import re
import resource
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import fresh
from benchmarks.timing import Row, ratio

TITLE = "Where a step's time goes, and what huge pages change"

CASES = (("cifar-resnet-20", 128, 32), ("wrn-1000-1", 64, 8))
HUGE = "glibc.malloc.hugetlb=1"
STEPS, TRACED = 10, 3
_AROUND = ("while", "call", "conditional", "ThunkExecutor", "CommonPjRt", "PjitFunction")
_SMALLEST = 0.01  # of the time of all operations: those below it are added up


def measure(*, quick: bool) -> Iterator[Row]:
    for network, batch, side in CASES[:1] if quick else CASES:
        kinds: dict[str, list[dict[str, Any]]] = {"small": [], "huge": [], "torch": []}
        for _ in range(1 if quick else 3):
            for kind, profiles in kinds.items():
                pages = "" if kind == "small" else HUGE
                case = network, batch, side, kind == "torch"
                profiles.append(fresh.call(f"{__name__}:profile", *case, GLIBC_TUNABLES=pages))
        for compared, a, b in (
            ("step time, huge pages / small ones", "huge", "small"),
            ("step time, nf_resnets / PyTorch eager, huge pages", "huge", "torch"),
        ):
            yield Row(
                what=f"{network} fixup, {batch} x {side}x{side}",
                compared=compared,
                ratio=ratio(*([one["step_ms"] for one in kinds[kind]] for kind in (a, b))),
                limit=1.0,
                numbers={kind: kinds[kind][-1] for kind in (a, b)},
            )


def profile(network: str, batch: int, side: int, in_torch: bool) -> dict[str, Any]:
    """Of a step in this process: milliseconds, page faults, switches, and the operations."""
    from benchmarks import against_torch, cases

    case = cases.Case(network, batch=batch, side=side)
    if in_torch:
        run = against_torch.theirs(case, 1, compiled=False)
    else:
        run, program = cases.make_run(case, 1)
    for _ in range(2):
        run()
    before, seconds = resource.getrusage(resource.RUSAGE_SELF), []
    for _ in range(STEPS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    after = resource.getrusage(resource.RUSAGE_SELF)

    def a_step(name: str, scale: float = 1.0) -> float:
        return round(scale * (getattr(after, name) - getattr(before, name)) / STEPS, 1)

    took = operations_in_torch(run) if in_torch else operations_in_jax(run, program.as_text())
    return {
        "step_ms": round(1e3 * statistics.median(seconds), 1),
        "user_ms": a_step("ru_utime", 1e3),
        "system_ms": a_step("ru_stime", 1e3),
        "page_faults": a_step("ru_minflt"),
        "operations_ms": largest(took),
    }


def largest(took: dict[str, float]) -> dict[str, float]:
    """By falling time; the small ones together."""
    least = _SMALLEST * sum(took.values())
    kept = {name: round(ms, 1) for name, ms in took.items() if ms >= least}
    kept["others"] = round(sum(ms for ms in took.values() if ms < least), 1)
    return dict(sorted(kept.items(), key=lambda item: -item[1]))


def operations_in_jax(run: Callable[[], Any], program: str) -> dict[str, float]:
    """Milliseconds of a step by the kind of the compiled instruction."""
    import jax

    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(TRACED):
                run()
        (path,) = glob.glob(f"{folder}/plugins/profile/*/*.xplane.pb")
        planes = list(jax.profiler.ProfileData.from_file(path).planes)
    lines = (line for plane in planes for line in plane.lines if "XLA" in line.name)
    convolutions, took = convolutions_of(program), defaultdict(float)
    for event in (event for line in lines for event in line.events):
        if not event.name.startswith(_AROUND):
            kind = convolutions.get(event.name.partition("__")[0])
            took[kind or re.sub(r"[.\d]+$", "", event.name)] += event.duration_ns / 1e6 / TRACED
    return took


def convolutions_of(program: str) -> dict[str, str]:
    """Which pass each call of oneDNN in a compiled program is of, by the instruction's name."""
    found = {}
    for name, shape, rest in re.findall(r"%(ffi_call[.\d]*) = f32\[([\d,]*)\](.*)", program):
        if shape.count(",") == 4:
            found[name] = "convolution, gradient of the kernel"
        elif "transpose(" in rest:
            found[name] = "convolution, gradient of the images"
        else:
            found[name] = "convolution"
    return found


def operations_in_torch(run: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds of a step by the operation's name."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
        for _ in range(TRACED):
            run()
    return {event.key: event.self_cpu_time_total / 1e3 / TRACED for event in trace.key_averages()}
