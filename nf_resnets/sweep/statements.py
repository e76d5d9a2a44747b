"""What a ledger says to its database again and again, in SQL put together once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from nf_resnets.sweep import schema
from nf_resnets.sweep.identity import Worker
from nf_resnets.sweep.schema import SEALED, attempts, epochs, programs, runs, workers

__all__ = ["Statements"]


class Statements:
    """What is said to the database again and again, put together once.

    Args:
      dialect: "sqlite" or "postgresql".
    """

    def __init__(self, dialect: str) -> None:
        now = schema.clock(dialect)
        bind = sa.bindparam
        order = (runs.c.position, runs.c.id)
        is_waiting = runs.c.state == "waiting"
        is_running = runs.c.state == "running"
        whole = sa.select(*(runs.c[name] for name in ("id", "settings", "checksum", *SEALED)))
        attempt = (attempts.c.run == bind("of_run")) & (attempts.c.attempt == bind("of_attempt"))

        def put(table: sa.Table, keys: Sequence[str], **values: Any) -> Any:
            """INSERT, or UPDATE what is there under the key."""
            new = schema.insert(dialect, table).values(**values)
            others = {c.name: new.excluded[c.name] for c in table.c if c.name not in keys}
            return new.on_conflict_do_update(index_elements=list(keys), set_=others)

        # Adding
        self.add_programs = schema.insert(dialect, programs).on_conflict_do_nothing()
        self.add_runs = schema.insert(dialect, runs).on_conflict_do_nothing()
        if dialect == "postgresql":
            # Its worker does not say how many of many rows were new.
            self.add_runs = self.add_runs.returning(runs.c.id)
        self.add_worker = schema.insert(dialect, workers).on_conflict_do_nothing()

        # Claiming
        self.holders = (
            sa.select(
                *(workers.c[field.name] for field in dataclasses.fields(Worker)),
                (sa.func.min(runs.c.lease_until) < now).label("expired"),
            )
            .join_from(runs, workers, workers.c.id == runs.c.worker)
            .where(is_running)
            .group_by(workers.c.id)
        )
        self.lost = whole.where(
            is_running,
            (runs.c.lease_until < now) | runs.c.worker.in_(bind("dead", expanding=True)),
        ).with_for_update(skip_locked=True)
        self.first = (
            sa.select(runs.c.key, runs.c.program)
            .where(is_waiting)
            .order_by(*order)
            .limit(bind("page", type_=sa.Integer))
        )
        first_position = (
            sa.select(sa.func.min(runs.c.position))
            .where(is_waiting, runs.c.program == programs.c.name)
            .correlate(programs)
            .scalar_subquery()
        )
        found = sa.select(programs.c.name, first_position.label("first")).subquery()
        self.programs_waiting = (
            sa.select(found.c.name)
            .where(found.c.first.is_not(None))
            .order_by(found.c.first, found.c.name)
        )
        self.take = (
            whole.where(is_waiting, runs.c.program == bind("program"))
            .order_by(*order)
            .limit(bind("most", type_=sa.Integer))
            .with_for_update(skip_locked=True)
        )
        self.take_these = (
            whole.where(is_waiting, runs.c.id.in_(bind("ids", expanding=True)))
            .order_by(*order)
            .with_for_update(skip_locked=True)
        )
        self.page = (
            sa.select(runs.c.id, runs.c.key, runs.c.position)
            .where(
                is_waiting,
                runs.c.program == bind("program"),
                sa.tuple_(*order)
                > sa.tuple_(bind("position", type_=sa.BigInteger), bind("last", type_=sa.Integer)),
            )
            .order_by(*order)
            .limit(bind("page", type_=sa.Integer))
        )
        self.add_attempt = sa.insert(attempts).values(
            run=bind("run"), attempt=bind("attempt"), worker=bind("worker"), started_at=now
        )

        # Holding
        its = (is_running, runs.c.worker == bind("holder"))
        keys = runs.c.key.in_(bind("keys", expanding=True))
        self.renew = (
            sa.update(runs)
            .where(keys, *its)
            .values(lease_until=now + bind("lease", type_=sa.Double))
        )
        self.held_keys = sa.select(runs.c.key).where(keys, *its)
        self.held = whole.where(
            runs.c.key == bind("of_key"), runs.c.attempt == bind("of_attempt"), *its
        ).with_for_update()
        self.outcome = (
            sa.select(attempts.c.outcome)
            .join_from(runs, attempts, attempts.c.run == runs.c.id)
            .where(
                runs.c.key == bind("of_key"),
                attempts.c.attempt == bind("of_attempt"),
                attempts.c.worker == bind("holder"),
            )
        )

        # Ending
        self.put_epochs = put(epochs, ("run", "epoch"))
        self.drop_epochs = sa.delete(epochs).where(
            epochs.c.run == bind("of_run"), epochs.c.step > bind("of_step")
        )
        # Every change of a run writes its checksum, and so all that goes into it.
        self.change = (
            sa.update(runs)
            .where(runs.c.id == bind("of_run"))
            .values(
                worker=bind("holder"),
                lease_until=now + bind("lease", type_=sa.Double),
                checksum=bind("checksum"),
                **{name: bind(name) for name in SEALED},
            )
        )
        self.now = sa.select(now)
        self.ended = whole.where(runs.c.state.in_(bind("states", expanding=True))).with_for_update()
        self.all = whole.order_by(*order)
        self.end_attempt = (
            sa.update(attempts)
            .where(attempt)
            .values(outcome=bind("outcome"), traceback=bind("traceback"), ended_at=now)
        )
        self.state = sa.select(runs.c.state).where(runs.c.key == bind("of_key"))

        # Reading and facts
        self.measure = put(
            schema.measurements,
            ("program", "device"),
            measured_at=now,
            **{
                name: bind(name)
                for name in (
                    "program", "device", "runs_per_device", "seconds_per_step", "compile_seconds"
                )
            },
        )  # fmt: skip
        self.note = put(schema.notes, ("name",))
