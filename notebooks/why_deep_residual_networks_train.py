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
# # Why deep residual networks train, or do not
#
# Three measurements on untrained networks, each beside the theory:
#
# 1. **The signal**: how its variance grows from block to block.
# 2. **The branch's share**: BatchNorm makes deep blocks almost the identity. An initialisation that
#    does the same can replace it.
# 3. **The first step**: how far it moves the network as a function, and how that depends on depth.
#
# Everything is in `nf_resnets.analysis`, as pure functions of a network, its parameters and a
# batch. They take your own networks, too.

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
import functools
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from IPython.display import Image

from nf_resnets import analysis, data, models, plotting, roles, schemes

LAYERS = 100
CHANNELS = 16
BATCH = 16
DEPTHS = (10, 28, 100, 304)  # of the last part
FIGURES = Path(tempfile.mkdtemp())

digits = data.load("digits")
images = data.normalize(digits.train.images[:BATCH], digits.mean, digits.std)
labels = jnp.asarray(digits.train.labels[:BATCH])


def drawn(scheme, layers):
    """The function of a wide residual network of one scheme, and its parameters, drawn."""
    model = models.WideResNet(depth=layers, scheme=scheme, stem_channels=CHANNELS)

    @jax.jit
    def draw(key):
        variables = model.init(key, images[:1])
        params = schemes.get(scheme).init(
            variables["params"], model.num_branches, key=jax.random.fold_in(key, 1)
        )
        return params, {name: variables[name] for name in variables if name == "batch_stats"}

    params, rest = draw(jax.random.key(0))

    def network(params, images):  # BatchNorm uses the batch
        return model.apply({"params": params, **rest}, images, train=True, mutable=list(rest))[0]

    return network, params


# %% [markdown]
# ## 1 The signal
#
# A block computes $x_k = x_{k-1} + F_k(x_{k-1})$. With He's initialisation the output of a branch
# has the variance of its input. Branch and skip path are uncorrelated, so that the variances add:
#
# $$\mathrm{Var}\,x_k = 2\,\mathrm{Var}\,x_{k-1} = 2^k .$$
#
# Forty-eight blocks multiply the variance of the signal by up to $2^{48}$, and that of its gradient
# as well. On images as small as these, where many windows contain padded zeros, the factor is about
# $2^{29}$. A factor $\alpha = L^{-1/2}$ on the branches keeps the growth below $e$. BatchNorm in
# the branch makes it linear, $\mathrm{Var}\,x_k = 1 + k$. With Fixup and SkipInit the branches
# start at 0, and nothing grows.
#
# Each dot is a block of one network of 100 layers, measured on a batch of digits. The lines are the
# closed form with the padding and the sizes of the drawn weights. At the vertical lines a stage
# begins, with a convolution on the skip path.

# %%
rows = []
for scheme in ("alpha_one", "alpha_rsqrt_depth", "batchnorm", "fixup"):
    network, params = drawn(scheme, LAYERS)
    observe = functools.partial(analysis.observe, network)
    _, activations = jax.jit(observe)(params, images)
    measured = analysis.signal_of(activations)
    form = analysis.predicted(params, scheme, activations, family="pre_activation")
    per_stage = len(activations) // 3
    rows += [
        {
            "title": schemes.get(scheme).title,
            "k": k + 1,
            "transition": k in (0, per_stage, 2 * per_stage),
            "var": float(measured.sum.second[k]),
            "form": float(form.sum[k]),
            "share": float(measured.share[k]),
            "form_share": float(form.share[k]),
        }
        for k in range(len(activations))
    ]
begins = [row["k"] - 0.5 for row in rows[: len(activations)] if row["transition"]]


def over_blocks(column, form, label, y_base):
    """A panel of dots, which are measured, and the lines of the closed form."""
    curves = plotting.curves_of(rows, "k", column, "dots")
    curves += plotting.curves_of(rows, "k", form, "--")
    return plotting.Panel("block $k$", label, curves, y_base=y_base, lines=begins)


plotting.curves_figure(
    [over_blocks("var", "form", "Var of the sum", y_base=2)],
    FIGURES / "signal.png",
    title="What a block adds decides how the signal grows",
    subtitle=f"WRN-{LAYERS}-1 of {CHANNELS} channels at initialisation, {BATCH} digits",
    legend={"--": "closed form"},
)
Image(FIGURES / "signal.png", width=560)

