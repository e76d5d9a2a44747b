"""A PostgreSQL server for the tests, of its own user where they run as root, gone after them."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["NoServer", "clear", "server"]


class NoServer(Exception):
    """Why there is no PostgreSQL here, in one sentence."""


def binaries() -> Path:
    """The folder of the newest initdb and postgres: of the PATH, pg_config, or Debian's."""
    found = [Path(place) for place in (shutil.which("initdb"),) if place]
    if shutil.which("pg_config"):
        said = subprocess.run(["pg_config", "--bindir"], capture_output=True, text=True)
        found.append(Path(said.stdout.strip()) / "initdb")
    debian = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    found += sorted(debian, key=lambda path: float(path.parts[-3]), reverse=True)
    for path in found:
        # Links in the PATH lead to the folder that has all of them.
        folder = path.resolve().parent
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise NoServer(
        "no initdb and postgres in the PATH, of pg_config, or in /usr/lib/postgresql/*/bin "
        "(Debian: apt-get install postgresql)"
    )


def unprivileged() -> pwd.struct_passwd | None:
    """Another user where the tests run as root, as which PostgreSQL refuses to start."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise NoServer("the tests run as root, and there is neither a user postgres nor nobody")


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Starts a server on 127.0.0.1 and a free port; yields the URL of its database.

    Raises:
      NoServer: there is none to start, or it does not start.
    """
    folder, user = binaries(), unprivileged()
    # Not in pytest's folder, into which another user cannot look.
    home = Path(tempfile.mkdtemp(prefix="nf_resnets_postgres_"))
    data, password = home / "data", "s3cret-of-the-test"
    (home / "password").write_text(password)
    if user is not None:
        os.chown(home, user.pw_uid, user.pw_gid)
        os.chown(home / "password", user.pw_uid, user.pw_gid)
    as_user = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid}
    if user is not None:
        as_user["extra_groups"] = []

    def run(*command: str | Path) -> None:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=home,
            env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "HOME": str(home)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            **as_user,
        )
        if done.returncode:
            last = (done.stdout.strip().splitlines() or ["it said nothing"])[-1]
            raise NoServer(f"{Path(command[0]).name} failed: {last}")

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        run(
            folder / "initdb", "-D", data, "-U", "sweeper", "--auth=scram-sha-256",
            f"--pwfile={home / 'password'}", "--encoding=UTF8", "--no-sync",
        )  # fmt: skip
        # No fsync: what the tests end is a worker, never the machine.
        options = (
            f"-c listen_addresses=127.0.0.1 -p {port} -c unix_socket_directories='' "
            "-c fsync=off -c shared_buffers=16MB -c max_connections=50"
        )
        log = home / "log"
        run(folder / "pg_ctl", "-D", data, "-l", log, "-o", options, "-w", "-t", "30", "start")
        try:
            yield f"postgresql://sweeper:{password}@127.0.0.1:{port}/postgres"
        finally:
            run(folder / "pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(home, ignore_errors=True)


def clear(url: str) -> None:
    """Empties the server's database."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
