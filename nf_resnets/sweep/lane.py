"""A lane: takes runs from the ledger, seats them in a program's slots, trains them to their end."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import math
import time
from typing import Any

import jax
import numpy as np

from nf_resnets.sweep.crew import Crew
from nf_resnets.sweep.ledger import Claim, LedgerError
from nf_resnets.sweep.program import Program, fetch
from nf_resnets.sweep.settings import RunSettings, make
from nf_resnets.training.checkpoint import CheckpointError, CheckpointHeldError, Checkpoints
from nf_resnets.training.run import refuse_labels

FIRST_CHUNK = 8
"""Steps of a program's first call, before it is known how long a step takes."""


SHORTEST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
"""Seconds between two looks at a ledger in which no run waits."""

MOST_BEGINNINGS = 20
"""How often a run may be begun without coming to a checkpoint, whatever ended its workers."""


FATAL = (CheckpointError, LedgerError)
"""No fault of a run: a disk that is full, a folder that is gone, a ledger that does not answer."""


class HopelessError(Exception):
    """A run that is not worth another attempt."""


@dataclasses.dataclass
class Seat:
    """A run in a slot.

    Attributes:
      claim: of the run.
      settings: of the run.
      num_steps: steps of the whole run.
      checkpoints: of the run; its folder is this worker's as long as the run sits.
      step: steps made.
      losses: of the steps of this epoch, float32 [steps per epoch], NaN where still to come.
      accuracies: likewise.
      seconds: the run's share of the time since it was seated, and before.
      seconds_before: ``seconds`` at the beginning of this epoch.
      epochs: rows that the ledger does not have yet.
      saved_epoch: the epoch after which it was last saved.
      saving: the save that is under way while the next epoch is being made.
      save_seconds: how long the last save took.
      saved_at: when it ended, by ``time.perf_counter``.
    """

    claim: Claim
    settings: RunSettings
    num_steps: int
    checkpoints: Checkpoints
    step: int
    losses: np.ndarray
    accuracies: np.ndarray
    seconds: float = 0.0
    seconds_before: float = 0.0
    epochs: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    saved_epoch: int = 0
    saving: concurrent.futures.Future[None] | None = None
    save_seconds: float = 0.0
    saved_at: float = 0.0

    def wait_for_save(self) -> None:
        """Waits until its checkpoint is on disk; raises what kept it from being written."""
        saving, self.saving = self.saving, None
        if saving is not None:
            saving.result()


def work(crew: Crew) -> None:
    """Works until no run is left: none waits, and none is in the hands of others.

    Args:
      crew: what the lanes of the worker share.
    """
    pause = SHORTEST_PAUSE
    with crew.clock.lane():
        while not crew.is_over():
            claims = crew.claim(None, 1)
            if claims:
                _work_on(crew, claims)
                pause = SHORTEST_PAUSE
            elif not crew.agree(lambda ledger: _some_left(crew)):
                return
            else:
                # The others have what is left: looking again costs them, too.
                with crew.clock.spent("idle"):
                    time.sleep(pause)
                pause = min(1.5 * pause, LONGEST_PAUSE)


def _some_left(crew: Crew) -> bool:
    assert crew.ledger is not None
    counts = crew.ledger.counts(crew.keys)
    return bool(counts.get("waiting") or counts.get("running"))


