# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Which learning rate for which batch size
#
# You compare two networks, one with BatchNorm and one without. At one learning rate the one looks
# better, at another the other. Here you learn to
#
# 1. lay out a grid of runs, and let all runs that share a program train in one,
# 2. find the best rate of each batch size, and *how sure* that is,
# 3. read the figure: while the batch is small the best rate grows with it and BatchNorm is of no
#    use; at large batches the rate of a network without BatchNorm stops growing.
#
# It is the protocol of De and Smith (NeurIPS 2020, section 3), at the size of a laptop.

# %%
# On Colab or Kaggle, upload the wheel that `make wheel` builds, or put it on Drive or into a data
# set; this installs it with what the hardware needs. Elsewhere this does nothing.
import glob
import importlib.metadata
import importlib.util
import os
import subprocess
import sys

if "google.colab" in sys.modules or "KAGGLE_KERNEL_RUN_TYPE" in os.environ:
    tpu = glob.glob("/dev/accel[0-9]*") + glob.glob("/dev/vfio/[0-9]*")
    platform = "gpu" if glob.glob("/dev/nvidia[0-9]*") else "tpu" if tpu else "cpu"
    if importlib.util.find_spec("nf_resnets") is None:
        places = ("", "drive/MyDrive/", "/kaggle/input/**/")
        found = [glob.glob(f"{place}nf_resnets-*.whl", recursive=True) for place in places]
        if not any(found):
            raise SystemExit("No nf_resnets-*.whl is here; upload the one in dist/ of a clone.")
        extras = {"gpu": "cuda,translation", "tpu": "tpu,translation", "cpu": "translation"}
        wheel = f"{max(sum(found, []))}[{extras[platform]}]"
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", wheel], check=True)
    for name in ("jax", "jaxlib", "flax", "numpy"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version not in (None, importlib.metadata.version(name)):
            raise SystemExit(f"{name} {version} was imported before: restart, and run this again.")
    import jax

    used = jax.devices()[0].platform
    assert used == platform, f"JAX uses the {used}, and there is a {platform}: begin a new session."

# %%
import dataclasses
import tempfile
from pathlib import Path

from IPython.display import Image

from nf_resnets import plotting, schemes, sweep
from nf_resnets.sweep import Callbacks

GRID = {
    "scheme": ("skipinit", "batchnorm"),
    "batch_size": (32, 256),
    "peak_lr": tuple(2.0**power for power in range(-7, 2)),
}
BASE = {"model": "wrn-10-1", "stem_channels": 4, "epochs": 4.0}
FOLDER = Path(tempfile.mkdtemp())

# %% [markdown]
# ## The grid
#
# Every setting of a run can be an axis. `make_sweep` checks each point before anything starts, and
# knows which runs share a compiled program: those that differ in numbers alone, such as the
# learning rate or the seed.

# %%
grid = sweep.make_sweep(GRID, BASE)
print(f"{len(grid.runs)} runs, {len(grid.programs)} programs")

# %% [markdown]
# ## The runs
#
# What is done stands in a *ledger*, here an SQLite file. Stop this cell at any moment and run it
# again: it makes what is missing, and nothing twice. Several machines can work on one ledger. A run
# that diverges is a result like any other, and gives its place to the next.
#
# The command does the same, with a screen to look at:
#
# ```
# python -m nf_resnets.sweep --model wrn-10-1 --epochs 4 --out runs/mine \
#     --grid scheme=skipinit,batchnorm batch_size=32,256 peak_lr=2^-7:2^1
# ```

# %%
with sweep.open_ledger(FOLDER / "ledger.db") as ledger:
    sweep.enter(grid.runs, ledger)
    outcome = sweep.run_sweep(grid.task, grid.runs, ledger, FOLDER / "checkpoints", Callbacks())
    rows = ledger.rows(grid.keys)
print(", ".join(f"{count} {state}" for state, count in outcome.counts.items() if count))

# %% [markdown]
# ## The best rates
#
# `optima` groups the runs and chooses the best rate of each group, by test accuracy and by training
# loss. A best rate at the edge of the grid is marked: the true one may lie outside. With several
# seeds it also gives all rates that are as good within one standard deviation; with one seed, as
# here, take differences of a percent or two for noise.

# %%
best = [
    one for metric in ("test_accuracy", "train_loss") for one in sweep.optima(rows, metric=metric)
]
for one in best[: len(best) // 2]:
    rate = "none" if one.best is None else f"{one.best:g}{' (at the edge)' if one.at_edge else ''}"
    print(f"{one.group['scheme']:>10}, batch {one.group['batch_size']:>3}: best rate {rate}")

# %%
plotting.rates_figure(
    [dataclasses.asdict(one) for one in best],
    FOLDER / "rates.png",
    title="Accuracy and training loss against the learning rate",
    subtitle="WRN-10-1 of 4 channels on the digits, 4 epochs at every batch size, one seed",
    chance=0.1,
    names={name: schemes.get(name).title for name in GRID["scheme"]},
)
Image(FOLDER / "rates.png", width=820)

# %% [markdown]
# ## How to read it
#
# - **Left edge.** Rates that are too small: the run has not come far after four epochs. The larger
#   batch makes fewer steps in them, so its curve lies lower and further right.
# - **Peaks.** A larger batch wants a larger rate: SkipInit's best one moves from $2^{-3}$ to
#   $2^{-1}$. BatchNorm's accuracy at batch 32 is flat over six rates, of which one seed cannot
#   choose; its training loss moves as SkipInit's does, from $2^{-2}$ to $2^0$.
# - **Right edge.** Runs that diverged stand in a band of their own. At batch 32 SkipInit diverges
#   from $2^{-2}$ on, BatchNorm at none of these rates. Large rates pay where there are few steps:
#   batch 256 makes 20 in these four epochs, and BatchNorm is far ahead there. With more epochs
#   SkipInit comes close at the small batches (below), and not at the largest.
# - **Both rows.** Look at training loss, too: a rate that is best for the test accuracy but not for
#   the training loss is regularising.
#
# The figure with more batch sizes, two seeds and nine times as many runs is in
# `results/skipinit_lr_batch-laptop`, and `python -m experiments.skipinit_lr_batch` makes it.
