"""Nothing that is opened to be written follows a link that somebody has put under its name."""

import os
import types

import numpy as np
import pytest

from nf_resnets.cli import analyze
from nf_resnets.cli.networks import _write_samples
from nf_resnets.data import load
from nf_resnets.places import held, write_csv
from nf_resnets.plotting.curves import Curve, Panel, curves_figure
from nf_resnets.sweep import Rows
from nf_resnets.training.checkpoint import Checkpoints


def results(folder):
    write_csv(folder / "rows.csv", [{"a": 1}])


def row(folder):
    with Rows(folder).open() as rows:
        rows.add([{"key": "a"}])


def page(folder):
    found = types.SimpleNamespace(rows=[{"k": 1, "transition": False, "skip": 1.0}], notes=[])
    analyze.write(found, analyze.Analyze(), folder)


def figure(folder):
    panel = Panel("step", "loss", [Curve("Fixup", (1, 2), (2.0, 1.0))])
    curves_figure([panel], folder / "figure.png", title="", subtitle="")


def tensorboard(folder):
    pytest.importorskip("tensorboardX")
    from nf_resnets.training.tensorboard import TensorBoard

    with TensorBoard(folder) as log:
        log.on_run_begin("key", "run", {}, 0, 1)


def checkpoint(folder):
    Checkpoints(folder).save(1, {"w": np.zeros(2)}, {})


WRITERS = {
    "rows.csv": results, "rows-0-of-1.jsonl": row, "part": checkpoint, "1.npz": checkpoint,
    "lock": lambda folder: held(folder / "lock").__enter__(),
    "blocks.csv": page, "page.svg": page,
    "figure.png": figure, "figure.svg": figure,
    "test_0_is_0.png": lambda folder: _write_samples(folder, load("digits")),
    "run-key/events": tensorboard,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["link to nothing", "hard link"])
@pytest.mark.parametrize("name", WRITERS)
def test_no_link_is_followed(tmp_path, name, kind):
    mine, folder = tmp_path / "mine", tmp_path / "folder"
    (folder / name).parent.mkdir(parents=True)
    if kind != "link to nothing":
        mine.write_text("mine")
    before = mine.read_bytes() if mine.exists() else None
    (os.link if kind == "hard link" else os.symlink)(mine, folder / name)
    try:
        WRITERS[name](folder)
    except (Exception, SystemExit) as refused:
        assert name in str(refused) and "link" in str(refused) and "\n" not in str(refused)
    assert (mine.read_bytes() if mine.exists() else None) == before