# %% [markdown]
# ## 2 The branch's share
#
# De and Smith (NeurIPS 2020) ask why BatchNorm helps deep residual networks. Their answer is the
# *share* of the branch in the sum. With BatchNorm the skip path has accumulated a variance of $k$
# when the branch adds its 1, so that the branch's share is
#
# $$\frac{\mathrm{Var}\,F_k}{\mathrm{Var}\,x_k} = \frac{1}{k+1}$$
#
# where $k$ starts again at every stage. The deeper a block, the nearer it is to the identity.
# Without BatchNorm, $\alpha = 1$, each branch has half of its sum at every depth. (On small padded
# images it has less. In a narrow network the shares scatter: where a branch cancels a part of the
# skip path its share can be above 1.) A scalar $\alpha = 0$ at the end of each branch (SkipInit),
# or Fixup's zeros, replace this effect of BatchNorm.

# %%
plotting.curves_figure(
    [over_blocks("share", "form_share", "the branch's share of the sum", y_base=0)],
    FIGURES / "share.png",
    title="BatchNorm makes deep blocks nearly the identity",
    subtitle=f"WRN-{LAYERS}-1 of {CHANNELS} channels at initialisation, {BATCH} digits",
    legend={"--": "closed form"},
)
Image(FIGURES / "share.png", width=560)

# %% [markdown]
# ## 3 The first step
#
# A network can have a well-behaved signal and still not train: every layer of every branch takes a
# step, and the steps add up in the output. Fixup (Zhang, Dauphin, Ma, ICLR 2019) requires that one
# step of gradient descent with the rate $\eta$ changes the function by $\Theta(\eta)$,
# *independently of the depth*:
#
# $$\lVert \Delta f(x) \rVert / \eta \quad\text{does not grow with } L .$$
#
# So each of the $L$ branches may move the output by $\Theta(\eta/L)$ only. For branches of $m$
# layers whose last one is 0 this gives the factor $L^{-1/(2m-2)}$ on the others (rule 2 of the
# paper). Without it the branches' part of the update grows like $L$, even if the last layers are 0.
#
# Here the head is drawn at random, since with Fixup's zero head only the head moves in the first
# step. The update is the limit $\eta \to 0$. At 304 layers that of α = 1 is not finite in float32,
# and has no point.


# %%
def update_size(scheme, layers, *, with_rule_2=True):
    network, params = drawn(scheme, layers)
    params = analysis.random_head(params, jax.random.key(2))
    if not with_rule_2:
        # Rule 2 divided the layers of a branch by the square root of L.
        params = scaled_branches(params, ((layers - 4) // 2) ** 0.5)  # of L branches
    update = functools.partial(analysis.update_size, network)
    sizes = jax.jit(update)(params, images, labels)
    return float(sizes.mean())


def scaled_branches(params, factor):
    return roles.assign(params).map(
        lambda leaf, value: value * factor if leaf.role is roles.Role.BRANCH else value, params
    )


updates = []
for title, scheme, with_rule_2 in (
    ("α = 1, He", "alpha_one", True),
    ("Fixup without rule 2", "fixup", False),
    ("Fixup", "fixup", True),
):
    for layers in DEPTHS:
        size = update_size(scheme, layers, with_rule_2=with_rule_2)
        if np.isfinite(size):
            updates.append({"title": title, "depth": layers, "size": size})

# %%
step = plotting.curves_of(updates, "depth", "size")
plotting.curves_figure(
    [plotting.Panel("layers", "‖Δf‖ / η", step, x_base=10, y_base=10)],
    FIGURES / "updates.png",
    title="Fixup: a step moves the network alike at any depth",
    subtitle=f"WRN-n-1 of {CHANNELS} channels, random head, mean over {BATCH} digits, η → 0",
)
Image(FIGURES / "updates.png", width=820)

# %% [markdown]
# ## What to take away
#
# - A residual network without normalization does not train when its branches start too large: the
#   signal explodes, or the first step does.
# - BatchNorm prevents this by downscaling deep branches by $1/\sqrt{k}$; SkipInit, Fixup and
#   RescaleNet do it by construction.
# - BatchNorm has two more benefits: it regularises, and it allows larger learning rates, which help
#   at large batches. See `sweep_learning_rate_and_batch_size` for the rates.
#
# `nf-resnets analyze --model wrn-100-1 --scheme rescalenet` draws a page like this one for any
# network of the library. `nf-resnets experiment theory_signal` and `theory_updates` repeat these
# measurements over several draws; `theory_bounds` measures Fixup's Theorems 1 and 2,
# `theory_stable_rate` the largest rate that trains.
