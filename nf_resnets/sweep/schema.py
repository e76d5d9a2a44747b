"""The tables of a ledger, what their rows must say, and the database that holds them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import random
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa

__all__ = [
    "COVERED", "EPOCH", "RESULTS", "SALVAGE", "STATES", "VERSION", "Damage", "LedgerError",
    "attempts", "checksum", "decoded", "epochs", "locate", "measurements", "notes", "now",
    "one_line", "open_engine", "parse_url", "prepare", "programs", "redacted", "runs", "workers",
]  # fmt: skip

# Raised whenever a table changes. A ledger of an earlier version gets the columns that it lacks
# when it is opened; any other one is refused, never altered.
VERSION = "3"
STATES = ("waiting", "running", "finished", "diverged", "failed", "oom")
RESULTS = (
    "steps", "test_accuracy", "test_loss", "train_loss", "train_accuracy", "seconds", "message"
)  # fmt: skip
EPOCH = ("epoch", "step", "train_loss", "train_accuracy", "test_loss", "test_accuracy", "seconds")
# What a checksum covers: of a run all but its settings, whose SHA-256 is the key, and its holder.
COVERED = {
    "runs": ("key", "program", "position", "resolved", "state", "attempt", "failures", *RESULTS,
             "finished_at"),
    "epochs": ("key", *EPOCH, "attempt"),
}  # fmt: skip
JSON = ("settings", "resolved", "measures", "versions")

SALVAGE = "--salvage NEW.db copies all that is whole"
# Marks a database as a ledger, with its version.
VERSION_NOTE = "nf_resnets ledger"
# Any number that all who create tables in one PostgreSQL database agree on.
CREATION_LOCK = 0x6E665F7265736E
# Bytes of an SQLite file that is read through when it is opened: about a fifth of a second.
QUICKLY_CHECKED = 64 * 2**20
# Seconds since 1970 that a date can say in every time zone: the years up to 9999.
LAST = 253_402_128_000

metadata = sa.MetaData()
_needed = functools.partial(sa.Column, nullable=False)
_part_of_key = functools.partial(sa.Column, primary_key=True, autoincrement=False)

notes = sa.Table("notes", metadata, _part_of_key("name", sa.Text), _needed("value", sa.Text))

# Every process that ever claimed a run. The database calls workers drivers, as its first version.
workers = sa.Table(
    "drivers",
    metadata,
    _part_of_key("id", sa.Text),
    _needed("host", sa.Text),
    _needed("boot", sa.Text),
    _needed("pid", sa.BigInteger),
    sa.Column("start", sa.BigInteger),
    _needed("device", sa.Text),
    _needed("versions", sa.Text),
)

# One row for each program, so that the first waiting run of every program is found without
# reading the runs.
programs = sa.Table("programs", metadata, _part_of_key("name", sa.Text))

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    _needed("key", sa.String(64), unique=True),
    _needed("settings", sa.Text),
    _needed("program", sa.Text, sa.ForeignKey("programs.name")),
    _needed("position", sa.BigInteger),
    _needed("resolved", sa.Text),
    _needed("state", sa.String(8)),
    # How often the run was claimed: it only grows, and tells a claim from later ones.
    _needed("attempt", sa.Integer),
    # How often it raised since it was added or retried.
    _needed("failures", sa.Integer),
    # Both NULL unless the run is running.
    sa.Column("driver", sa.Text, sa.ForeignKey("drivers.id"), key="worker"),
    sa.Column("lease_until", sa.Double),
    sa.Column("steps", sa.BigInteger),
    *(sa.Column(name, sa.Double) for name in RESULTS[1:-1]),
    sa.Column("message", sa.Text),
    sa.Column("finished_at", sa.Double),
    # JSON of whatever else the run gave; NULL for nothing.
    sa.Column("measures", sa.Text),
    sa.Column("checksum", sa.String(16)),
    sa.CheckConstraint(sa.column("state").in_(STATES), name="runs_state"),
    # A claim reads one end of it, however many runs there are.
    sa.Index("runs_by_program", "state", "program", "position", "id"),
)

attempts = sa.Table(
    "attempts",
    metadata,
    _part_of_key("run", sa.ForeignKey("runs.id")),
    _part_of_key("attempt", sa.Integer),
    _needed("driver", sa.Text, sa.ForeignKey("drivers.id"), key="worker"),
    _needed("started_at", sa.Double),
    sa.Column("ended_at", sa.Double),
    # finished, diverged, oom, raised, released or lost; NULL while it runs.
    sa.Column("outcome", sa.String(8)),
    sa.Column("traceback", sa.Text),
    sqlite_with_rowid=False,
)

epochs = sa.Table(
    "epochs",
    metadata,
    _part_of_key("run", sa.ForeignKey("runs.id")),
    _part_of_key("epoch", sa.Integer),
    sa.Column("step", sa.BigInteger),
    *(sa.Column(name, sa.Double) for name in EPOCH[2:]),
    # The attempt that wrote the row last.
    _needed("attempt", sa.Integer),
    sa.Column("measures", sa.Text),
    sa.Column("checksum", sa.String(16)),
    sqlite_with_rowid=False,
)

# What a program costs on a device.
measurements = sa.Table(
    "measurements",
    metadata,
    _part_of_key("program", sa.Text),
    _part_of_key("device", sa.Text),
    _needed("runs_per_device", sa.Integer),
    sa.Column("seconds_per_step", sa.Double),
    sa.Column("compile_seconds", sa.Double),
    _needed("measured_at", sa.Double),
)


# Errors


class LedgerError(ValueError):
    """What is wrong with a ledger, in one sentence without passwords and control characters."""

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


def one_line(error: BaseException, *, advice: str = SALVAGE) -> str:
    """What a database says about an error, as one line without SQL, parameters and passwords."""
    message = " ".join(str(getattr(error, "orig", None) or error).split())
    return redacted(message) + (f"; {advice}" if advice and "malformed" in message else "")


# Rows


class Damage(Exception):
    """Which row does not say what was written, and why."""


def checksum(table: sa.Table, row: Mapping[Any, Any]) -> str:
    """16 digits of the SHA-256 of a row of `runs`, or of `epochs` with the key of its run."""
    values = [row[name] for name in COVERED[table.name]]
    # Only where there are any: rows of earlier versions keep their checksums.
    if row.get("measures") is not None:
        values.append(row["measures"])
    # SQLite forgets the sign of zero.
    plain = [value + 0.0 if isinstance(value, float) else value for value in values]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:16]


def decoded(table: sa.Table, row: Mapping[Any, Any]) -> dict[str, Any]:
    """A row with mappings in place of JSON, once its keys, checksum, types and JSON are checked.

    The row has all or some of the table's columns, and the key of its run; an attempt's also has
    columns of its worker. A row of the first version has no checksum, and none is compared.

    Raises:
      Damage: it does not say what was written.
    """
    found = {**row, **{name: _mapping(row[name]) for name in JSON if name in row}}
    for fault in _faults(table, row, found):
        name = f"a row of {table.name}"
        if table is runs:
            name = f"the run {row['key']} (row {row['id']})"
        elif table in (epochs, attempts):
            number = row["epoch" if table is epochs else "attempt"]
            name = f"{table.name.removesuffix('s')} {number!r} of the run {row['key']}"
        raise Damage(f"{name}: {fault}")
    return found


def _mapping(text: Any) -> dict[str, Any] | None:
    """A JSON object, empty for NULL; None where the text is none."""
    try:
        found = {} if text is None else json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _faults(table: sa.Table, row: Mapping[Any, Any], found: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a row; after the first fault the others may not be asked for."""
    for column in (*table.c, *(workers.c if table is attempts else ())):
        if column.key in row and not _fits(column, row[column.key]):
            yield f"its {column.key} is no {column.type.python_type.__name__} that was written"
    if table is runs and hashlib.sha256(row["settings"].encode()).hexdigest() != row["key"]:
        yield "the SHA-256 of its settings is not its key"
    if "checksum" in row and checksum(table, row) != row["checksum"]:
        yield "its columns do not have their checksum"
    for name in JSON:
        if name in row and found[name] is None:
            yield f"its {name} are no JSON object"
    if table is runs:
        if row["state"] not in STATES:
            yield f"its state is {row['state']!r}"
        if row["state"] not in ("waiting", "running") and row["finished_at"] is None:
            yield f"it is {row['state']}, and nothing says since when"
    if table is attempts and (row["outcome"] is None) != (row["ended_at"] is None):
        yield "it has half an end"


