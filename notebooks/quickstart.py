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
# # Your network, three lines, no BatchNorm
#
# You have a deep residual network, and you want to train it **without normalization**. Here you
# learn
#
# 1. why it does not train with a standard initialisation,
# 2. the lines that make it train: rules that say what each of *your* parameters is, and one pure
#    function,
# 3. how to keep the trained network in one file, and use it.
#
# It takes about a minute on a laptop. The images are the handwritten digits inside scikit-learn.

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
import tempfile
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from IPython.display import Image

from nf_resnets import data, init, models, optim, plotting

BLOCKS = 8  # a stage
STEPS = 80
SEED = 0
FIGURES = Path(tempfile.mkdtemp())

# %% [markdown]
# ## A network of your own
#
# Fifty layers in plain Flax, without this library and without normalization: a stem, 24 residual
# blocks of two convolutions in three stages, a head. In place of BatchNorm's biases and scales the
# blocks have the *scalars* of the Fixup paper: a bias before each convolution and each ReLU, and a
# multiplier on the branch.


# %%
class Block(nn.Module):
    channels: int
    stride: int

    @nn.compact
    def __call__(self, x):
        def scalar(name, value):
            return self.param(name, nn.initializers.constant(value), ())

        def conv(name, x, size=3, stride=1):
            options = {"use_bias": False, "kernel_init": nn.initializers.he_normal()}
            return nn.Conv(self.channels, (size, size), stride, name=name, **options)(x)

        y = nn.relu(x + scalar("bias_1", 0.0))
        if y.shape[-1] != self.channels:
            x = conv("shortcut", y, size=1, stride=self.stride)
        y = conv("conv_1", y + scalar("bias_2", 0.0), stride=self.stride)
        y = conv("conv_2", nn.relu(y + scalar("bias_3", 0.0)) + scalar("bias_4", 0.0))
        return x + scalar("multiplier", 1.0) * y


class Network(nn.Module):
    blocks: int  # of each of three stages

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(16, (3, 3), name="stem")(x)
        for index in range(3 * self.blocks):
            stage, place = divmod(index, self.blocks)
            stride = 2 if stage and not place else 1
            x = Block(16 * 2**stage, stride, name=f"block_{index}")(x)
        return nn.Dense(10, name="head")(nn.relu(x).mean(axis=(1, 2)))


digits = data.load("digits")
images = data.normalize(digits.train.images, digits.mean, digits.std)
labels = jnp.asarray(digits.train.labels)

network = Network(BLOCKS)
as_it_is = jax.jit(network.init)(jax.random.key(SEED), images[:1])["params"]

# %% [markdown]
# ## The three lines
#
# `init.Rules` gives the roles of your parameters, as regular expressions over their paths.
# `init.fixup` takes the tree and returns another one. `depth` is $L$, the number of residual
# branches. If the rules find another number, or if no rule names a weight, that is an error.
#
# Fixup (section 3 of the paper) sets the head and the last layer of every branch to 0. It
# multiplies the other layers of a branch of $m$ layers by $L^{-1/(2m-2)}$, here $24^{-1/2}\approx
# 0.2$.

# %%
rules = init.Rules(branch=r"block_(\d+)/conv_(\d+)/kernel", stem=r"^stem/",
                   shortcut=r"/shortcut/", head=r"^head/",
                   scalar_bias=r"/bias_\d$", multiplier=r"/multiplier$")  # fmt: skip
fixup = init.fixup(as_it_is, depth=3 * BLOCKS, rules=rules)

# %% [markdown]
# ## The difference
#
# Train from both trees, with the same data, order and learning rate. Any optimizer of optax works;
# `optim.sgd` trains the scalars at a tenth of the rate, as Fixup's authors do.


# %%
def train(params, steps, learning_rate=0.1, batch_size=64):
    optimizer = optim.sgd(learning_rate, rules=rules)

    def loss_of(params, batch):
        logits = network.apply({"params": params}, images[batch])
        loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels[batch]).mean()
        return loss, (logits.argmax(axis=-1) == labels[batch]).mean()

    @jax.jit
    def step(params, state, key):
        batch = jax.random.choice(key, len(labels), (batch_size,), replace=False)
        (loss, right), grads = jax.value_and_grad(loss_of, has_aux=True)(params, batch)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss, right

    state, losses, accuracies = optimizer.init(params), [], []
    for key in jax.random.split(jax.random.key(SEED + 1), steps):
        params, state, loss, right = step(params, state, key)
        losses.append(float(loss))
        accuracies.append(float(right))
        if not jnp.isfinite(loss):
            break
    return params, losses, accuracies


runs = {"He": train(as_it_is, STEPS), "Fixup": train(fixup, STEPS)}

# %%
panels = []
for name, place in (("accuracy on the batch", 2), ("training loss", 1)):
    curves = []
    for title, run in runs.items():
        smooth = plotting.moving_average(run[place], 5)
        diverged = len(run[1]) < STEPS
        curves.append(plotting.Curve(title, range(1, len(smooth) + 1), smooth, diverged=diverged))
    limits = (0, 1.02) if place == 2 else (0, 4)
    level = (0.1, "chance") if place == 2 else None
    panels.append(
        plotting.Panel(
            "step", name, curves, y_limits=limits, level=level, more_is_better=place == 2
        )
    )
plotting.curves_figure(
    panels, FIGURES / "runs.png",
    title=f"{6 * BLOCKS + 2} layers without normalization, from two initialisations",
    subtitle="digits, 16 to 64 channels, batch 64, learning rate 0.1, mean of 5 steps",
)  # fmt: skip
Image(FIGURES / "runs.png", width=760)

# %% [markdown]
# With He's initialisation each branch is as large as its input, so that the signal grows by a
# constant factor from block to block. The first loss lies far above the plot, the first steps are
# too large, and the network stays at chance. With Fixup all branches start at 0. The first loss is
# exactly $\ln 10 = 2.30$, and a step moves the function by the same amount at any depth.
#
# ## The library's own networks
#
# `models` has the networks of the papers, with the parts that each scheme needs. `save` keeps a
# network with its settings in one safetensors file, and `predict` reads it. The command line does
# the same:
#
# ```
# nf-resnets train --scheme fixup --model wrn-16-1 --out digits.safetensors
# nf-resnets predict digits.safetensors my_digit.png
# ```

# %%
from nf_resnets import fit, predict

model = models.WideResNet(depth=16, scheme="fixup", stem_channels=8)
EPOCHS = 5.0
found = fit(digits, network=model, epochs=EPOCHS, seed=SEED, show=False)
print(f"{100 * found.notes['test_accuracy']:.1f}% of {len(digits.test.labels)} test images")

path = found.save(FIGURES / "digits.safetensors", overwrite=True)
answers = predict(path, digits.test.images[:5])
for label, (name, share) in zip(digits.test.labels, answers, strict=False):
    print(f"a {label}: {name} {100 * share:.0f}%")

# %% [markdown]
# ## Where to go
#
# - SkipInit: `init.skipinit`, with `alpha=r"/multiplier$"` in place of `multiplier=` in the rules.
#   Other schemes want other parts in the blocks: RescaleNet constants and biases of channels.
# - Why it works, with measurements beside the theory: `why_deep_residual_networks_train`.
# - Which learning rate for which batch size: `sweep_learning_rate_and_batch_size`.
