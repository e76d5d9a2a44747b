"""The tables of a ledger, and the database that holds them: an SQLite file or PostgreSQL."""

from __future__ import annotations

import hashlib
import json
import random
import re
import sqlite3
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

__all__ = [
    "CHECKED",
    "RESULTS",
    "SEALED",
    "STATES",
    "VERSION",
    "LedgerError",
    "attempts",
    "clock",
    "epoch_checksum",
    "epochs",
    "insert",
    "locate",
    "measurements",
    "notes",
    "one_line",
    "open_engine",
    "prepare",
    "programs",
    "readable_url",
    "redacted",
    "refuse_half_url",
    "run_checksum",
    "runs",
    "workers",
]

# Raised whenever a table changes. A ledger of an earlier version gets the columns that it lacks
# when it is opened; any other one is refused, never altered.
VERSION = "3"
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
workers = sa.Table(
    "drivers",  # as the first version called them
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
    sa.Column("driver", sa.Text, sa.ForeignKey("drivers.id"), key="worker"),
    sa.Column("lease_until", sa.Double),
    sa.Column("steps", sa.BigInteger),
    sa.Column("test_accuracy", sa.Double),
    sa.Column("test_loss", sa.Double),
    sa.Column("train_loss", sa.Double),
    sa.Column("train_accuracy", sa.Double),
    sa.Column("seconds", sa.Double),
    sa.Column("message", sa.Text),
    sa.Column("finished_at", sa.Double),
    # JSON of whatever else the run gave; NULL for nothing.
    sa.Column("measures", sa.Text),
    # Of what the row says (integrity.py).
    sa.Column("checksum", sa.String(16)),
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
    sa.Column("driver", sa.Text, sa.ForeignKey("drivers.id"), nullable=False, key="worker"),
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
    sa.Column("measures", sa.Text),
    sa.Column("checksum", sa.String(16)),
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

# What to do about a damaged ledger.
SALVAGE = "--salvage NEW.db copies all that is whole"

# Bytes of an SQLite file that are read through when it is opened: about a fifth of a second.
QUICKLY_CHECKED = 64 * 2**20


# What a run's checksum covers: all but the settings, whose SHA-256 is the key, and who holds it.
# Measures are covered where there are any, so that rows of earlier versions keep their checksums.
CHECKED = (
    "key", "program", "position", "resolved", "state", "attempt", "failures", *RESULTS,
    "finished_at",
)  # fmt: skip
SEALED = (*CHECKED, "measures")


def run_checksum(row: Mapping[str, Any]) -> str:
    """The checksum of a run's columns."""
    return _checksum(row, CHECKED)


def epoch_checksum(key: str, row: Mapping[str, Any]) -> str:
    """The checksum of an epoch's columns and the key of its run."""
    names = [c.name for c in epochs.c if c.name not in ("run", "measures", "checksum")]
    return _checksum({**row, "key": key}, ("key", *names))


def _checksum(row: Mapping[str, Any], names: Sequence[str]) -> str:
    """16 hexadecimal digits of the SHA-256 of values as both databases give them back."""
    values = [row[name] for name in names]
    if row.get("measures") is not None:
        values.append(row["measures"])
    # SQLite forgets the sign of zero.
    plain = [value + 0.0 if isinstance(value, float) else value for value in values]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:16]


