"""Many runs at a time: vectorised on one device, in threads on a CPU, sharded over devices.

Target: on a GPU eight small runs at a time are at least four times as fast as one after another. On
a CPU of one device they come one after another in any case (``vmap`` is shown beside it); what can
gain there is a thread for each core, as sweeps have them. Runs on several devices do not
communicate.

All rows are in runs/s on the digits with batches of 64, training steps only.

Cost on two cores: three minutes; half a minute with ``--quick``.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Literal

import jax
import numpy as np

from benchmarks.cases import HYPER, optimizer
from benchmarks.rows import Row
from benchmarks.timing import interleaved, ratio, spread
from nf_resnets import data, schemes, training
from nf_resnets.models import architectures
from nf_resnets.sweep.engine import default_workers

TITLE = "Runs at a time (runs/s over those one after another, or on one device)"
LIMIT = 4.0
"""What eight runs at a time are to gain on a GPU."""
MANY = 8
"""Runs that are sharded over devices, and those that the limit is for."""
BATCH = 64
# At the rate of the other parts, a run that is continued through all rounds diverges in the end.
STEADY = {**HYPER, "learning_rate": 1e-3}
Vectorize = Literal["auto", "vmap", "loop"]


def unavailable() -> str | None:
    return None


def measure(*, quick: bool) -> Iterator[Row]:
    on_cpu = jax.default_backend() == "cpu"
    small = Small("wrn-10-1", 8, steps=2) if quick and on_cpu else Small("wrn-10-1", 16, steps=22)
    rounds = 3 if quick else 9
    alone = Trainer(small, 1)
    by_itself = alone.losses()
    cases: list[tuple[int, Vectorize]] = [(runs, "auto") for runs in (MANY, 1, 2, 4, 16)]
    if on_cpu:
        cases += [(runs, "vmap") for runs in (2, 4, 8, 16)]
    for runs, vectorize in cases:
        if not quick or (runs == MANY and vectorize == "auto"):
            yield on_one_device(alone, by_itself, runs, vectorize, rounds)
    devices = jax.devices()
    threads = default_workers(devices[:1])
    if threads > 1:
        yield in_threads(alone, by_itself, threads, 2 * rounds)
    if len(devices) > 1:
        yield over_devices(small, devices[:MANY], rounds)


@dataclasses.dataclass(frozen=True)
class Small:
    """A small network, and the steps of a call.

    Attributes:
      network: its name in the registry of architectures.
      channels: of its first convolution.
      steps: in one call; a divisor of an epoch's 22, at whose end a call ends.
    """

    network: str
    channels: int
    steps: int

    @property
    def title(self) -> str:
        return f"{self.network} of {self.channels} channels, digits, batch {BATCH}"


class Trainer:
    """Runs of seeds 0 to R - 1 in one program; each call makes as many steps.

    Args:
      small: the network.
      runs: how many.
      vectorize: how a device computes them.
      devices: over which they are sharded.
      program: compiled already for such runs.
    """

    def __init__(
        self,
        small: Small,
        runs: int,
        vectorize: Vectorize = "auto",
        devices: Sequence[jax.Device] | None = None,
        program: training.Program | None = None,
    ) -> None:
        devices = jax.devices()[:1] if devices is None else devices
        dataset = data.load("digits")
        per_epoch = data.steps_per_epoch(len(dataset.train.labels), BATCH)
        if per_epoch % small.steps:
            raise ValueError(f"steps={small.steps} found; expected a divisor of {per_epoch}.")
        start = functools.partial(training.Start, schemes.get("fixup"), hyper=STEADY)
        self.small, self.runs = small, runs
        self.program = program or training.image_program(
            architectures.make(
                small.network, "fixup", num_classes=10, stem_channels=small.channels
            ),
            dataset,
            optimizer,
            training.make_mesh(len(devices), 1, devices=devices),
            training.ImageTraining(batch_size=BATCH, num_steps=small.steps),
            start(0),
            runs_per_device=runs // len(devices),
            vectorize=vectorize,
        )
        self.counts = np.full(runs, small.steps, np.int32)
        self.states = self.program.empty()
        for seed in range(runs):
            self.states = self.program.begin(self.states, seed, start(seed))

    def call(self) -> training.Steps:
        """Dispatches the steps of all its runs."""
        found = self.program.steps(self.states, self.counts)
        self.states = found.states
        return found

    def losses(self) -> np.ndarray:
        """Makes the steps, and gives each one's loss, float32 [R, K].

        Raises:
          RuntimeError: if a run did not make all its steps, which would have been fast.
        """
        found = self.call()
        counts = np.asarray(found.counts)
        if (counts != self.small.steps).any() or np.asarray(found.diverged).any():
            raise RuntimeError(f"{counts} steps found; expected {self.small.steps} of each run.")
        return np.asarray(found.curve["loss"])[:, : self.small.steps]


def one_after_another(trainers: Sequence[Trainer]) -> None:
    """Calls each once, without waiting in between."""
    jax.block_until_ready([trainer.call().counts for trainer in trainers])


def on_one_device(
    alone: Trainer, by_itself: np.ndarray, runs: int, vectorize: Vectorize, rounds: int
) -> Row:
    """The row for runs in one program against as many calls of the program for one run.

    Args:
      alone: of one run.
      by_itself: the losses of that run's first call.
      runs: how many at a time.
      vectorize: how a device computes them.
      rounds: in which the two take turns.
    """
    joint = Trainer(alone.small, runs, vectorize)
    refuse_other_losses(joint.losses()[:1], by_itself, f"{runs} runs at a time ({vectorize})")
    seconds = interleaved(
        {
            "joint": lambda: one_after_another([joint]),
            "one by one": lambda: one_after_another([alone] * runs),
        },
        rounds,
        warm_up=1,
    )
    joint.losses()  # a run that diverged on the way would have saved its time
    alone.losses()
    named = "" if vectorize == "auto" else f" ({vectorize})"
    return Row(
        "together",
        alone.small.title,
        f"runs/s, {runs} at a time{named} / one after another",
        # More runs a second is fewer seconds.
        ratio(seconds["one by one"], seconds["joint"]),
        LIMIT if runs == MANY and jax.default_backend() == "gpu" else None,
        at_least=True,
        numbers={
            "runs": runs,
            "vectorize": vectorize,
            "steps_a_run": alone.small.steps,
            "runs_per_s_at_a_time": _per_second(runs, seconds["joint"]),
            "runs_per_s_one_by_one": _per_second(runs, seconds["one by one"]),
        },
    )


def in_threads(alone: Trainer, by_itself: np.ndarray, threads: int, rounds: int) -> Row:
    """The row for threads, each with a run of its own, against one thread with all of them."""
    # The threads of a sweep share what was compiled, too.
    trainers = [Trainer(alone.small, 1, program=alone.program) for _ in range(threads)]
    for trainer in trainers:
        refuse_other_losses(trainer.losses(), by_itself, "a thread")
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:

        def side_by_side() -> None:
            for done in [pool.submit(one_after_another, [trainer]) for trainer in trainers]:
                done.result()

        def one_thread() -> None:
            for trainer in trainers:  # two calls under way would share the cores, too
                one_after_another([trainer])

        functions = {"threads": side_by_side, "one": one_thread}
        seconds = interleaved(functions, rounds, warm_up=1)
    for trainer in trainers:
        trainer.losses()
    return Row(
        "together",
        alone.small.title,
        f"runs/s, {threads} threads / 1 thread",
        ratio(seconds["one"], seconds["threads"]),
        numbers={
            "threads": threads,
            "runs_per_s_threads": _per_second(threads, seconds["threads"]),
            "runs_per_s_one": _per_second(threads, seconds["one"]),
        },
    )


def over_devices(small: Small, devices: Sequence[jax.Device], rounds: int) -> Row:
    """The row for ``MANY`` runs sharded over devices against all of them on one."""
    one, sharded = (Trainer(small, MANY, "auto", some) for some in (devices[:1], devices))
    refuse_other_losses(sharded.losses(), one.losses(), f"{len(devices)} devices")
    functions = {
        "sharded": lambda: one_after_another([sharded]), "one": lambda: one_after_another([one])
    }  # fmt: skip
    seconds = interleaved(functions, rounds, warm_up=1)
    return Row(
        "together",
        f"{small.title}, {MANY} runs",
        f"runs/s, {len(devices)} devices / 1",
        ratio(seconds["one"], seconds["sharded"]),
        numbers={f"runs_per_s_{name}": _per_second(MANY, each) for name, each in seconds.items()},
    )


def refuse_other_losses(found: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Refuses numbers that are not those of the same run by itself.

    Raises:
      RuntimeError: that says by how much they differ.
    """
    # Vectorised sums come in another order; a few steps carry that on.
    difference = float(np.max(np.abs(found - expected)))
    if not difference < 1e-2:
        raise RuntimeError(f"{what}: losses differ by {difference:.2g} from those of a run alone.")


def _per_second(runs: int, seconds: list[float]) -> str:
    return spread([runs / each for each in seconds])
