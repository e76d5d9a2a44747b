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
# # Carry a learning rate from a shallow network to a deep one
#
# You tune the learning rate of a shallow network, and train a deep one with it. Is it the best rate
# there? That depends on how branches and rates are scaled with the depth. Here you learn to
#
# 1. scale the rates of *your own network* leaf by leaf, with `optim.parametrized`,
# 2. check in a few steps whether the activations change equally at all depths (the *coordinate
#    check*),
# 3. measure with a small sweep how far the best rate moves, and what keeping the old rate costs.

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
import functools
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from IPython.display import Image

from nf_resnets import analysis, data, init, optim, plotting, schemes, sweep
from nf_resnets.parametrization import DEPTH_MUP, unscaled

DEPTHS = (4, 16, 64)  # residual branches; rates are tuned at the first
WIDTH = 32
RATES = tuple(2.0**power for power in range(-11, -3))
SEEDS = (0, 1, 2)
STEPS = 40
FOLDER = Path(tempfile.mkdtemp())

# %% [markdown]
# ## Your network
#
# Any parameter tree and any function will do. This one is a residual MLP without normalization,
# whose blocks are stacked and computed by a scan. `Rules` say what its leaves are.

# %%
RULES = init.Rules(branch=r"(blocks)/linear_(\d)", stacked="^blocks/", stem="^stem", head="^head")


def shapes(depth):
    leaf = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    return {
        "stem": {"kernel": leaf((64, WIDTH))},
        "blocks": {name: leaf((depth, WIDTH, WIDTH)) for name in ("linear_1", "linear_2")},
        "head": {"kernel": leaf((WIDTH, 10))},
    }


def network(factors, params, images):
    def block(x, own):
        kernels, factor = own
        return x + factor * jax.nn.relu(x @ kernels["linear_1"]) @ kernels["linear_2"], None

    x = images.reshape(len(images), -1) @ params["stem"]["kernel"]
    x, _ = jax.lax.scan(block, x, (params["blocks"], factors))
    return x @ params["head"]["kernel"]


# %% [markdown]
# ## Its rates
#
# A scheme says how large branches are, and how rates follow the depth. Depth-μP multiplies branches
# by $L^{-1/2}$ and, with Adam, the rates of their weights by $(L/L_0)^{-1/2}$; stem and head keep
# theirs. `optim.parametrized` scales the rates of any optimizer, relative to the network that you
# tuned. A parametrisation is a value, and you can write your own. `ONE_RATE` has the branches of
# depth-μP, and one rate for all depths.

# %%
ONE_RATE = dataclasses.replace(DEPTH_MUP, name="one_rate", factors=unscaled)
SCHEMES = {
    "one rate for all depths": schemes.parametrized("plain", ONE_RATE),
    "depth-μP": schemes.get("depth_mup"),
}


def start(name, depth, seed):
    scheme = SCHEMES[name]
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes(depth))
    params = scheme.init(zeros, depth, key=jax.random.key(seed), rules=RULES)
    return functools.partial(network, scheme.constants(depth).residual), params


def optimizer(name, depth, rate):
    return optim.parametrized(
        optax.adam(rate), shapes(depth), SCHEMES[name],
        base=shapes(DEPTHS[0]), kind="adam", rules=RULES,
    )  # fmt: skip


# %% [markdown]
# ## The coordinate check
#
# Take three small steps on one batch: how far does the sum after the last branch move? Where a rate
# transfers it moves equally far at every depth, and the exponent of the growth is near 0. With one
# rate and Adam, $L$ branches of size $L^{-1/2}$ move it by $L^{1/2}$.

# %%
digits = data.load("digits").train
images, labels = jnp.asarray(digits.images[:64]) / 16.0, jnp.asarray(digits.labels[:64])

