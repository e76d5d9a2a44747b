"""Logs for Weights & Biases: what is in the files of offline runs."""

from __future__ import annotations

import json
import struct
import time

import pytest

from nf_resnets.sweep import WandB
from nf_resnets.training import wandb
from tests.sweep.small import key
from tests.training.test_tensorboard import KEY, NAMES, SETTINGS, curve, row, value

BLOCK, HEADER = 1 << 15, 7  # of the file: LevelDB's log format, after seven bytes


def records(path):
    """The records of a run's file."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, part = path.read_bytes(), HEADER, b""
    found = []
    while at < len(data):
        if BLOCK - at % BLOCK < HEADER:  # too little is left of the block for a header
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEADER])
        if at + HEADER + length > len(data):  # not whole yet
            break
        part += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4):  # whole, or the last part
            found.append(Record.FromString(part))
            part = b""
    return found


def logged(folder, run):
    """The configuration, the history by step, the summary and the exit code of an offline run."""
    (path,) = folder.glob(f"wandb/offline-run-*/run-{run[:20]}.wandb")
    config, history, summary, code = {}, {}, {}, None
    deadline = time.monotonic() + 30
    # Another process writes the file, and ends it with the exit shortly after the run.
    while not (found := records(path)) or not found[-1].HasField("exit"):
        assert time.monotonic() < deadline, path.read_bytes()
        time.sleep(0.05)
    for record in found:
        for item in record.run.config.update:
            config[item.key] = json.loads(item.value_json)
        values = {
            (item.key or "/".join(item.nested_key)): json.loads(item.value_json)
            for item in record.history.item
        }
        if values:
            own = {name: each for name, each in values.items() if not name.startswith("_")}
            history.setdefault(values["_step"], {}).update(own)
        for item in record.summary.update:
            summary[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        if record.HasField("exit"):
            code = record.exit.exit_code
    return config, history, summary, code


def test_offline_runs_are_in_their_files(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    other = key({**vars(SETTINGS), "seed": 4})
    monkeypatch.setattr(wandb, "MOST_POINTS", 10)
    with WandB(tmp_path) as log:
        # Two runs at the same time, as in a sweep; of 30 steps each third is logged.
        log.on_run_begin(KEY, "fixup, rate 2^-3", vars(SETTINGS), 0, 30)
        log.on_run_begin(other, "another", {"seed": 4}, 0, 30)
        log.on_step(KEY, 5, curve(1, 5))
        log.on_step(other, 2, curve(1, 2))
        log.on_step(KEY, 10, curve(6, 10))
        log.on_epoch(KEY, 10, row(0, 10))
        log.on_run_end(KEY, "finished", {"steps": 10})
        log.on_run_end(other, "diverged", {"steps": 2})
        log.on_step(other, 3, curve(3, 3))  # of a run that is over: nothing
    config, history, summary, code = logged(tmp_path, KEY)
    assert config["peak_lr"] == 0.125 and config["scheme"] == "fixup" and config["seed"] == 3
    assert set(history) == {1, 3, 6, 9, 10}
    for step in (1, 3, 6, 9):
        assert history[step] == {f"train/{name}": value(step, name) for name in NAMES}
    assert history[10] == {
        "test/loss": 1.5, "test/accuracy": 0.5, "epoch/train_loss": 2.5,
        "epoch/train_accuracy": 0.25,
    }  # fmt: skip
    assert summary["state"] == "finished" and code == 0
    config, history, summary, code = logged(tmp_path, other)
    assert config["seed"] == 4 and [*history] == [1]
    assert summary["state"] == "diverged" and code == 1
