"""Training: a wave of runs that share a program, from their first step to their last."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from nf_resnets.training import hosts
from nf_resnets.training.callbacks import Callbacks
from nf_resnets.training.checkpoint import Checkpoints
from nf_resnets.training.mesh import unstack
from nf_resnets.training.program import Program, Start
from nf_resnets.training.run import Plan, Run, refuse_labels
from nf_resnets.training.state import TrainState

MOST_SAVING = 0.02
"""Of the time between two checkpoints, what writing one may take: else the next one waits."""

OUTCOME = ("test_accuracy", "test_loss", "train_loss", "train_accuracy")
"""What the row of a finished run has of its last epoch."""

Row = dict[str, Any]


class Stopped(Exception):
    """Training was told to stop; what was reached is saved."""


@dataclasses.dataclass(frozen=True)
class Hooks:
    """What a wave tells others, and asks of them.

    Attributes:
      callback: receives the events of the runs; on process 0 only.
      record: ``record(rows)`` keeps the rows of runs that have ended, and returns those that it
        did not have.
      stop: ``stop()`` says whether to save and leave; it is called about once a second.
      probe: ``probe(program, plan, state, step)`` gives JSON values for the row of an epoch, before
        the first step and after each epoch; None for none.
      finish: ``finish(program, plan, state)`` gives more measures of a finished run.
    """

    callback: Any = dataclasses.field(default_factory=Callbacks)
    record: Callable[[Sequence[Row]], Sequence[Mapping[str, Any]]] = lambda rows: rows
    stop: Callable[[], bool] = lambda: False
    probe: Callable[[Program, Plan, Any, int], Mapping[str, Any]] | None = None
    finish: Callable[[Program, Plan, Any], Mapping[str, Any]] | None = None


def train(
    program: Program,
    starts: Sequence[Start | TrainState],
    plans: Sequence[Plan] | None = None,
    *,
    checkpoints: Checkpoints | None = None,
    hooks: Hooks = Hooks(),
    save_seconds: float = 60.0,
    call_seconds: float = 1.0,
    keep_states: bool = False,
) -> list[Run]:
    """Trains runs of a program until all of them have made their steps or have diverged.

    A wave that is killed and started again with its checkpoints ends with the same numbers.

    Args:
      program: with at least as many slots as there are runs.
      starts: how the runs begin, unless there is a checkpoint: the start of each, or its state.
      plans: what the runs are; a checkpoint of others is refused. By default they are numbered,
        and known by their steps, the size of the state, and the seeds, numbers and schemes that
        they start from, not by their data.
      checkpoints: where the wave is saved and resumed, and stays; None for neither.
      hooks: who is told.
      save_seconds: between two checkpoints.
      call_seconds: about so long is a call that makes steps; a signal is noticed between two.
      keep_states: whether the result has the runs' last states.

    Raises:
      Stopped: if ``hooks.stop()`` says so; the wave is saved.
      ValueError: if the checkpoints are of other runs, or a label is no class.
      OSError: if a row cannot be kept, or the wave cannot be saved when it is to stop.
    """
    if plans is None:
        plans = [
            Plan(_given(program, start) | {"run": number}, f"run {number}", program.num_steps,
                 program.steps_per_epoch)
            for number, start in enumerate(starts)
        ]  # fmt: skip
    wave = _Wave(program, plans, hooks, copy.copy(program.steps))
    try:
        _begin(wave, starts, checkpoints)
        return _train(wave, checkpoints, save_seconds, call_seconds, keep_states)
    finally:
        getattr(wave.steps, "close", lambda: None)()


def _given(program: Program, start: Start | TrainState) -> dict[str, Any]:
    """What a program and a start say of a run, as JSON values."""
    size = sum(leaf.size for leaf in jax.tree.leaves(program.like))
    given: dict[str, Any] = {"seed": int(start.seed), "size": size}
    given |= {f"hyper/{name}": str(float(value)) for name, value in start.hyper.items()}
    if isinstance(start, Start):
        given["scheme"] = start.scheme.name
        given |= {name: str(getattr(start, name)) for name in ("alpha", "branch_scale")}
    return given


@dataclasses.dataclass
class _Wave:
    program: Program
    plans: Sequence[Plan]
    hooks: Hooks
    steps: Callable[..., Any]  # that of the program, with batches of its own
    states: Any = None
    runs: list[Run] = dataclasses.field(default_factory=list)

    def all(self) -> list[tuple[int, Plan, Run]]:
        """The runs, each with its slot and its plan."""
        return [(slot, self.plans[slot], run) for slot, run in enumerate(self.runs)]

    def left(self) -> list[tuple[int, Plan, Run]]:
        """The runs that have steps to make."""
        return [each for each in self.all() if each[2].status == "stopped"]

    def taken(self) -> list[Any]:
        """The states of the runs, as NumPy arrays."""
        states = hosts.gather(self.states)
        return [jax.tree.map(np.asarray, unstack(states, slot)) for slot in range(len(self.runs))]


def _begin(wave: _Wave, starts: Sequence[Any], checkpoints: Checkpoints | None) -> None:
    """Fills the slots, from the newest checkpoint if there is one."""
    program, count = wave.program, len(wave.plans)
    shape = program.num_steps, len(program.metrics)
    like = {
        "states": jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), program.like
        ),
        "curve": jax.ShapeDtypeStruct((count, *shape), np.float32),
    }
    saved, other = None, False
    if checkpoints is not None and hosts.is_process_zero():
        there = checkpoints.facts()
        if there is not None:
            steps = there.get("num_steps", program.num_steps)
            other = (there["keys"], steps) != ([plan.key for plan in wave.plans], program.num_steps)
        try:
            saved = None if other else checkpoints.restore(like)
        except ValueError:
            other = True
    if hosts.any_process(other):
        assert checkpoints is not None
        raise ValueError(
            f"{checkpoints.folder} holds a run of other settings, data, network or number of "
            "steps; expected its own. Remove it to begin anew, or choose another place."
        )
    saved = hosts.broadcast(saved)
    tree, facts = (None, {}) if saved is None else saved[1:]
    begun = time.perf_counter()
    if tree is not None:
        starts = [unstack(tree["states"], slot) for slot in range(count)]
    wave.states = program.begin(starts)
    took = (time.perf_counter() - begun) / count
    for slot, start in enumerate(starts):
        if tree is None:
            step = int(start.step) if isinstance(start, TrainState) else 0
            if step >= program.num_steps:
                raise ValueError(
                    f"num_steps={program.num_steps} found; expected more than the {step} made."
                )
            run = Run(program.metrics, np.full(shape, np.nan, np.float32), step, seconds=took)
        else:
            run = Run(program.metrics, np.array(tree["curve"][slot]), **facts["runs"][slot])
        run.first_step = run.step
        wave.runs.append(run)
    for _, plan, run in wave.left():
        wave.hooks.callback.on_run_begin(
            plan.key, plan.label, plan.settings, run.step, program.num_steps
        )
    if tree is None and wave.hooks.probe is not None:
        states = wave.taken()
        for slot, plan, run in wave.left():
            measures = dict(wave.hooks.probe(program, plan, states[slot], run.step))
            run.history.append({"epoch": 0, "step": run.step, "measures": measures})


def _train(
    wave: _Wave, checkpoints: Checkpoints | None, save_seconds: float, call_seconds: float,
    keep_states: bool,
) -> list[Run]:  # fmt: skip
    program, hooks = wave.program, wave.hooks
    count, saved_at, saving, ended = 1, time.monotonic(), 0.0, set[int]()

    def end_runs() -> None:
        over = [e for e in wave.all() if e[2].status != "stopped" and e[0] not in ended]
        ended.update(slot for slot, _, _ in over)
        _end_runs(wave, over, keep_states)

    end_runs()  # those that had diverged before the checkpoint, if their rows were lost
    while left := wave.left():
        step = left[0][2].step  # they are all at the same one
        per_epoch = left[0][1].steps_per_epoch
        epoch_end = min((step // per_epoch + 1) * per_epoch, program.num_steps)
        took, must_stop = _agree(_make_steps(wave, min(count, epoch_end - step)), hooks.stop())
        made = max(run.step for _, _, run in left) - step
        count = max(1, min(int(call_seconds * made / max(took, 1e-6)), 1_000_000))
        _end_epoch(wave, [each for each in left if each[2].step == epoch_end])
        end_runs()
        if checkpoints is None or not wave.left():
            if must_stop and wave.left():
                raise Stopped
            continue
        since, _ = _agree(time.monotonic() - saved_at, False)
        if must_stop or (since > save_seconds and saving < MOST_SAVING * since):
            _save(wave, checkpoints, must=must_stop)
            saving, _ = _agree(time.monotonic() - saved_at - since, False)
            saved_at = time.monotonic()
        if must_stop:
            raise Stopped
    return wave.runs


def _agree(seconds: float, flag: bool) -> tuple[float, bool]:
    """The longest of the processes' seconds, and whether any has the flag: the same on all."""
    if jax.process_count() == 1:
        return seconds, flag
    of_all = multihost_utils.process_allgather(np.array([seconds, flag], np.float32))
    return float(of_all[:, 0].max()), bool(of_all[:, 1].any())