found = {}
for name in SCHEMES:
    for depth in DEPTHS:
        net, params = start(name, depth, seed=0)
        check = functools.partial(
            analysis.coordinates, net, optimizer=optimizer(name, depth, 1e-4), steps=3
        )
        found.setdefault(name, {})[depth] = jax.jit(check)(params, images, labels)
    exponent = analysis.growth(DEPTHS, [found[name][depth].change[-1, -2] for depth in DEPTHS])
    print(f"{name}: the change grows as depth^{exponent:.1f}")

# %%
plotting.coordinates_figure(
    analysis.coordinate_rows(found["depth-μP"], steps=(1, 3)), FOLDER / "check.png",
    title="Depth-μP: activations move alike at all depths", size="branches",
    subtitle=f"Adam at 1e-4, width {WIDTH}, one batch of 64 digits",
)  # fmt: skip
Image(FOLDER / "check.png")

# %% [markdown]
# ## The sweep
#
# The check needs no tuning, but covers the first steps only. A sweep of all rates at all depths
# tests the rest. Runs that differ in rate and seed share one compiled program.


# %%
def losses(name, depth):
    @jax.jit
    def train(rate_and_seed):
        rate, seed = rate_and_seed
        net, params = start(name, depth, seed)
        rule = optimizer(name, depth, rate)
        order = jax.random.randint(jax.random.key(seed), (STEPS, 64), 0, len(digits.labels))

        def step(carry, chosen):
            params, state = carry
            x, y = jnp.asarray(digits.images)[chosen] / 16.0, jnp.asarray(digits.labels)[chosen]

            def loss_of(params):
                return optax.softmax_cross_entropy_with_integer_labels(net(params, x), y).mean()

            loss, grads = jax.value_and_grad(loss_of)(params)
            updates, state = rule.update(grads, state, params)
            return (optax.apply_updates(params, updates), state), loss

        _, curve = jax.lax.scan(step, (params, rule.init(params)), order)
        return curve[-max(1, STEPS // 4) :].mean()

    grid = [(rate, seed) for rate in RATES for seed in SEEDS]
    rates, seeds = (jnp.asarray(column) for column in zip(*grid, strict=True))
    return [
        {
            "scheme": name, "depth": depth, "peak_lr": rate, "seed": seed,
            "state": "finished" if np.isfinite(loss) else "diverged",
            "train_loss": float(loss),
        }
        for (rate, seed), loss in zip(grid, jax.lax.map(train, (rates, seeds)), strict=True)
    ]  # fmt: skip


rows = [row for name in SCHEMES for depth in DEPTHS for row in losses(name, depth)]
print(f"{len(rows)} runs, {sum(row['state'] == 'diverged' for row in rows)} diverged")

# %% [markdown]
# ## How far the best rate moves
#
# `optima` finds the best rate of each network, with the range of rates as good. `moves` compares it
# with that of the shallowest network. `cost` is the training loss that the shallow network's rate
# adds.

# %%
best = sweep.optima(rows, by=("scheme", "depth"), metric="train_loss")
moves = [dataclasses.asdict(move) for move in sweep.moves(best, "depth")]
for move in moves:
    name = f"{move['group']['scheme']}, {move['size']} branches"
    power = np.log2(move["best"] or np.nan)
    cost = "diverges" if move["cost"] is None else f"costs {abs(move['cost']):.2f}"
    print(f"{name}: best 2^{power:.0f}, that of {DEPTHS[0]} branches {cost}")

# %%
plotting.transfer_figure(
    moves, FOLDER / "transfer.png", size="branches",
    title="The best rate against the depth",
    subtitle=f"Adam, width {WIDTH}, {STEPS} steps on digits, {len(SEEDS)} seeds; training loss",
)  # fmt: skip
Image(FOLDER / "transfer.png")

# %% [markdown]
# With one rate the best rate falls fourfold from 4 to 64 branches, with depth-μP twofold. At 64
# branches the rate of 4 costs less with depth-μP, at 16 as much.
#
# `completep` is CompleteP, with branches times $L^{-1}$. `mup` does the same for width, with a base
# network of another width; see the how-to page on transfer. `nf-resnets experiment rate_transfer`
# compares this library's schemes on Wide ResNets, `rate_transfer_transformer` on Transformers.