def _fits(column: sa.Column[Any], value: Any) -> bool:
    """Whether a value is one that the column was made for."""
    kind = column.type.python_type
    if value is None:
        return bool(column.nullable)
    if kind is float:
        fits = isinstance(value, int | float) and math.isfinite(value)
        return fits and (0 <= value < LAST or not column.key.endswith("_at"))
    if kind is str and isinstance(value, str):
        # Half a pair stands for a byte that is no UTF-8; see `open_engine`.
        return value.isascii() or not re.search("[\ud800-\udfff]", value)
    return isinstance(value, kind)


# Places


def parse_url(text: str) -> sa.URL | None:
    """A URL whose parts are what its writer meant, as far as that can be told; None for a path.

    Raises:
      LedgerError: it is none; what was given is not repeated, as it may hold a password.
    """
    # It would become a file with a password in its name.
    half = re.match(r"(?i)(sqlite|postgres\w*|mysql|mariadb)(\+\w+)?:(?!//)", text)
    if half:
        raise LedgerError(f"{half[0]}... found; expected a path, or {half[0]}// of a URL")
    if "://" not in text:
        return None
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


def locate(where: str | Path) -> tuple[sa.URL, str]:
    """The URL of a ledger with its database driver, and a name without user and password.

    Raises:
      LedgerError: a URL of another scheme, or one that cannot be read.
    """
    url = parse_url(str(where))
    if url is None:
        if not str(where).strip():
            raise LedgerError("the ledger has an empty name; expected a path or a URL")
        path = Path(where).expanduser()
        return sa.URL.create("sqlite+pysqlite", database=str(path)), str(path)
    if url.drivername == "sqlite":
        if url.host or url.query or url.database in (None, "", ":memory:"):
            raise LedgerError("a ledger in SQLite is a file, sqlite:///PATH, and nothing besides")
        return locate(str(url.database))
    if url.drivername not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise LedgerError(
            f"a ledger is a path, sqlite:///PATH or postgresql://..., not {url.drivername}://..."
        )
    host = url.host or url.query.get("host") or "local"
    port = f":{url.port}" if url.port else ""
    name = f"postgresql://{host}{port}/{url.database or ''}"
    return url.set(drivername="postgresql+psycopg"), name