def _work_on(crew: Crew, claims: list[Claim]) -> None:
    """Trains these runs, and others of their program for as long as there are any."""
    settings = make(json.loads(claims[0].settings))
    try:
        with crew.clock.spent("compiling"), crew.compile_for(claims):
            program = crew.programs.get(settings)
        if crew.holds(claims[0]):  # else the worker has left meanwhile
            Slots(crew, program).seat_and_train(claims)
    except Exception as error:
        if jax.process_count() > 1 or isinstance(error, FATAL):
            raise
        _blame(crew, claims, error)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that a device has no memory left."""
    if isinstance(error, MemoryError):
        return True
    text = str(error)
    return type(error).__name__ in ("XlaRuntimeError", "JaxRuntimeError") and (
        "RESOURCE_EXHAUSTED" in text or "Out of memory" in text or "out of memory" in text
    )


def _blame(crew: Crew, claims: list[Claim], error: Exception) -> None:
    """Writes down that these runs could not be trained."""
    for claim in claims:
        if claim.key not in crew.held:
            continue
        if is_out_of_memory(error):
            message = str(error).partition("\n")[0][:500]
            crew.finish(claim, "oom", {"message": message}, [])
        else:
            crew.fail(claim, error)


class Slots:
    """A program's slots, and the runs that sit in them.

    Args:
      crew: what the lanes of the worker share.
      program: what the runs share.
    """

    def __init__(self, crew: Crew, program: Program) -> None:
        self.crew = crew
        self.program = program
        self.seats: list[Seat | None] = [None] * program.slots
        self.states = program.empty()
        self.chunk = FIRST_CHUNK
        self.coming: list[Claim] = []
        self.saver = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="saver")

    def seat_and_train(self, claims: list[Claim]) -> None:
        """Trains these runs and all others of the program that can be had."""
        self.coming = list(claims)
        try:
            while self._fill() or self.coming:
                if any(seat is not None for seat in self.seats):
                    self._train()
                else:
                    self._wait()
                if self.crew.is_over():
                    break
            self._leave()
        except Exception as error:
            if jax.process_count() > 1:
                raise
            # The states may be gone with the call that raised: all go back, or are given up.
            left = [seat.claim for seat in self.seats if seat is not None] + self.coming
            for seat in self.seats:
                if seat is not None:
                    with contextlib.suppress(Exception):  # the first one is what went wrong
                        seat.wait_for_save()
                    seat.checkpoints.close()  # before another worker may take the run
            self.seats, self.coming = [None] * self.program.slots, []
            if isinstance(error, FATAL):
                for claim in left:
                    with contextlib.suppress(Exception):
                        self.crew.release(claim)
                raise
            _blame(self.crew, left, error)
        finally:
            self.saver.shutdown()

    def _wait(self) -> None:
        """Waits for the checkpoints of runs that nobody trains; they may be lost meanwhile."""
        with self.crew.clock.spent("idle"):
            time.sleep(SHORTEST_PAUSE)
        lost = [claim for claim in self.coming if self.crew.is_lost(claim)]
        self.coming = [claim for claim in self.coming if claim not in lost]
        for claim in lost:
            self.crew.let_go(claim)

    def _fill(self) -> bool:
        """Seats runs wherever a slot is free; tells whether anybody sits."""
        free = [slot for slot, seat in enumerate(self.seats) if seat is None]
        in_use: list[Claim] = []
        while free:
            missing = len(free) - len(self.coming)
            if missing > 0:
                self.coming += self.crew.claim(self.program.plan.program, missing)
            if not self.coming:
                break
            try:
                self._sit_down(free[0], self.coming[0])
            except CheckpointHeldError:
                if jax.process_count() > 1:
                    raise
                # Of a worker that was stopped for longer than its lease: the run waits for it to
                # let go, or to end, and others sit down meanwhile.
                in_use.append(self.coming.pop(0))
                continue
            except (CheckpointError, HopelessError) as error:
                if jax.process_count() > 1:
                    raise
                # Never silently from the start: a person has to look at what is there.
                self.crew.fail(self.coming.pop(0), error, for_good=True)
                continue
            except Exception as error:
                if jax.process_count() > 1 or jax.tree.leaves(self.states)[0].is_deleted():
                    raise
                _blame(self.crew, [self.coming.pop(0)], error)
                continue
            self.coming.pop(0)
            free.pop(0)
        self.coming += in_use
        return any(seat is not None for seat in self.seats)

    def _sit_down(self, slot: int, claim: Claim) -> None:
        crew, program = self.crew, self.program
        settings = make(json.loads(claim.settings))
        checkpoints = crew.checkpoints(claim)
        found = crew.restore(checkpoints, self._like())
        if (
            found is None
            and claim.attempt > MOST_BEGINNINGS
            and crew.lost_attempts(claim) >= MOST_BEGINNINGS
        ):
            raise HopelessError(
                f"the run was begun {MOST_BEGINNINGS} times and its worker never came to its end "
                "or its first checkpoint; something in it ends the process."
            )
        nothing = np.full(program.plan.steps_per_epoch, np.nan, np.float32)
        num_steps = program.plan.num_steps
        seat = Seat(claim, settings, num_steps, checkpoints, 0, nothing.copy(), nothing.copy())
        with crew.clock.spent("computing"):
            if found is None:
                self.states = program.begin(self.states, slot, settings)
            else:
                step, saved = found
                self.states = program.put(self.states, slot, saved["state"])
                seat.step = step
                seat.losses, seat.accuracies = saved["losses"].copy(), saved["accuracies"].copy()
                seat.seconds = seat.seconds_before = float(saved["seconds"])
                seat.saved_epoch = step // program.plan.steps_per_epoch
        self.seats[slot] = seat
        if crew.leads():
            values = vars(settings)
            crew.callback.on_run_begin(
                claim.key, crew.label(values), values, seat.step, seat.num_steps
            )

    def _like(self) -> dict[str, Any]:
        of_epoch = jax.ShapeDtypeStruct((self.program.plan.steps_per_epoch,), np.float32)
        return {
            "state": self.program.like,
            "losses": of_epoch,
            "accuracies": of_epoch,
            "seconds": jax.ShapeDtypeStruct((), np.float32),
        }

    def _train(self) -> None:
        """Makes steps with all runs, each at most to the end of its epoch; sees who is done."""
        crew, per_epoch = self.crew, self.program.plan.steps_per_epoch
        counts = np.zeros(len(self.seats), np.int32)
        for slot, seat in enumerate(self.seats):
            if seat is not None:
                to_go = min(per_epoch - seat.step % per_epoch, seat.num_steps - seat.step)
                counts[slot] = min(to_go, self.chunk)
        start = time.perf_counter()
        with crew.clock.spent("computing"):
            result = self.program.steps(self.states, counts)
            self.states = result.states
            curve, made, diverged = fetch((result.curve, result.made, result.diverged))
        elapsed = time.perf_counter() - start
        self._measure(elapsed, int(made.max()))

        sitting = [(slot, seat) for slot, seat in enumerate(self.seats) if seat is not None]
        for slot, seat in sitting:
            numbers = {name: values[slot, : made[slot]] for name, values in curve.items()}
            place = seat.step % per_epoch
            seat.losses[place : place + made[slot]] = numbers["loss"]
            seat.accuracies[place : place + made[slot]] = numbers["accuracy"]
            seat.step += int(made[slot])
            seat.seconds += elapsed / len(sitting)
            if crew.leads():
                crew.callback.on_step(seat.claim.key, seat.step, numbers)
            if diverged[slot]:
                last = {name: float(values[-1]) for name, values in numbers.items()}
                refuse_labels(last, f"the batch of step {seat.step}")
                self._end(slot, "diverged", _where(seat.step, numbers))
        self._drop_lost()
        self._end_epochs()

    def _measure(self, elapsed: float, steps: int) -> None:
        """From how long the steps took: how many to make before looking up again."""
        if steps:
            wanted = self.crew.chunk_seconds * steps / max(elapsed, 1e-6)
            chunk = max(1, min(int(wanted), 1_000_000))
            self.chunk = self.crew.agree(lambda ledger: chunk)

    def _drop_lost(self) -> None:
        """Leaves the runs that were taken from this worker to whoever has them."""
        seats = self.seats

        def lost(ledger: Any) -> list[int]:
            return [
                slot
                for slot, seat in enumerate(seats)
                if seat is not None and self.crew.is_lost(seat.claim)
            ]

        for slot in self.crew.agree(lost):
            seat = seats[slot]
            assert seat is not None
            with contextlib.suppress(CheckpointError):
                seat.wait_for_save()
            seat.checkpoints.close()
            self.crew.let_go(seat.claim)
            seats[slot] = None

    def _end_epochs(self) -> None:
        """Tests, records and saves the runs that have ended an epoch or all of them."""
        per_epoch = self.program.plan.steps_per_epoch
        due = [
            (slot, seat)
            for slot, seat in enumerate(self.seats)
            if seat is not None
            and seat.step
            and (seat.step % per_epoch == 0 or seat.step == seat.num_steps)
        ]
        if not due:
            return
        tests: dict[int, dict[str, float]] = {}
        to_test = [(slot, seat) for slot, seat in due if self._is_tested(seat)]
        if to_test:
            start = time.perf_counter()
            with self.crew.clock.spent("computing"):
                found = self.program.test(self.states)
            elapsed = time.perf_counter() - start
            for slot, seat in to_test:
                tests[slot] = {name: float(values[slot]) for name, values in found.items()}
                refuse_labels(tests[slot], "the test split")
                seat.seconds += elapsed / len(to_test)
        for slot, seat in due:
            row = self._epoch_row(seat, tests.get(slot))
            if self.crew.leads():
                self.crew.callback.on_epoch(seat.claim.key, seat.step, row)
            seat.epochs.append(row)
            test = tests.get(slot)
            if test is not None and not math.isfinite(test["loss"]):
                # The last update itself may have been the one too many.
                self._end(slot, "diverged", f"the test loss is {test['loss']} at step {seat.step}")
            elif seat.step == seat.num_steps:
                self._end(slot, "finished", None)
            else:
                seat.losses[:], seat.accuracies[:] = np.nan, np.nan
                if self._is_saved(seat, row["epoch"]):
                    self._save(slot)
                    seat.saved_epoch = row["epoch"]

    def _is_tested(self, seat: Seat) -> bool:
        epoch = -(-seat.step // self.program.plan.steps_per_epoch)
        return seat.step == seat.num_steps or epoch % seat.settings.evaluate_every == 0

    def _is_saved(self, seat: Seat, epoch: int) -> bool:
        """Whether a checkpoint is due, and so long after the last one that it may take its time."""
        every, share = self.crew.checkpoint_epochs, self.crew.checkpoint_share
        if not every or epoch - seat.saved_epoch < every:
            return False
        if share >= 1:
            return True

        def affordable(ledger: Any) -> bool:
            if seat.saving is not None and not seat.saving.done():
                return False
            # Before the first one nothing is known, and 0 seconds are affordable.
            return seat.save_seconds <= share * (time.perf_counter() - seat.saved_at)

        return self.crew.agree(affordable)

    def _epoch_row(self, seat: Seat, test: dict[str, float] | None) -> dict[str, Any]:
        row = {
            "epoch": -(-seat.step // self.program.plan.steps_per_epoch),
            "step": seat.step,
            "train_loss": _mean(seat.losses),
            "train_accuracy": _mean(seat.accuracies),
            "test_loss": None if test is None else test["loss"],
            "test_accuracy": None if test is None else test["accuracy"],
            "seconds": seat.seconds - seat.seconds_before,
        }
        seat.seconds_before = seat.seconds
        return row

    def _save(self, slot: int) -> None:
        """Records a run's epochs, and saves it if it is still this worker's.

        In this order: killed in between, the run makes the epoch again, with the same numbers. In
        the other order its row would be missing for ever.
        """
        seat = self.seats[slot]
        assert seat is not None
        state = self.program.take(self.states, slot)
        seat.wait_for_save()
        epochs, seat.epochs = seat.epochs, []
        if not self.crew.leads():
            return
        step = seat.step
        tree = {
            "state": state,
            "losses": seat.losses.copy(),
            "accuracies": seat.accuracies.copy(),
            "seconds": np.float32(seat.seconds),
        }

        def save() -> None:
            start = time.perf_counter()
            if not self.crew.record(seat.claim, epochs):
                return
            try:
                seat.checkpoints.save(step, tree)
            except CheckpointHeldError:
                # This process stood still in between, and another one has the run.
                self.crew.mark_lost(seat.claim)
            seat.saved_at = time.perf_counter()
            seat.save_seconds = seat.saved_at - start

        # The disk is slow, and the next epoch need not wait for it.
        seat.saving = self.saver.submit(save)

    def _end(self, slot: int, state: str, message: str | None) -> None:
        seat = self.seats[slot]
        assert seat is not None
        seat.wait_for_save()
        self.seats[slot] = None
        result: dict[str, Any] = {"steps": seat.step, "seconds": seat.seconds, "message": message}
        if state == "finished":
            last = seat.epochs[-1]
            for name in ("test_accuracy", "test_loss", "train_loss", "train_accuracy"):
                result[name] = last[name]
        if self.crew.finish(seat.claim, state, result, seat.epochs):
            # Only now: a worker killed in between leaves a folder too many, and never one too few.
            seat.checkpoints.delete()
        else:
            seat.checkpoints.close()

    def _leave(self) -> None:
        """Saves all runs where they stand, and lets them wait for whoever goes on."""
        for claim in self.coming:
            self.crew.release(claim)
        self.coming = []
        for slot, seat in enumerate(self.seats):
            if seat is not None:
                if seat.step:
                    self._save(slot)
                    seat.wait_for_save()
                seat.checkpoints.close()
                self.crew.release(seat.claim)
                self.seats[slot] = None


def _mean(values: np.ndarray) -> float:
    """The mean of what is there; exact sums, so that it does not depend on how a run was cut."""
    there = values[~np.isnan(values)]
    return math.fsum(there.tolist()) / len(there) if len(there) else math.nan


def _where(step: int, numbers: dict[str, np.ndarray]) -> str:
    """What was not finite at the step at which a run diverged."""
    last = {name: float(values[-1]) for name, values in numbers.items()}
    gone = [f"{name} {value}" for name, value in last.items() if not math.isfinite(value)]
    return f"{', '.join(gone)} at step {step}"


__all__ = [
    "FATAL",
    "FIRST_CHUNK",
    "MOST_BEGINNINGS",
    "HopelessError",
    "Seat",
    "Slots",
    "is_out_of_memory",
    "work",
]
