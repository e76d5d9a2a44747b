"""Many runs at a time: vectorised on one device, and in threads on a CPU.

Target: on a GPU eight small runs at a time are at least four times as fast as one after another. On
a CPU of one device they come one after another in any case (``vmap`` is shown beside it); what can
gain there is a thread for each core, as sweeps have them.

All rows are in runs/s on the digits with batches of 64, training steps only.

Cost on two cores: three minutes; half a minute with ``--quick``.
"""

from __future__ import annotations

import concurrent.futures
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import jax
import numpy as np

from benchmarks.cases import HYPER, optimizer
from benchmarks.timing import Row, interleaved, ratio, spread
from nf_resnets import data, schemes, training
from nf_resnets.models import architectures
from nf_resnets.sweep.engine import default_workers

TITLE = "Runs at a time (runs/s over those one after another)"
LIMIT = 4.0
"""What eight runs at a time are to gain on a GPU."""
MANY = 8
NETWORK, BATCH = "wrn-10-1", 64
# At the rate of the other parts, a run that is continued through all rounds diverges in the end.
STEADY = {**HYPER, "learning_rate": 1e-3}
Vectorize = Literal["auto", "vmap", "loop"]


def measure(*, quick: bool) -> Iterator[Row]:
    on_cpu = jax.default_backend() == "cpu"
    # A call ends at the end of an epoch, which has 22 steps.
    channels, steps = (8, 2) if quick and on_cpu else (16, 22)
    rounds = 3 if quick else 9
    alone = Trainer(channels, steps, runs=1)
    expected = alone.losses()
    cases: list[tuple[int, Vectorize]] = [(runs, "auto") for runs in (MANY, 1, 2, 4, 16)]
    if on_cpu:
        cases += [(runs, "vmap") for runs in (2, 4, 8, 16)]
    for runs, vectorize in cases[:1] if quick else cases:
        yield on_one_device(alone, expected, runs, vectorize, rounds)
    threads = default_workers(jax.devices()[:1])
    if threads > 1:
        yield in_threads(alone, expected, threads, 2 * rounds)


class Trainer:
    """Runs of seeds 0 to R - 1 in one program; each call makes ``steps``, a divisor of 22.

    Each of ``devices`` has its own ``BATCH`` images of a batch, which leaves less steps a pass.
    """

    def __init__(
        self,
        channels: int,
        steps: int,
        runs: int,
        vectorize: Vectorize = "auto",
        program: training.Program | None = None,
        devices: int = 1,
    ) -> None:
        start = functools.partial(training.Start, schemes.get("fixup"), hyper=STEADY)
        self.channels, self.steps, self.runs = channels, steps, runs
        self.title = f"{NETWORK} of {channels} channels, digits, batch {BATCH}"
        self.program = program or training.image_program(
            architectures.make(NETWORK, "fixup", num_classes=10, stem_channels=channels),
            data.load("digits"),
            optimizer,
            training.make_mesh(1, devices, devices=jax.devices()[:devices]),
            training.ImageTraining(batch_size=BATCH * devices, num_steps=steps),
            start(0),
            runs_per_device=runs,
            vectorize=vectorize,
        )
        self.counts = np.full(runs, steps, np.int32)
        self.states = self.program.begin(list(map(start, range(runs))))

    def call(self) -> training.Steps:
        """Dispatches the steps of all its runs."""
        made = self.program.steps(self.states, self.counts)
        self.states = made.states
        return made

    def losses(self) -> np.ndarray:
        """Makes the steps, and gives each one's loss, float32 [R, K].

        Raises:
          RuntimeError: if a run did not make all its steps, which would have been fast.
        """
        made = self.call()
        counts = np.asarray(made.counts)
        if (counts != self.steps).any() or np.asarray(made.diverged).any():
            raise RuntimeError(f"{counts} steps found; expected {self.steps} of each run.")
        return np.asarray(made.curve["loss"])[:, : self.steps]


def one_after_another(trainers: Sequence[Trainer]) -> None:
    """Calls each once, without waiting in between."""
    jax.block_until_ready([trainer.call().counts for trainer in trainers])


def row(
    title: str, compared: str, runs: int, functions: dict[str, Callable[[], Any]], rounds: int,
    limit: float | None = None,
) -> Row:  # fmt: skip
    """Runs a second of the first function over those of the second, in turns."""
    seconds = interleaved(functions, rounds, warm_up=1)
    many, one = seconds.values()
    return Row(
        "together", title, f"runs/s, {compared}", ratio(one, many), limit, at_least=True,
        numbers={
            f"runs_per_s_{name}": spread([runs / each for each in values])
            for name, values in seconds.items()
        },
    )  # fmt: skip


def on_one_device(
    alone: Trainer, expected: np.ndarray, runs: int, vectorize: Vectorize, rounds: int
) -> Row:
    """Runs in one program against as many calls of the program for one run."""
    joint = Trainer(alone.channels, alone.steps, runs, vectorize)
    # Vectorised sums come in another order; a few steps carry that on.
    np.testing.assert_allclose(joint.losses()[:1], expected, atol=1e-2)
    functions = {
        "at_a_time": lambda: one_after_another([joint]),
        "one_by_one": lambda: one_after_another([alone] * runs),
    }
    named = "" if vectorize == "auto" else f" ({vectorize})"
    compared = f"{runs} at a time{named} / one after another"
    limit = LIMIT if runs == MANY and jax.default_backend() == "gpu" else None
    measured = row(alone.title, compared, runs, functions, rounds, limit)
    joint.losses()  # a run that diverged on the way would have saved its time
    alone.losses()
    return measured


def in_threads(alone: Trainer, expected: np.ndarray, threads: int, rounds: int) -> Row:
    """A run in each thread against one thread with all of them."""
    # The threads of a sweep share what was compiled, too.
    trainers = [
        Trainer(alone.channels, alone.steps, 1, program=alone.program) for _ in range(threads)
    ]
    for trainer in trainers:
        np.testing.assert_array_equal(trainer.losses(), expected)
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:

        def at_a_time() -> None:
            for done in [pool.submit(one_after_another, [trainer]) for trainer in trainers]:
                done.result()

        def one_thread() -> None:
            for trainer in trainers:  # two calls under way would share the cores, too
                one_after_another([trainer])

        functions = {"threads": at_a_time, "one": one_thread}
        measured = row(alone.title, f"{threads} threads / 1 thread", threads, functions, rounds)
    for trainer in trainers:
        trainer.losses()
    return measured
