"""Against PyTorch: the same network, parameters, batch and update, eager and compiled.

Target: on a CPU a step in at most 0.9 of the time of PyTorch eager; on a CUDA GPU, in bfloat16,
in at most 0.8 of the time of ``torch.compile``. Both libraries have all cores, both make the whole
step: loss, gradients, SGD with momentum, L2 and Fixup's slower scalars; ours also gives the norms
of gradient and update. First it is checked that both compute the same losses for six steps.

Each has a process of its own, as users have it, and the second of two steps is timed: in training a
step follows a step. In one process ours took up to 1.5 times as long, PyTorch's as long as alone;
the first step after seconds of waiting took 1.2 times as long on a virtual machine, whose freed
memory may go back to its host.

Cost: about ten minutes on two cores, half of it ``torch.compile``; ``--quick`` half a minute, one
network, eager only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from benchmarks import cases, fresh
from benchmarks.cases import Case
from benchmarks.timing import Row, interleaved, ratio

TITLE = "Against PyTorch: the same step of the same network"

ON_CPU = (Case("cifar-resnet-20"), Case("cifar-resnet-110"), Case("wrn-16-4"))
ON_GPU = tuple(  # bfloat16, for which the target is, first
    Case(network, dtype=dtype)
    for dtype in ("bfloat16", "float32")
    for network in ("cifar-resnet-20", "wrn-28-10", "wrn-16-4")
)

# Seen over ten steps in float32: 2e-7 of the loss; L2 left out gives 3e-5 by the sixth, scalars at
# the full rate 1e-3. A GPU's products of bfloat16, and by default of float32, are rounded more.
SAME_LOSS, SAME_LOSS_ROUNDED = 1e-5, 2e-2
COMPARED = 6  # losses; later ones of a network that has begun to diverge say nothing

EAGER_LIMIT, COMPILED_LIMIT = 0.9, 0.8


def on_gpu() -> bool:
    return jax.default_backend() == "gpu"


def measure(*, quick: bool) -> Iterator[Row]:
    chosen = ON_GPU if on_gpu() else ON_CPU
    chosen = chosen[:1] if quick else chosen
    for case in chosen:
        yield from step_times(case, rounds=5 if quick or on_gpu() else 9, compiled=not quick)


def begin(name: str, case: dict[str, Any], steps: int) -> Callable[[], list[float]]:
    """Makes ``ours``, ``eager`` or ``compiled``: so many steps a call, which gives their losses."""
    if name == "ours":
        return cases.make_run(Case(**case), steps)[0]
    return theirs(Case(**case), steps, compiled=name == "compiled")


def theirs(case: Case, steps: int, *, compiled: bool) -> Callable[[], list[float]]:
    """The same in PyTorch, from the same parameters."""
    import torch

    from benchmarks import torch_networks

    device = "cuda" if on_gpu() else "cpu"
    torch.set_num_threads(os.cpu_count() or 1)
    # As JAX does: float32 products of a GPU's tensor cores, for both convolutions and matrices.
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    params = jax.device_get(cases.make_state(case).params)
    network = torch_networks.build(case.network, params, device)
    optimizer = torch_networks.make_optimizer(network, **cases.HYPER)
    called = torch.compile(network) if compiled else network
    step = torch_networks.make_step(called, optimizer, getattr(torch, case.dtype))
    batches = torch_networks.tensors(cases.make_batches(case, steps), device)

    def run() -> list[float]:
        # One transfer at the end, so that the device never waits for the host.
        return torch.stack([step(*batch) for batch in batches]).tolist()

    return run


def step_times(case: Case, *, rounds: int, compiled: bool) -> Iterator[Row]:
    """Times both in turn.

    Raises:
      RuntimeError: if they do not compute the same losses.
    """
    steps = 10 if on_gpu() else 1
    words = {"eager": "PyTorch eager", "compiled": "torch.compile"}
    names = ("ours", "eager", "compiled")[: 3 if compiled else 2]
    with contextlib.ExitStack() as stack:
        functions = {
            name: stack.enter_context(
                fresh.kept(f"{__name__}:begin", name, dataclasses.asdict(case), steps)
            )
            for name in names
        }
        check_losses(case, functions)
        # A call of ten steps on a GPU has hardly a first one.
        seconds = interleaved(functions, rounds, untimed=0 if on_gpu() else 1)
    of = {name: [value / steps for value in values] for name, values in seconds.items()}
    numbers = {f"{name}_ms": [round(1000 * value, 3) for value in of[name]] for name in of}
    limits = {"compiled": COMPILED_LIMIT if on_gpu() and case.dtype == "bfloat16" else None}
    limits |= {"eager": None if on_gpu() else EAGER_LIMIT}
    for name in names[1:]:
        yield Row(
            what=case.title,
            compared=f"step time, nf_resnets / {words[name]}",
            ratio=ratio(of["ours"], of[name]),
            limit=limits[name],
            numbers=numbers,
        )


def check_losses(case: Case, functions: dict[str, Callable[[], list[float]]]) -> None:
    """Makes six steps or more with each, and compares every loss."""
    calls = 1 if on_gpu() else COMPARED
    tolerance = SAME_LOSS_ROUNDED if on_gpu() or case.dtype != "float32" else SAME_LOSS
    losses = {
        name: np.concatenate([function() for _ in range(calls)])[:COMPARED]
        for name, function in functions.items()
    }
    for name in functions.keys() - {"ours"}:
        difference = np.max(np.abs(losses["ours"] - losses[name]) / np.abs(losses[name]))
        if not difference <= tolerance:
            raise RuntimeError(
                f"{case.title}: losses {losses['ours'][:3]} found with nf_resnets and "
                f"{losses[name][:3]} with PyTorch ({name}); expected the same."
            )
