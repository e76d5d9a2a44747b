"""What is PostgreSQL's own: locks that are passed over, a server that goes away, passwords."""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from nf_resnets.sweep.ledger import LedgerError, NewRun, open_ledger, this_worker
from nf_resnets.sweep.schema import programs
from tests.sweep import postgres

pytestmark = pytest.mark.slow


@pytest.fixture
def where(postgresql):
    postgres.clear(postgresql)
    return postgresql


def runs(number):
    return [NewRun(f'{{"seed": {i}}}', "p", i) for i in range(number)]


def test_eight_threads_run_each_run_once(where):
    claimed, errors = [], []

    def work(ledger, worker):
        try:
            while claims := ledger.claim(worker, limit=3):
                claimed.extend(claim.key for claim in claims)
                for claim in claims:
                    assert ledger.finish(claim, worker, "finished", {"steps": 1}, [{"epoch": 1}])
        except BaseException as error:
            errors.append(error)

    with open_ledger(where) as first, open_ledger(where) as second:
        first.add(runs(120))
        threads = [
            threading.Thread(target=work, args=(ledger, this_worker("cpu", {})))
            for ledger in (first, second)
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert sorted(claimed) == sorted(run.key for run in runs(120))
        assert first.counts()["finished"] == len(second.attempts()) == 120


def test_a_claim_does_not_wait_for_another_claim(where):
    with open_ledger(where, patience=1.0) as ledger:
        ledger.add(runs(3))
        with ledger._engine.begin() as connection:
            # Another worker in the middle of its claim.
            locked = ledger._take(connection, "p", 2, None)
            assert len(locked) == 2
            connection.execute(sa.text("SET LOCAL lock_timeout = '2s'"))
            worker = this_worker("cpu", {})
            assert [c.key for c in ledger.claim(worker, limit=3)] == [runs(3)[2].key]
            assert ledger.claim(worker, limit=3) == []
            part = frozenset(run.key for run in runs(3))
            assert ledger.claim(worker, keys=part) == []
        assert len(ledger.claim(worker, limit=3, keys=part)) == 2


def test_workers_that_add_the_same_runs_at_once_do_not_block_each_other(where):
    added, errors = [], []

    def add(ledger, new):
        try:
            added.append(ledger.add(new))
        except BaseException as error:
            errors.append(error)

    # Without patience a deadlock is not tried again.
    with open_ledger(where, patience=0.0) as ledger:
        new = runs(2000)
        # The program is there: adding it would have the second wait for the first.
        added.append(ledger.add(new[1000:1001]))
        threads = [threading.Thread(target=add, args=(ledger, order)) for order in (new, new[::-1])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == [] and sum(added) == 2000
        assert ledger.counts()["waiting"] == 2000


def test_connections_that_were_cut_are_made_anew(where):
    with open_ledger(where, patience=10.0) as ledger:
        ledger.add(runs(2))
        cut = sa.text(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
        with open_ledger(where) as other:
            other._read(lambda connection: connection.execute(cut).all())
        # Between two calls.
        assert ledger.counts()["waiting"] == 2
        # In the middle of one, whose first half must not be there twice.
        calls = []

        def cut_once(connection):
            calls.append(connection)
            connection.execute(sa.insert(programs), {"name": "new"})
            if len(calls) == 1:
                connection.execute(sa.text("SELECT pg_terminate_backend(pg_backend_pid())"))

        ledger._write(cut_once)
        names = ledger._read(lambda connection: connection.scalars(sa.select(programs)).all())
        assert len(calls) == 2 and sorted(names) == ["new", "p"]


def test_a_server_that_stays_away_is_said_after_the_patience(where):
    with open_ledger(where, patience=0.1) as ledger:

        def cut(connection):
            connection.execute(sa.text("SELECT pg_terminate_backend(pg_backend_pid())"))

        with pytest.raises(LedgerError, match="the ledger postgresql://127.0.0.1:.* failed: term"):
            ledger._write(cut)


def test_the_password_is_nowhere(where):
    password = where.split(":")[2].split("@")[0]
    with open_ledger(where) as ledger:
        assert ledger.name.startswith("postgresql://127.0.0.1:")
        assert password not in f"{ledger.name} {ledger!r} {ledger._engine!r}"
    wrong = where.replace(password, "hunter2")
    with pytest.raises(LedgerError, match="password authentication failed") as caught:
        open_ledger(wrong)
    error: BaseException | None = caught.value
    while error is not None:
        assert "hunter2" not in f"{error} {error!r}"
        error = error.__cause__ or error.__context__


def test_another_programs_tables_may_stand_beside(where):
    """A database is often shared; only tables of the ledger's own names are in its way."""
    engine = sa.create_engine(where.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE experiments (x INTEGER)"))
    with open_ledger(where) as ledger:
        assert ledger.add(runs(1)) == 1
    engine.dispose()


@pytest.mark.parametrize(
    ("version", "lacks"), [("1", ("measures", "checksum")), ("2", ("measures",))]
)
def test_a_ledger_of_an_earlier_version_gets_what_it_lacks(where, version, lacks):
    with open_ledger(where) as ledger:
        ledger.add(runs(2))
        worker = this_worker("cpu", {})
        (claim,) = ledger.claim(worker)
        ledger.finish(claim, worker, "finished", {"steps": 1, "train_loss": 0.5}, [{"epoch": 1}])
        before = ledger.rows(), ledger.epochs()

        def older(connection):
            for table in ("runs", "epochs"):
                for column in lacks:
                    connection.execute(sa.text(f"ALTER TABLE {table} DROP COLUMN {column}"))
            connection.execute(sa.text(f"UPDATE notes SET value = '{version}'"))

        ledger._write(older)
    with open_ledger(where) as ledger:
        assert (ledger.rows(), ledger.epochs()) == before
        (claim,) = ledger.claim(worker)
        assert ledger.finish(claim, worker, "finished", {"measures": {"a": 1}})
        assert [row["measures"] for row in ledger.rows()] == [{}, {"a": 1}]
