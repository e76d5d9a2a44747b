"""The tables of a ledger, and the database that holds them: an SQLite file or PostgreSQL."""

from __future__ import annotations

import random
import sqlite3
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

__all__ = [
    "RESULTS",
    "STATES",
    "VERSION",
    "LedgerError",
    "attempts",
    "clock",
    "drivers",
    "epochs",
    "insert",
    "locate",
    "measurements",
    "notes",
    "one_line",
    "open_engine",
    "prepare",
    "programs",
    "runs",
]

# Raised whenever a table changes; a ledger of another version is refused, never altered.
VERSION = "1"
RESULTS = (
    "steps", "test_accuracy", "test_loss", "train_loss", "train_accuracy", "seconds", "message"
)  # fmt: skip
STATES = ("waiting", "running", "finished", "diverged", "failed", "oom")

metadata = sa.MetaData()

# Small facts about the ledger itself; VERSION_NOTE marks a database as a ledger.
VERSION_NOTE = "nf_resnets ledger"
notes = sa.Table(
    "notes",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)

# Every process that ever claimed a run.
drivers = sa.Table(
    "drivers",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("boot", sa.Text, nullable=False),
    sa.Column("pid", sa.BigInteger, nullable=False),
    sa.Column("start", sa.BigInteger),
    sa.Column("device", sa.Text, nullable=False),
    sa.Column("versions", sa.Text, nullable=False),
)

# One row for each program, so that the first waiting run of every program is found without
# reading the runs.
programs = sa.Table("programs", metadata, sa.Column("name", sa.Text, primary_key=True))

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("key", sa.String(64), nullable=False, unique=True),
    sa.Column("settings", sa.Text, nullable=False),
    sa.Column("program", sa.Text, sa.ForeignKey("programs.name"), nullable=False),
    sa.Column("position", sa.BigInteger, nullable=False),
    sa.Column("resolved", sa.Text, nullable=False),
    sa.Column("state", sa.String(8), nullable=False),
    # How often the run was claimed: it only grows, and tells a claim from those that came later.
    sa.Column("attempt", sa.Integer, nullable=False),
    # How often it raised since it was added or retried.
    sa.Column("failures", sa.Integer, nullable=False),
    # Both NULL unless the run is running.
    sa.Column("driver", sa.Text, sa.ForeignKey("drivers.id")),
    sa.Column("lease_until", sa.Double),
    sa.Column("steps", sa.BigInteger),
    sa.Column("test_accuracy", sa.Double),
    sa.Column("test_loss", sa.Double),
    sa.Column("train_loss", sa.Double),
    sa.Column("train_accuracy", sa.Double),
    sa.Column("seconds", sa.Double),
    sa.Column("message", sa.Text),
    sa.Column("finished_at", sa.Double),
    sa.CheckConstraint(sa.column("state").in_(STATES), name="runs_state"),
    # A claim reads one end of one of these, however many runs there are.
    sa.Index("runs_by_position", "state", "position", "id"),
    sa.Index("runs_by_program", "state", "program", "position", "id"),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("run", sa.ForeignKey("runs.id"), primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("driver", sa.Text, sa.ForeignKey("drivers.id"), nullable=False),
    sa.Column("started_at", sa.Double, nullable=False),
    sa.Column("ended_at", sa.Double),
    # finished, diverged, oom, raised, released or lost; NULL while it runs.
    sa.Column("outcome", sa.String(8)),
    sa.Column("traceback", sa.Text),
    sqlite_with_rowid=False,
)