def _make_steps(wave: _Wave, count: int) -> float:
    """Makes steps with the runs that have some left; returns the seconds that they took."""
    program, left = wave.program, wave.left()
    counts = np.zeros(program.slots, np.int32)
    counts[[slot for slot, _, _ in left]] = count
    begun = time.perf_counter()
    made = wave.steps(wave.states, counts)
    wave.states = made.states
    curve, steps, diverged = hosts.gather((dict(made.curve), made.counts, made.diverged))
    took = time.perf_counter() - begun
    for slot, plan, run in left:
        new = {name: curve[name][slot, : steps[slot]] for name in program.metrics}
        run.curve[run.step : run.step + steps[slot]] = np.stack(list(new.values()), axis=-1)
        run.step += int(steps[slot])
        run.seconds += took / len(left)
        run.step_seconds += took / len(left)
        if diverged[slot]:
            last = {name: float(values[-1]) for name, values in new.items()}
            refuse_labels(last, f"the batch of step {run.step}")
            gone = [f"{name} {x}" for name, x in last.items() if not math.isfinite(x)]
            run.diverged = f"{', '.join(gone)} at step {run.step}"
        run.input_seconds = getattr(wave.steps, "seconds_waited", None)
        if wait := run.input_wait():
            new["input_fraction"] = [wait["input_fraction"]]
        wave.hooks.callback.on_step(plan.key, run.step, new)
    return took