# The database


def open_engine(url: sa.URL, name: str, *, patience: float) -> sa.Engine:
    """A pool of connections for several threads; nothing is opened or written yet.

    Transactions of SQLite that write are begun with the execution option `writes`: they wait for
    the lock at their beginning. (Begun without it, a transaction that reads and then writes fails
    at once with "database is locked" where another one wrote in between.) The patience is in
    seconds, for a locked file.

    Raises:
      LedgerError: psycopg is not installed.
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
        # A damaged text is read, and then refused with the run's name.
        connection.text_factory = lambda text: text.decode("utf-8", "surrogateescape")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")

    @sa.event.listens_for(engine, "begin")
    def _(connection: sa.Connection) -> None:
        writes = connection.get_execution_options().get("writes")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def now(connection: sa.Connection) -> float:
    """Seconds since 1970 by the clock of the database, so that all workers agree about leases."""
    if connection.dialect.name == "postgresql":
        clock = "CAST(extract(epoch FROM statement_timestamp()) AS double precision)"
    else:
        clock = "(julianday('now') - 2440587.5) * 86400.0"
    return connection.exec_driver_sql(f"SELECT {clock}").scalar_one()


def prepare(engine: sa.Engine, name: str, *, create: bool, patience: float) -> None:
    """Checks that the database is a ledger; with `create`, makes an empty one into a ledger.

    The patience is in seconds, for others that create it too.

    Raises:
      LedgerError: there is no ledger, or what is there is none, or one of another version, or it
        cannot be opened, read or written.
    """
    path = Path(name) if engine.dialect.name == "sqlite" else None
    if path is not None:
        _check_file(path, create)
    deadline = time.monotonic() + patience
    while True:
        try:
            with engine.begin() as connection:
                version = _version(connection, name)
                if path is not None:
                    _check_pages(connection, path)
            if version is None and not create:
                raise LedgerError(f"there is no ledger in {name}")
            # Only now is it ours to change; the mode stays with the file.
            if path is not None:
                _write_ahead(engine, name)
            if version != VERSION:
                with engine.execution_options(writes=True).begin() as connection:
                    _make_current(connection, name)
            return
        except sa.exc.DBAPIError as error:
            # Turning on the log does not wait for others that do so.
            if "locked" not in str(error.orig) or time.monotonic() > deadline:
                raise LedgerError(
                    f"the ledger {name} cannot be opened: {one_line(error)}"
                ) from error
        time.sleep(random.uniform(0.01, 0.05))


def _version(connection: sa.Connection, name: str) -> str | None:
    """The version of the tables, which can be read; None where there is none of them."""
    found = set(sa.inspect(connection).get_table_names())
    ours = set(metadata.tables)
    if ours <= found:
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


def _make_current(connection: sa.Connection, name: str) -> None:
    """Creates the tables, or adds what an earlier version lacks, unless another worker did."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(CREATION_LOCK)))
    version = _version(connection, name)
    if version is None:
        metadata.create_all(connection, checkfirst=False)
        connection.execute(sa.insert(notes).values(name=VERSION_NOTE, value=VERSION))
    elif version != VERSION:
        held = (runs.c.state == "running") & (runs.c.lease_until > now(connection))
        if connection.scalar(sa.select(sa.func.count()).where(held)):
            raise LedgerError(
                f"the ledger {name} is of an earlier nf_resnets, whose workers are at work on it "
                "or were a minute ago; once they have ended it is opened, and gets what it lacks"
            )
        for table in (runs, epochs):
            _add_columns(connection, table)
        connection.execute(
            sa.update(notes).where(notes.c.name == VERSION_NOTE).values(value=VERSION)
        )


