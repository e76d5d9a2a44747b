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
# You compare two networks, one with BatchNorm and one without. Which one is better depends on the
# learning rate. Here you learn to
#
# 1. define a grid of runs, and make it with few compiled programs,
# 2. find the best rate at each batch size,
# 3. read the figure: the best rate grows with the batch size, and BatchNorm can use larger rates.
#
# This is the protocol of De and Smith (NeurIPS 2020), at the size of a laptop.

# %%
# On Colab and Kaggle this installs the package with what the hardware needs: from ADDRESS, or from
# the wheel that `make wheel` builds, uploaded here, to Drive or into a data set. Elsewhere it does
# nothing.
import glob
import importlib.metadata
import importlib.util
import os
import subprocess
import sys

ADDRESS = ""  # such as git+https://HOST/nf_resnets.git; empty for a wheel
if "google.colab" in sys.modules or "KAGGLE_KERNEL_RUN_TYPE" in os.environ:
    tpu = glob.glob("/dev/accel[0-9]*") + glob.glob("/dev/vfio/[0-9]*")
    platform = "gpu" if glob.glob("/dev/nvidia[0-9]*") else "tpu" if tpu else "cpu"
    if importlib.util.find_spec("nf_resnets") is None:
        extras = {"gpu": "cuda,", "tpu": "tpu,", "cpu": ""}[platform] + "experiments,translation"
        folders = ("", "drive/MyDrive/", "/kaggle/input/**/")
        wheels = [glob.glob(f"{each}nf_resnets-*.whl", recursive=True) for each in folders]
        if not ADDRESS and not any(wheels):
            raise SystemExit("No nf_resnets-*.whl is here; upload one, or set ADDRESS.")
        what = f"nf_resnets[{extras}] @ {ADDRESS}"
        if not ADDRESS:
            what = f"{max(sum(wheels, []))}[{extras}]"
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", what], check=True)
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
from collections import Counter
from pathlib import Path

from IPython.display import Image

from nf_resnets import plotting, schemes, sweep

GRID = {
    "scheme": ("skipinit", "batchnorm"),
    "batch_size": (32, 256),
    "peak_lr": tuple(2.0**power for power in range(-7, 2)),
}
# After so few steps BatchNorm's running averages are out of date: it is tested with estimates.
BASE = {"model": "wrn-10-1", "stem_channels": 4, "epochs": 4.0, "bn_estimate_batches": 4}
FOLDER = Path(tempfile.mkdtemp())

# %% [markdown]
# ## The grid
#
# Every setting of a run can be an axis. `make_sweep` checks each point before anything starts. Runs
# that differ in numbers only, such as the learning rate or the seed, share a compiled program.

# %%
grid = sweep.make_sweep(GRID, BASE)
print(f"{grid.size} runs, {len(grid.programs)} programs")

# %% [markdown]
# ## The runs
#
# A folder keeps a *row* of every run that is over. Stop this cell at any moment and run it again:
# it makes what is missing, and nothing twice. A run that diverges is a result like any other.
#
# The command does the same, and displays the progress:
#
# ```
# nf-resnets sweep --model wrn-10-1 --stem-channels 4 --epochs 4 --bn-estimate-batches 4 \
#     --out runs/mine --grid scheme=skipinit,batchnorm batch_size=32,256 peak_lr=2^-7:2^1
# ```

# %%
with sweep.Rows(FOLDER).open() as kept:
    rows = list(sweep.make(grid.task, grid.plans, kept).rows.values())
states = Counter(row["state"] for row in rows)
print(", ".join(f"{count} {state}" for state, count in states.items()))

# %% [markdown]
# ## The best rates
#
# `optima` groups the runs and chooses the best rate of each group, by test accuracy and by training
# loss. It marks a best rate at the edge of the grid: the true one may lie outside. With several
# seeds it also gives all rates within one standard deviation of the best. With one seed, as here,
# differences of a percent or two are noise.

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
# - **Left edge.** The rates are too small: four epochs are not enough. The larger batch has fewer
#   steps, so that its curve lies lower and further right.
# - **Peaks.** A larger batch wants a larger rate: SkipInit's best one moves from $2^{-3}$ to
#   $2^{-1}$. BatchNorm's accuracy at batch 32 is flat over six rates, between which one seed cannot
#   choose; its best rate by training loss moves from $2^{-2}$ to $2^0$.
# - **Right edge.** Runs that diverged are in a band of their own. At batch 32 SkipInit diverges
#   from $2^{-1}$ on, BatchNorm at none of these rates. Large rates help where there are few steps:
#   batch 256 has 20 in these four epochs, and BatchNorm is far ahead there. With more epochs
#   SkipInit comes close at small batches, but not at the largest (see the larger sweep below).
#
# `nf-resnets experiment skipinit_lr_batch` makes a larger sweep, with more batch sizes, two seeds
# and nine times as many runs. Its figures are in `results/skipinit_lr_batch-laptop`.
