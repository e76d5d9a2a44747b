"""The slots of a program, in which a worker trains the runs that it has claimed."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import json
import math
import time
from typing import Any

import jax

from nf_resnets.sweep.claims import Claims
from nf_resnets.sweep.ledger import Claim, LedgerError
from nf_resnets.sweep.task import Resolved
from nf_resnets.training.checkpoint import CheckpointError, CheckpointHeldError, Checkpoints
from nf_resnets.training.program import Program
from nf_resnets.training.progress import (
    Progress,
    advance,
    checkpoint_like,
    refuse_labels,
    restore,
    steps_for,
)

SHORTEST_PAUSE = 0.1
"""Seconds between two tries to get what another worker holds."""

MOST_BEGINNINGS = 20
"""How often a run may start without reaching a checkpoint, whatever ended its workers."""

FATAL = (CheckpointError, LedgerError)
"""Errors that no run caused: a full disk, a missing folder, a ledger that does not answer."""


class HopelessError(Exception):
    """A run that is not tried again."""


@dataclasses.dataclass
class ActiveRun:
    """A run in a slot."""

    claim: Claim
    resolved: Resolved
    progress: Progress
    checkpoints: Checkpoints  # locked by this worker while the run is in the slot
    epoch_start: int = 0  # the first step of this epoch
    epoch_seconds: float = 0.0  # ``progress.seconds`` at ``epoch_start``
    # Rows of epochs that the ledger does not have yet.
    epochs: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    saved_epoch: int = 0  # the epoch after which the run was last saved
    saving: concurrent.futures.Future[None] | None = None  # the save in progress
    save_seconds: float = 0.0  # how long the last save took
    saved_at: float = dataclasses.field(default_factory=time.perf_counter)  # when it ended
    waited: float = 0.0  # ``program.input_seconds()`` when the run entered the slot

    @property
    def step(self) -> int:
        """Steps made."""
        return self.progress.step

    @property
    def epoch(self) -> int:
        """The epoch that the last step was of, counted from 1."""
        return -(-self.step // self.resolved.steps_per_epoch)

    @property
    def is_over(self) -> bool:
        """Whether all steps are made."""
        return self.step == self.resolved.num_steps

    @property
    def ends_epoch(self) -> bool:
        """Whether the last step was the last one of an epoch, or of the run."""
        return self.step > 0 and (self.step % self.resolved.steps_per_epoch == 0 or self.is_over)

    @property
    def test_is_due(self) -> bool:
        """Whether a test is due after this epoch."""
        return self.is_over or self.epoch % self.resolved.evaluate_every == 0

    def steps_left(self) -> int:
        """Steps to the end of the epoch, or of the run."""
        per_epoch = self.resolved.steps_per_epoch
        return min(per_epoch - self.step % per_epoch, self.resolved.num_steps - self.step)

    def wait_for_save(self) -> None:
        """Waits until the checkpoint is on disk; raises the error of the save, if there was one."""
        saving, self.saving = self.saving, None
        if saving is not None:
            saving.result()


class Slots:
    """A program's slots, and the runs in them."""

    def __init__(self, claims: Claims, program: Program, name: str) -> None:
        self.claims = claims
        self.program = program
        self.name = name
        self.runs: list[ActiveRun | None] = [None] * program.slots  # one a slot
        self.states = program.empty()
        self.call_steps = 1  # steps in the next call, at most
        self.queue: list[Claim] = []  # claimed runs that are in no slot yet
        self.saver = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="saver")

    def train(self, claims: list[Claim]) -> None:
        """Trains these runs, and all others of the program that can be claimed."""
        self.queue = list(claims)
        try:
            while self._fill() or self.queue:
                if any(run is not None for run in self.runs):
                    self._make_steps()
                else:
                    self._wait()
                if self.claims.must_stop():
                    break
            self._leave()
        except Exception as error:
            if jax.process_count() > 1:
                raise
            self._give_up(error)
        finally:
            self.saver.shutdown()
            self.program.close()

    def _active(self) -> list[tuple[int, ActiveRun]]:
        return [(slot, run) for slot, run in enumerate(self.runs) if run is not None]

    def _give_up(self, error: Exception) -> None:
        """Lets go of all runs after an error: the states may be donated to the call that raised."""
        left = [run.claim for _, run in self._active()] + self.queue
        for _, run in self._active():
            with contextlib.suppress(Exception):  # the first error is the one to report
                run.wait_for_save()
            run.checkpoints.close()  # before another worker may take the run
        self.runs, self.queue = [None] * self.program.slots, []
        if isinstance(error, FATAL):
            for claim in left:
                with contextlib.suppress(Exception):
                    self.claims.release(claim)
            raise error
        self.claims.record_failure(left, error)

    def _wait(self) -> None:
        """Waits for queued runs whose checkpoints are in use; drops those that are lost."""
        with self.claims.clock.spent("idle"):
            time.sleep(SHORTEST_PAUSE)
        lost = [claim for claim in self.queue if self.claims.is_lost(claim)]
        self.queue = [claim for claim in self.queue if claim not in lost]
        for claim in lost:
            self.claims.let_go(claim)

    def _fill(self) -> bool:
        """Puts runs into the free slots; returns whether any slot has a run."""
        free = [slot for slot, run in enumerate(self.runs) if run is None]
        in_use: list[Claim] = []
        while free:
            missing = len(free) - len(self.queue)
            if missing > 0:
                self.queue += self.claims.claim(self.name, missing)
            if not self.queue:
                break
            try:
                self._begin(free[0], self.queue[0])
            except CheckpointHeldError:
                if jax.process_count() > 1:
                    raise
                # A worker that was suspended for longer than its lease still holds the folder. The
                # run waits until that worker lets go or ends; others begin meanwhile.
                in_use.append(self.queue.pop(0))
                continue
            except (CheckpointError, HopelessError) as error:
                if jax.process_count() > 1:
                    raise
                # The run is not begun anew: somebody has to look at the checkpoints first.
                self.claims.fail(self.queue.pop(0), error, for_good=True)
                continue
            except Exception as error:
                if jax.process_count() > 1 or _is_donated(self.states):
                    raise
                self.claims.record_failure([self.queue.pop(0)], error)
                continue
            self.queue.pop(0)
            free.pop(0)
        self.queue += in_use
        return bool(self._active())

    def _begin(self, slot: int, claim: Claim) -> None:
        claims, program = self.claims, self.program
        resolved = claims.task.resolve(json.loads(claim.settings))
        checkpoints = claims.checkpoints(claim)
        found = restore(checkpoints if claims.writes else None, checkpoint_like(program))
        often = found is None and claim.attempt > MOST_BEGINNINGS
        if often and claims.lost_attempts(claim) >= MOST_BEGINNINGS:
            raise HopelessError(
                f"the run was begun {MOST_BEGINNINGS} times and its worker never came to its end "
                "or its first checkpoint; something in it ends the process."
            )
        begun = time.perf_counter()
        with claims.clock.spent("computing"):
            if found is None:
                progress = Progress.begin(program)
                self.states = program.begin(self.states, slot, claims.task.start(resolved))
            else:
                progress = Progress.resume(program, *found)
                self.states = program.put(self.states, slot, found[1]["state"])
        progress.seconds += time.perf_counter() - begun
        run = ActiveRun(claim, resolved, progress, checkpoints)
        run.epoch_start = run.step - run.step % resolved.steps_per_epoch
        run.saved_epoch = run.step // resolved.steps_per_epoch
        run.epoch_seconds = 0.0 if found is None else progress.seconds
        run.waited = 0.0 if program.input_seconds is None else program.input_seconds()
        self.runs[slot] = run
        if claims.writes:
            claims.callback.on_run_begin(
                claim.key, resolved.label, resolved.settings, run.step, resolved.num_steps
            )
        if found is None and claims.task.probe is not None:
            run.epochs.append({"epoch": 0, "step": 0, "measures": self._probe(slot, run)})

    def _probe(self, slot: int, run: ActiveRun) -> dict[str, Any]:
        probe = self.claims.task.probe
        if probe is None:
            return {}
        with self.claims.clock.spent("computing"):
            state = self.program.take(self.states, slot)
            return dict(probe(self.program, run.resolved, state, run.step))

    def _make_steps(self) -> None:
        """Makes steps with all runs, each to the end of its epoch at most; ends what is over."""
        claims = self.claims
        before = [0 if run is None else run.step for run in self.runs]
        with claims.clock.spent("computing"):
            self.states, elapsed = advance(
                self.program,
                self.states,
                [None if run is None else run.progress for run in self.runs],
                [0 if run is None else min(run.steps_left(), self.call_steps) for run in self.runs],
            )
        made = max(run.step - before[slot] for slot, run in self._active())
        wanted = steps_for(claims.execution.call_seconds, made, elapsed)
        self.call_steps = claims.agree(lambda ledger: wanted)
        for slot, run in self._active():
            if claims.writes:
                metrics = run.progress.metrics
                new: dict[str, Any] = {
                    name: run.progress.column(name, before[slot]) for name in metrics
                }
                if self.program.input_seconds is not None:
                    new["input_fraction"] = [self._input_fraction(run)]
                claims.callback.on_step(run.claim.key, run.step, new)
            if run.progress.diverged:
                self._end(slot, "diverged", _divergence_message(run.progress))
        self._drop_lost()
        self._end_epochs()

    def _input_fraction(self, run: ActiveRun) -> float:
        """The fraction of the time in steps in which the run waited for batches."""
        assert self.program.input_seconds is not None
        waited = self.program.input_seconds() - run.waited
        return min(waited / max(run.progress.step_seconds, 1e-9), 1.0)

    def _drop_lost(self) -> None:
        """Drops the runs that another worker has taken over."""

        def find(ledger: Any) -> list[int]:
            return [slot for slot, run in self._active() if self.claims.is_lost(run.claim)]

        for slot in self.claims.agree(find):
            run = self.runs[slot]
            assert run is not None
            with contextlib.suppress(CheckpointError):
                run.wait_for_save()
            run.checkpoints.close()
            self.claims.let_go(run.claim)
            self.runs[slot] = None

    def _end_epochs(self) -> None:
        """Tests, records and saves the runs that have ended an epoch or all of them."""
        tests = self._test([(slot, run) for slot, run in self._active() if run.ends_epoch])
        for slot, run in self._active():
            if not run.ends_epoch:
                if self._save_is_due(run, after_epoch=False):
                    self._save(slot)
                continue
            test = tests.get(slot, {})
            row = self._epoch_row(run, test)
            if self.claims.writes:
                self.claims.callback.on_epoch(run.claim.key, run.step, row)
            run.epochs.append(row)
            loss = test.get("loss", 0.0)
            if not math.isfinite(loss):
                # The last update itself may have made the parameters diverge.
                self._end(slot, "diverged", f"the test loss is {loss} at step {run.step}")
                continue
            row["measures"] = self._probe(slot, run)
            if run.is_over:
                self._end(slot, "finished", None)
            elif self._save_is_due(run, after_epoch=True):
                self._save(slot)
                run.saved_epoch = run.epoch

    def _test(self, due: list[tuple[int, ActiveRun]]) -> dict[int, dict[str, float]]:
        """Tests the runs that are due for a test; returns their results by slot."""
        due = [(slot, run) for slot, run in due if run.test_is_due]
        if not due:
            return {}
        start = time.perf_counter()
        with self.claims.clock.spent("computing"):
            found = self.program.test(self.states)
        elapsed = time.perf_counter() - start
        tests = {}
        for slot, run in due:
            tests[slot] = {name: float(values[slot]) for name, values in found.items()}
            refuse_labels(tests[slot], "the test split")
            run.progress.seconds += elapsed / len(due)
        return tests

    def _save_is_due(self, run: ActiveRun, *, after_epoch: bool) -> bool:
        """Whether a checkpoint is due, after an epoch or within one, and costs little enough."""
        how = self.claims.execution
        seconds = 0.0 if after_epoch else how.checkpoint_seconds
        if after_epoch and not 0 < how.checkpoint_epochs <= run.epoch - run.saved_epoch:
            return False
        if not after_epoch and not seconds:
            return False
        if how.checkpoint_fraction >= 1 and not seconds:
            return True

        def affordable(ledger: Any) -> bool:
            if run.saving is not None and not run.saving.done():
                return False
            since = time.perf_counter() - run.saved_at
            # Before the first save ``save_seconds`` is 0, so that one is always affordable.
            fraction = how.checkpoint_fraction
            return since >= seconds and (fraction >= 1 or run.save_seconds <= fraction * since)

        return self.claims.agree(affordable)

    def _epoch_row(self, run: ActiveRun, test: dict[str, float]) -> dict[str, Any]:
        """The ledger's row of the epoch that ends; the next epoch starts here."""
        progress = run.progress
        row = {
            "epoch": run.epoch,
            "step": run.step,
            "train_loss": progress.mean("loss", run.epoch_start),
            "train_accuracy": progress.mean("accuracy", run.epoch_start),
            "test_loss": test.get("loss"),
            "test_accuracy": test.get("accuracy"),
            "seconds": progress.seconds - run.epoch_seconds,
        }
        run.epoch_start, run.epoch_seconds = run.step, progress.seconds
        return row

    def _save(self, slot: int) -> None:
        """Records a run's epochs, then saves a checkpoint, if this worker still holds the run.

        A worker that is killed in between repeats the epoch, with the same numbers. In the other
        order the row of the epoch would never be written.
        """
        run = self.runs[slot]
        assert run is not None
        state = self.program.take(self.states, slot)
        run.wait_for_save()
        epochs, run.epochs = run.epochs, []
        if not self.claims.writes:
            return
        step, tree = run.step, run.progress.tree(state)

        def save() -> None:
            start = time.perf_counter()
            if not self.claims.record(run.claim, epochs):
                return
            try:
                run.checkpoints.save(step, tree)
            except CheckpointHeldError:
                # This process was suspended in between, and another one took the run over.
                self.claims.mark_lost(run.claim)
            run.saved_at = time.perf_counter()
            run.save_seconds = run.saved_at - start

        # In a thread, so that the next epoch does not wait for the disk.
        run.saving = self.saver.submit(save)

    def _end(self, slot: int, state: str, message: str | None) -> None:
        """Records the result of a run that finished or diverged, and frees its slot."""
        run = self.runs[slot]
        assert run is not None
        run.wait_for_save()
        measures = run.progress.measures(run.resolved.curve_points)
        if self.program.input_seconds is not None:
            measures["input_wait"] = self.program.input_seconds() - run.waited
            measures["input_fraction"] = self._input_fraction(run)
        if state == "finished" and self.claims.task.finish is not None:
            with self.claims.clock.spent("computing"):
                last = self.program.take(self.states, slot)
                measures |= self.claims.task.finish(self.program, run.resolved, last)
        self.runs[slot] = None
        result: dict[str, Any] = {"steps": run.step, "seconds": run.progress.seconds}
        result |= {"message": message, "measures": measures}
        if state == "finished":
            names = ("test_accuracy", "test_loss", "train_loss", "train_accuracy")
            result |= {name: run.epochs[-1][name] for name in names}
        if self.claims.finish(run.claim, state, result, run.epochs):
            # After the ledger: a worker killed in between leaves a checkpoint that nobody needs.
            run.checkpoints.delete()
        else:
            run.checkpoints.close()

    def _leave(self) -> None:
        """Saves all runs and releases them, to be resumed by any worker."""
        for claim in self.queue:
            self.claims.release(claim)
        self.queue = []
        for slot, run in self._active():
            if run.step:
                self._save(slot)
                run.wait_for_save()
            run.checkpoints.close()
            self.claims.release(run.claim)
            self.runs[slot] = None


def _is_donated(states: Any) -> bool:
    """Whether the states were donated to a call that raised."""
    leaf = jax.tree.leaves(states)[0]
    return isinstance(leaf, jax.Array) and leaf.is_deleted()


def _divergence_message(progress: Progress) -> str:
    """Says which metric was not finite at the step at which a run diverged."""
    gone = [f"{name} {x}" for name, x in progress.last().items() if not math.isfinite(x)]
    return f"{', '.join(gone)} at step {progress.step}"


__all__ = ["FATAL", "MOST_BEGINNINGS", "SHORTEST_PAUSE", "ActiveRun", "HopelessError", "Slots"]