def _end_epoch(wave: _Wave, runs: Sequence[tuple[int, Plan, Run]]) -> None:
    """Tests the runs where a test is due, and makes a row of the epoch of each."""
    runs = [each for each in runs if not each[2].diverged]
    if not runs:
        return
    program, (_, plan, first) = wave.program, runs[0]
    epoch = -(-first.step // plan.steps_per_epoch)
    is_over = first.step == program.num_steps
    begun, tests = time.perf_counter(), {}
    if is_over or (plan.evaluate_every and epoch % plan.evaluate_every == 0):
        tests = {name: np.asarray(values) for name, values in program.test(wave.states).items()}
    took = (time.perf_counter() - begun) / len(runs)
    states = wave.taken() if wave.hooks.probe is not None else []
    for slot, plan, run in runs:
        test = {name: float(values[slot]) for name, values in tests.items()}
        refuse_labels(test, "the test split")
        run.seconds += took
        since = sum(row.get("seconds", 0.0) for row in run.history)
        start = (run.step - 1) // plan.steps_per_epoch * plan.steps_per_epoch
        row: Row = {
            "epoch": epoch,
            "step": run.step,
            "train_loss": run.mean("loss", start),
            "train_accuracy": run.mean("accuracy", start),
            **{f"test_{name}": test.get(name) for name in ("loss", "accuracy")},
            "seconds": run.seconds - since,
            "measures": {},
        }
        wave.hooks.callback.on_epoch(plan.key, run.step, row)
        run.history.append(row)
        if not math.isfinite(test.get("loss", 0.0)):
            # The last update itself may have made the parameters diverge.
            run.diverged = f"the test loss is {test['loss']} at step {run.step}"
        elif wave.hooks.probe is not None:
            row["measures"] = dict(wave.hooks.probe(program, plan, states[slot], run.step))


def _end_runs(wave: _Wave, runs: Sequence[tuple[int, Plan, Run]], keep_states: bool) -> None:
    """Records the runs that have ended."""
    rows, finish = [], wave.hooks.finish
    states = wave.taken() if runs and (keep_states or finish is not None) else []
    for slot, plan, run in runs:
        finished = run.status == "finished"
        row = row_of(plan, run.status, run.diverged or None)
        row |= {"steps_done": run.step, "seconds": run.seconds, "history": run.history}
        row |= {"measures": run.measures(plan.curve_points)}
        if finished:
            row |= {name: run.history[-1][name] for name in OUTCOME}
        if keep_states:
            run.state = states[slot]
        if finished and finish is not None:
            row["measures"] |= finish(wave.program, plan, states[slot])
        rows.append(row)
    for new in wave.hooks.record(rows) if rows else ():
        wave.hooks.callback.on_run_end(new["key"], new["state"], new)


def row_of(plan: Plan, state: str, message: str | None) -> Row:
    """The row of a run of which nothing was made."""
    return {
        **plan.settings,
        "key": plan.key,
        "program": plan.program,
        "data": plan.data,
        "state": state,
        "message": message,
        "steps_done": 0,
        "seconds": 0.0,
        **dict.fromkeys(OUTCOME),
        "history": [],
        "measures": {},
        "resolved": {"num_steps": plan.num_steps},
    }


def _save(wave: _Wave, checkpoints: Checkpoints, *, must: bool) -> None:
    """Saves the wave; one that cannot be saved goes on, unless it ``must`` be."""
    names = ("step", "seconds", "diverged", "history")
    count = len(wave.runs)
    tree = {
        "states": jax.tree.map(lambda leaf: leaf[:count], hosts.gather(wave.states)),
        "curve": np.stack([run.curve for run in wave.runs]),
    }
    facts = {
        "keys": [plan.key for plan in wave.plans],
        "num_steps": wave.program.num_steps,
        "runs": [{name: getattr(run, name) for name in names} for run in wave.runs],
    }
    if not hosts.is_process_zero():
        return
    try:
        checkpoints.save(max(run.step for run in wave.runs), tree, facts)
    except OSError as error:
        if must:
            raise
        wave.hooks.callback.on_message(f"no checkpoint: {error}; training goes on without")
