"""Many runs at a time in one program.

Target: on a GPU, which vectorises them, sixteen small runs at a time take at most a quarter of the
time of one after another. On a CPU of one device they come one after another in any case. All rows
are on the digits with batches of 64, training steps only.

Cost on two cores: two minutes; half a minute with ``--quick``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import jax
import numpy as np

from benchmarks.cases import HYPER, optimizer
from benchmarks.timing import Row, interleaved, ratio
from nf_resnets import data, schemes, training
from nf_resnets.models import architectures

TITLE = "Many runs at a time: their time over that of one after another"
LIMIT = 0.25
MANY = 16
NETWORK, BATCH = "wrn-10-1", 64
# At the rate of the other parts, a run that is continued through all rounds diverges in the end.
STEADY = {**HYPER, "learning_rate": 1e-3}


def measure(*, quick: bool) -> Iterator[Row]:
    # A call ends at the end of an epoch, which has 22 steps.
    channels, steps = (8, 2) if quick else (16, 22)
    rounds = 3 if quick else 9
    alone = Trainer(channels, steps, runs=1)
    expected = alone.losses()
    for runs in (MANY,) if quick else (MANY, 4, 1):
        yield on_one_device(alone, expected, runs, rounds)


class Trainer:
    """Runs of seeds 0 to R - 1 in one program; each call makes ``steps``, a divisor of 22.

    Each of ``devices`` has its own ``BATCH`` images of a batch, which leaves fewer steps a pass.
    """

    def __init__(self, channels: int, steps: int, runs: int, devices: int = 1) -> None:
        start = functools.partial(training.Start, schemes.get("fixup"), hyper=STEADY)
        self.channels, self.steps, self.runs = channels, steps, runs
        self.title = f"{NETWORK} of {channels} channels, digits, batch {BATCH}"
        self.program = training.image_program(
            architectures.make(NETWORK, "fixup", num_classes=10, stem_channels=channels),
            data.load("digits"),
            optimizer,
            training.make_mesh(1, devices, devices=jax.devices()[:devices]),
            training.ImageTraining(batch_size=BATCH * devices, num_steps=steps),
            start(0),
            runs_per_device=runs,
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


def on_one_device(alone: Trainer, expected: np.ndarray, runs: int, rounds: int) -> Row:
    """Runs in one program against as many calls of the program for one run."""
    joint = Trainer(alone.channels, alone.steps, runs)
    # Vectorised sums come in another order; a few steps carry that on.
    np.testing.assert_allclose(joint.losses()[:1], expected, atol=1e-2)

    def one_by_one() -> None:
        # All are dispatched before the first is waited for.
        jax.block_until_ready([alone.call().counts for _ in range(runs)])

    functions = {
        "at_a_time": lambda: jax.block_until_ready(joint.call().counts),
        "one_by_one": one_by_one,
    }
    seconds = interleaved(functions, rounds, warm_up=1)
    joint.losses()  # a run that diverged on the way would have saved its time
    alone.losses()
    return Row(
        alone.title, f"time, {runs} at a time / one after another",
        ratio(seconds["at_a_time"], seconds["one_by_one"]),
        LIMIT if runs == MANY and jax.default_backend() == "gpu" else None,
        numbers={f"{name}_s": values for name, values in seconds.items()},
    )  # fmt: skip