epochs = sa.Table(
    "epochs",
    metadata,
    sa.Column("run", sa.ForeignKey("runs.id"), primary_key=True, autoincrement=False),
    sa.Column("epoch", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("step", sa.BigInteger),
    sa.Column("train_loss", sa.Double),
    sa.Column("train_accuracy", sa.Double),
    sa.Column("test_loss", sa.Double),
    sa.Column("test_accuracy", sa.Double),
    sa.Column("seconds", sa.Double),
    # The attempt that wrote the row last.
    sa.Column("attempt", sa.Integer, nullable=False),
    sqlite_with_rowid=False,
)

# What a program costs on a device.
measurements = sa.Table(
    "measurements",
    metadata,
    sa.Column("program", sa.Text, primary_key=True),
    sa.Column("device", sa.Text, primary_key=True),
    sa.Column("runs_per_device", sa.Integer, nullable=False),
    sa.Column("seconds_per_step", sa.Double),
    sa.Column("compile_seconds", sa.Double),
    sa.Column("measured_at", sa.Double, nullable=False),
)

# Any number that all who create tables in one PostgreSQL database agree on.
CREATION_LOCK = 0x6E665F7265736E

# Bytes of an SQLite file that are read through when it is opened: about a fifth of a second.
QUICKLY_CHECKED = 64 * 2**20


class LedgerError(ValueError):
    """What is wrong with a ledger, in one sentence."""


def one_line(error: BaseException) -> str:
    """What a database says about an error, as one line without SQL and parameters."""
    said = str(getattr(error, "orig", None) or error).strip()
    return " ".join(said.split())


def locate(where: str | Path) -> tuple[sa.URL, str]:
    """The URL of a ledger, and a name to print that holds neither user nor password.

    Args:
      where: the path of an SQLite file, `sqlite:///PATH` or `postgresql://...`.

    Returns:
      The URL with its driver, and the name.

    Raises:
      LedgerError: a URL of another scheme, or one that cannot be read.
    """
    text = str(where)
    scheme, is_url, rest = text.partition("://")
    if not is_url:
        if not text.strip():
            raise LedgerError("the ledger has an empty name; expected a path or a URL")
        path = Path(text).expanduser()
        return sa.URL.create("sqlite+pysqlite", database=str(path)), str(path)
    if scheme == "sqlite":
        path_text = rest.removeprefix("/")
        if not rest.startswith("/") or path_text in ("", ":memory:") or "?" in path_text:
            raise LedgerError("a ledger in SQLite is a file, sqlite:///PATH, and nothing besides")
        return locate(path_text)
    if scheme not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise LedgerError(
            f"a ledger is a path, sqlite:///PATH or postgresql://..., not {scheme}://..."
        )
    try:
        url = sa.make_url(f"postgresql+psycopg://{rest}")
    except (sa.exc.ArgumentError, ValueError):
        # What was given is not repeated: it may hold a password.
        raise LedgerError(
            "the ledger's URL cannot be read; expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
        ) from None
    if "@" in (url.host or ""):
        # What follows the first @ can be the rest of a password, and is not printed.
        raise LedgerError("the ledger's URL has more than one @; in a password it is written %40")
    host = url.host or url.query.get("host") or "local"
    port = f":{url.port}" if url.port else ""
    return url, f"postgresql://{host}{port}/{url.database or ''}"


def open_engine(url: sa.URL, name: str, *, patience: float) -> sa.Engine:
    """A pool of connections, ready for several threads.

    Transactions of SQLite that will write take the write lock when they begin, and wait for it;
    they are the ones begun with the execution option `writes`. (Begun without it, a transaction
    that reads and then writes fails at once with "database is locked" where another one wrote in
    between.)

    Args:
      url: where the database is.
      name: what it is called in errors.
      patience: seconds to wait for a locked file.

    Returns:
      The engine; nothing is opened or written yet.

    Raises:
      LedgerError: the driver of PostgreSQL is not installed.
    """
    if url.get_backend_name() == "postgresql":
        try:
            return sa.create_engine(
                url, pool_pre_ping=True, pool_size=8, connect_args={"connect_timeout": 10}
            )
        except ImportError as error:
            raise LedgerError(
                f"the ledger {name} needs psycopg: pip install 'nf_resnets[postgresql]'"
            ) from error
    engine = sa.create_engine(url, pool_size=8, connect_args={"timeout": patience})

    @sa.event.listens_for(engine, "connect")
    def _(connection: sqlite3.Connection, record: Any) -> None:
        # Python's module begins no transactions by itself; `begin` below does.
        connection.isolation_level = None
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")

    @sa.event.listens_for(engine, "begin")
    def _(connection: sa.Connection) -> None:
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def clock(dialect: str) -> sa.ColumnElement[float]:
    """Seconds since 1970 by the clock of the database, so that all drivers agree about leases."""
    if dialect == "postgresql":
        now = "extract(epoch FROM statement_timestamp())"
    else:
        now = "(julianday('now') - 2440587.5) * 86400.0"
    return sa.cast(sa.literal_column(now), sa.Double)


def insert(dialect: str, table: sa.Table) -> Any:
    """An INSERT that can say ON CONFLICT, which both databases do in the same words."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def prepare(engine: sa.Engine, name: str, *, create: bool, patience: float) -> None:
    """Checks that the database is a ledger of this version; makes an empty one into a ledger.

    Args:
      engine: of `open_engine`.
      name: what the ledger is called in errors.
      create: whether an empty or missing database becomes a ledger.
      patience: seconds to wait for others that create it too.

    Raises:
      LedgerError: there is no ledger, or what is there is none, or one of another version, or it
        cannot be opened, read or written.
    """
    if engine.dialect.name == "postgresql":
        _prepare_postgresql(engine, name, create)
    else:
        _prepare_sqlite(engine, name, create, patience)


def _is_ledger(connection: sa.Connection, name: str) -> bool:
    """Whether the tables are there; False where there is none of them."""
    found = set(sa.inspect(connection).get_table_names())
    ours = set(metadata.tables)
    if "notes" in found and ours <= found:
        version = connection.scalar(sa.select(notes.c.value).where(notes.c.name == VERSION_NOTE))
        if version == VERSION:
            return True
        if version is not None:
            raise LedgerError(
                f"the ledger {name} has version {version}; this nf_resnets reads and writes "
                f"version {VERSION} and has left it as it is"
            )
    in_the_way = found if connection.dialect.name == "sqlite" else found & ours
    if in_the_way:
        raise LedgerError(
            f"{name} is a database but not a ledger of nf_resnets (it holds the table "
            f"{min(in_the_way)!r}), and was left as it is"
        )
    return False


def _create(connection: sa.Connection) -> None:
    """All tables and the version in one transaction: a ledger is there whole or not at all."""
    metadata.create_all(connection, checkfirst=False)
    connection.execute(sa.insert(notes).values(name=VERSION_NOTE, value=VERSION))


def _prepare_postgresql(engine: sa.Engine, name: str, create: bool) -> None:
    try:
        with engine.begin() as connection:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(CREATION_LOCK)))
            if not _is_ledger(connection, name):
                if not create:
                    raise LedgerError(f"there is no ledger in {name}")
                _create(connection)
    except sa.exc.DBAPIError as error:
        raise LedgerError(f"the ledger {name} cannot be opened: {one_line(error)}") from error


def _prepare_sqlite(engine: sa.Engine, name: str, create: bool, patience: float) -> None:
    path = Path(name)
    try:
        if not create and not path.exists():
            raise LedgerError(f"there is no ledger {name}")
        if path.exists() and not path.is_file():
            raise LedgerError(f"the ledger {name} is a folder or a device; expected a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _check_size(path, name)
    except OSError as error:
        raise LedgerError(f"the ledger {name} cannot be made: {error.strerror}") from error
    deadline = time.monotonic() + patience
    while True:
        try:
            with engine.begin() as connection:
                there = _is_ledger(connection, name)
                _check_pages(connection, path, name)
            if not there and not create:
                raise LedgerError(f"{name} is empty, and no ledger")
            # Only now is it ours to change; the mode stays with the file.
            _write_ahead(engine, name)
            if not there:
                with engine.execution_options(writes=True).begin() as connection:
                    # Another driver may have been faster.
                    if not _is_ledger(connection, name):
                        _create(connection)
            return
        except sa.exc.DBAPIError as error:
            # Turning on the log does not wait for others that do so.
            if "locked" in str(error.orig) and time.monotonic() < deadline:
                time.sleep(random.uniform(0.01, 0.05))
                continue
            raise LedgerError(f"the ledger {name} cannot be opened: {one_line(error)}") from error


def _check_size(path: Path, name: str) -> None:
    """Refuses a file that was cut, which SQLite may notice late, or take for an empty one."""
    log = Path(f"{name}-wal")
    logged = log.exists() and log.stat().st_size
    with path.open("rb") as file:
        header = file.read(32)
    if not header.startswith(b"SQLite format 3\0"):
        return
    page = int.from_bytes(header[16:18], "big")
    expected = int.from_bytes(header[28:32], "big") * (65536 if page == 1 else page)
    size = path.stat().st_size
    # While there is a log the file itself need not be whole.
    if size < expected and not (logged or (log.exists() and log.stat().st_size)):
        raise LedgerError(
            f"the ledger {name} is cut short: {size} bytes found, {expected} expected"
        )


def _check_pages(connection: sa.Connection, path: Path, name: str) -> None:
    """Refuses a file with a damaged page, unless reading all of it takes too long."""
    if path.stat().st_size <= QUICKLY_CHECKED:
        said = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
        if said != "ok":
            raise LedgerError(f"the ledger {name} is damaged: {' '.join(said.split())}")


def _write_ahead(engine: sa.Engine, name: str) -> None:
    """Readers and one writer at a time do not wait for each other with a write-ahead log."""
    connection = engine.raw_connection()
    try:
        cursor = connection.cursor()
        mode = ""
        for command in ("PRAGMA journal_mode", "PRAGMA journal_mode = WAL"):
            if mode != "wal":
                cursor.execute(command)
                mode = cursor.fetchall()[0][0]
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise sa.exc.OperationalError("PRAGMA journal_mode", None, error) from error
        raise LedgerError(_no_log(name, str(error))) from error
    finally:
        connection.close()
    if mode != "wal":
        raise LedgerError(_no_log(name, f"the journal's mode stays {mode!r}"))


def _no_log(name: str, found: str) -> str:
    return (
        f"the ledger {name} cannot have a write-ahead log ({found}): its file system lacks locks "
        "or shared memory, or is read-only; take a folder on a local disk, or postgresql://..."
    )