def _add_columns(connection: sa.Connection, table: sa.Table) -> None:
    """Adds the columns that a table of an earlier version lacks, and fills in checksums."""
    there = {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
    for column in table.c:
        if column.name not in there:
            new = sa.schema.CreateColumn(column).compile(dialect=connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {new}")
    if "checksum" in there:
        return
    query = sa.select(runs) if table is runs else sa.select(epochs, runs.c.key).join(runs)
    key = [column.name for column in table.primary_key]
    change = sa.update(table).where(*(table.c[name] == sa.bindparam(f"of_{name}") for name in key))
    new_sums = [
        {"checksum": checksum(table, row), **{f"of_{name}": row[name] for name in key}}
        for row in connection.execute(query).mappings()
    ]
    if new_sums:
        connection.execute(change, new_sums)


def _check_file(path: Path, create: bool) -> None:
    """Refuses what is no file, and one that was cut, which SQLite may take for an empty one."""
    try:
        if not create and not path.exists():
            raise LedgerError(f"there is no ledger in {path}")
        if path.is_symlink() or (path.exists() and not path.is_file()):
            raise LedgerError(f"the ledger {path} is a link, a folder or a device; expected a file")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            return
        log = Path(f"{path}-wal")
        logged = log.exists() and log.stat().st_size
        with path.open("rb") as file:
            header = file.read(32)
        size = path.stat().st_size
        # While there is a log the file itself need not be whole.
        logged = logged or (log.exists() and log.stat().st_size)
    except OSError as error:
        raise LedgerError(f"the ledger {path} cannot be made: {error.strerror}") from error
    page = int.from_bytes(header[16:18], "big")
    expected = int.from_bytes(header[28:32], "big") * (65536 if page == 1 else page)
    if header.startswith(b"SQLite format 3\0") and size < expected and not logged:
        raise LedgerError(
            f"the ledger {path} is cut short: {size} bytes found, {expected} expected"
        )


def _check_pages(connection: sa.Connection, path: Path) -> None:
    """Refuses a file with damaged pages, indexes or references, if reading all is quick."""
    if path.stat().st_size > QUICKLY_CHECKED:
        return
    fault = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar_one()
    stray = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
    if fault == "ok" and stray is not None:
        fault = f"a row of {stray[0]} refers to one of {stray[2]} that is not there"
    if fault != "ok":
        raise LedgerError(f"the ledger {path} is damaged: {' '.join(fault.split())}; {SALVAGE}")


def _write_ahead(engine: sa.Engine, name: str) -> None:
    """Turns on the write-ahead log, with which readers and one writer do not wait for each other.

    Outside a transaction, where alone SQLite changes the mode.
    """
    with contextlib.closing(engine.raw_connection()) as connection:
        cursor = connection.cursor()
        try:
            for command in ("PRAGMA journal_mode", "PRAGMA journal_mode = WAL"):
                cursor.execute(command)
                ((mode,),) = cursor.fetchall()
                if mode == "wal":
                    return
            fault = f"the journal's mode stays {mode!r}"
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise sa.exc.OperationalError("PRAGMA journal_mode", None, error) from error
            fault = str(error)
    raise LedgerError(
        f"the ledger {name} cannot have a write-ahead log ({fault}): its file system lacks locks "
        "or shared memory, or is read-only; take a folder on a local disk, or postgresql://..."
    )