class LedgerError(ValueError):
    """What is wrong with a ledger, in one sentence.

    Whoever raises it need not look after passwords and control characters: neither is kept.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(redacted(sentence))


def redacted(text: str) -> str:
    """A text on one line without control characters, nor users and passwords in URLs.

    Example:
      >>> redacted("cannot reach postgresql://me:secret@host/runs?password=secret")
      'cannot reach postgresql://***@host/runs?password=***'
    """
    # Up to the last @ before a space: a password may itself hold one, and slashes.
    text = re.sub(r"(?i)\b([a-z][a-z0-9+.-]*:/+)[^\s'\"]*@", r"\1***@", text)
    text = re.sub(
        r"(?i)(pass(?:word|wd|phrase)?|pwd|secret|token)(\s*=\s*)[^\s&;'\"]+", r"\1\2***", text
    )
    # A terminal would obey them.
    return "".join(letter if letter.isprintable() else " " for letter in text)


def one_line(error: BaseException) -> str:
    """What a database says about an error, as one line without SQL, parameters and passwords."""
    said = str(getattr(error, "orig", None) or error).strip()
    hint = f"; {SALVAGE}" if "malformed" in said else ""
    return redacted(" ".join(said.split())) + hint


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
    refuse_half_url(text)
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
    url = readable_url(f"postgresql+psycopg://{rest}")
    host = url.host or url.query.get("host") or "local"
    port = f":{url.port}" if url.port else ""
    return url, f"postgresql://{host}{port}/{url.database or ''}"


def readable_url(text: str) -> sa.URL:
    """A URL whose parts are what its writer meant, as far as that can be told.

    Raises:
      LedgerError: it is none; what was given is not repeated, as it may hold a password.
    """
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise LedgerError(
            "the URL cannot be read; expected postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
        ) from None
    if url.get_backend_name() != "sqlite" and "@" in f"{url.host}{url.database}":
        # What follows the first @ can be the rest of a password.
        raise LedgerError(
            "the URL has an @ or a slash too many; in a password they are written %40 and %2F"
        )
    return url


def refuse_half_url(text: str) -> None:
    """Refuses a URL without its slashes, which would become a file with a password in its name.

    Raises:
      LedgerError: it is one.
    """
    scheme = re.match(r"(?i)(sqlite|postgres\w*|mysql|mariadb)(\+\w+)?:(?!//)", text)
    if scheme:
        raise LedgerError(f"{scheme[0]}... found; expected a path, or {scheme[0]}// of a URL")


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
        # A damaged text is to be read, and then refused by its checksum, with the run's name.
        connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")

    @sa.event.listens_for(engine, "begin")
    def _(connection: sa.Connection) -> None:
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def clock(dialect: str) -> sa.ColumnElement[float]:
    """Seconds since 1970 by the clock of the database, so that all workers agree about leases."""
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


def _version(connection: sa.Connection, name: str) -> str | None:
    """The version of the tables, which can be read; None where there is none of them."""
    found = set(sa.inspect(connection).get_table_names())
    ours = set(metadata.tables)
    if "notes" in found and ours <= found:
        version = connection.scalar(sa.select(notes.c.value).where(notes.c.name == VERSION_NOTE))
        if version in ("1", "2", VERSION):
            return version
        if version is not None:
            raise LedgerError(
                f"the ledger {name} has version {version[:20]!r}; this nf_resnets reads and writes "
                f"version {VERSION} and has left it as it is"
            )
    in_the_way = found if connection.dialect.name == "sqlite" else found & ours
    if in_the_way:
        raise LedgerError(
            f"{name} is a database but not a ledger of nf_resnets (it holds the table "
            f"{min(in_the_way)!r}), and was left as it is"
        )
    return None


def _create(connection: sa.Connection) -> None:
    """All tables and the version in one transaction: a ledger is there whole or not at all."""
    metadata.create_all(connection, checkfirst=False)
    connection.execute(sa.insert(notes).values(name=VERSION_NOTE, value=VERSION))


def _make_current(connection: sa.Connection, name: str) -> None:
    """In a transaction that writes: creates the tables, or adds what an earlier version lacks."""
    version = _version(connection, name)
    if version is None:
        _create(connection)
    if version in (None, VERSION):
        return
    held = (runs.c.state == "running") & (runs.c.lease_until > clock(connection.dialect.name))
    if connection.scalar(sa.select(sa.func.count()).where(held)):
        raise LedgerError(
            f"the ledger {name} is of an earlier nf_resnets, whose workers are at work on it or "
            "were a minute ago; once they have ended it is opened, and gets what it lacks"
        )
    for table in (runs, epochs):
        connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN measures TEXT")
    if version == "1":
        _add_checksums(connection)
    connection.execute(sa.update(notes).where(notes.c.name == VERSION_NOTE).values(value=VERSION))


def _add_checksums(connection: sa.Connection) -> None:
    """Gives the rows of version 1 checksums of what they say, and changes nothing else."""
    for table in (runs, epochs):
        connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN checksum VARCHAR(16)")
    found = connection.execute(sa.select(runs.c.id, *(runs.c[each] for each in CHECKED))).all()
    keys = {row.id: row.key for row in found}
    new = [{"of_run": row.id, "new": run_checksum(row._asdict())} for row in found]
    change: Any = sa.update(runs).values(checksum=sa.bindparam("new"))
    if new:
        connection.execute(change.where(runs.c.id == sa.bindparam("of_run")), new)
    new = [
        {
            "of_run": row.run,
            "of_epoch": row.epoch,
            "new": epoch_checksum(keys[row.run], row._asdict()),
        }
        for row in connection.execute(sa.select(*(c for c in epochs.c if c.name != "checksum")))
        if row.run in keys
    ]
    change = sa.update(epochs).values(checksum=sa.bindparam("new"))
    change = change.where(
        epochs.c.run == sa.bindparam("of_run"), epochs.c.epoch == sa.bindparam("of_epoch")
    )
    if new:
        connection.execute(change, new)


def _prepare_postgresql(engine: sa.Engine, name: str, create: bool) -> None:
    try:
        with engine.begin() as connection:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(CREATION_LOCK)))
            if not create and _version(connection, name) is None:
                raise LedgerError(f"there is no ledger in {name}")
            _make_current(connection, name)
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
                version = _version(connection, name)
                _check_pages(connection, path, name)
            if version is None and not create:
                raise LedgerError(f"{name} is empty, and no ledger")
            # Only now is it ours to change; the mode stays with the file.
            _write_ahead(engine, name)
            if version != VERSION:
                with engine.execution_options(writes=True).begin() as connection:
                    # Another worker may have been faster.
                    _make_current(connection, name)
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
    """Refuses a file with damaged pages, indexes or references, if reading all is quick."""
    if path.stat().st_size > QUICKLY_CHECKED:
        return
    said = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar_one()
    astray = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
    if said == "ok" and astray is not None:
        said = f"a row of {astray[0]} refers to one of {astray[2]} that is not there"
    if said != "ok":
        raise LedgerError(f"the ledger {name} is damaged: {' '.join(said.split())}; {SALVAGE}")


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
