"""A whole job: a sweep from its command to its report, against plain PyTorch, a process a core.

Both train WRN-16-1 on the digits of scikit-learn, 10 passes in batches of 64, with crop and flip
left out, SGD with momentum, L2 and Fixup's slow scalars, a rate that is halved, and a test after
each pass; 24 or 96 runs of four rates that none diverges at. PyTorch's processes share the runs
evenly, with one thread each, as somebody writes it who has an afternoon: a loop over runs.

Cost: half an hour on two slow cores; ``--quick`` two minutes.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks import fresh
from benchmarks.timing import Row, interleaved, ratio

TITLE = "A whole job: a sweep, against plain PyTorch with a process a core"

MODEL, RATES, EPOCHS = "wrn-16-1", (-8, -7, -6, -5), 10
LIMITS = {24: 0.9, 96: 0.75}


def measure(*, quick: bool) -> Iterator[Row]:
    for runs, limit in LIMITS.items():
        if quick and runs > 24:
            return
        first: list[float] = []
        functions = {
            "sweep": lambda runs=runs, first=first: first.append(sweep(runs, MODEL, EPOCHS)[1]),
            "torch": functools.partial(in_torch, runs),
        }
        seconds = interleaved(functions, rounds=1 if quick else 3, warm_up=0) | {"first_row": first}
        yield Row(
            what=f"{runs} runs of {MODEL} fixup, digits, {EPOCHS} passes",
            compared="command to report / PyTorch eager in processes",
            ratio=ratio(seconds["sweep"], seconds["torch"]),
            limit=limit,
            numbers={f"{name}_s": values for name, values in seconds.items()},
        )


def axes(runs: int) -> tuple[str, str]:
    """The grid of so many runs."""
    return f"peak_lr=2^{RATES[0]}:2^{RATES[-1]}", f"seed=0:{runs // len(RATES) - 1}"


def sweep(runs: int, model: str, epochs: int, *options: str) -> tuple[float, float]:
    """Makes the runs by the command; the seconds to its end, and to the first row."""
    with tempfile.TemporaryDirectory() as folder:
        out, start = Path(folder) / "sweep", time.perf_counter()
        words = [sys.executable, "-m", "nf_resnets", "sweep", "--grid", *axes(runs), "--model",
                 model, "--epochs", str(epochs), "--out", str(out), *options]  # fmt: skip
        hidden = subprocess.DEVNULL
        with subprocess.Popen(words, cwd=fresh.ROOT, stdout=hidden, stderr=hidden) as process:
            while process.poll() is None and not any(
                path.stat().st_size for path in out.glob("rows-*.jsonl")
            ):
                time.sleep(0.05)
            first = time.perf_counter() - start
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, words)
        return time.perf_counter() - start, first


def in_torch(runs: int) -> None:
    """Makes the runs in PyTorch, a process a core."""
    cores = os.cpu_count() or 1
    shares = [[run for run in range(runs) if run % cores == share] for share in range(cores)]
    train = functools.partial(fresh.call, "benchmarks.whole_job:train_in_torch")
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(train, shares))  # raises what a process raised


def train_in_torch(runs: list[int]) -> list[float]:
    """Trains some of the runs, and gives their test accuracies."""
    import numpy as np
    import torch

    from benchmarks import torch_networks
    from nf_resnets import data

    torch.set_num_threads(1)
    digits = data.load("digits")
    mean, std = (np.float32(of(digits.train.images)) for of in (np.mean, np.std))
    train, test = (
        (torch.from_numpy(np.moveaxis((split.images - mean) / std, 3, 1).copy()),
         torch.from_numpy(split.labels.astype(np.int64)))
        for split in (digits.train, digits.test)
    )  # fmt: skip
    images, labels = train[0].contiguous(memory_format=torch.channels_last), train[1]
    per_epoch, accuracies = len(labels) // 64, []
    for run in runs:
        torch.manual_seed(run)
        network = torch_networks.Network(MODEL, channels=images.shape[1])
        torch_networks.fixup(network)
        network = network.to(memory_format=torch.channels_last)
        peak = 2.0 ** RATES[run % len(RATES)]
        optimizer = torch_networks.make_optimizer(network, peak, 5e-4)
        step = torch_networks.make_step(network, optimizer, torch.float32)
        half = EPOCHS * per_epoch // 2
        for epoch in range(EPOCHS):
            order = torch.randperm(len(labels))
            for index in range(per_epoch):
                halvings = max(0, 1 + 10 * (epoch * per_epoch + index - half) // half)
                for group, factor in zip(optimizer.param_groups, (1.0, 0.1), strict=True):
                    group["lr"] = peak * factor * 0.5**halvings
                batch = order[64 * index : 64 * (index + 1)]
                step(images[batch], labels[batch])
            with torch.no_grad():
                accuracy = (network(test[0]).argmax(1) == test[1]).float().mean()
        accuracies.append(float(accuracy))
    return accuracies
