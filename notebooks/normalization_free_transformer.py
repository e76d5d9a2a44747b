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
# # A Transformer without LayerNorm
#
# A deep Transformer without LayerNorm does not train from a standard initialisation. With Fixup it
# does. Here you learn
#
# 1. to train three Transformers of 18 layers: with LayerNorm, without it, and without it but
#    initialised by Fixup,
# 2. how attention fits into Fixup's rule: an attention branch has $m = 4$ layers (query, key, value
#    and output), a feed-forward branch $m = 2$,
# 3. to translate with the result, and to keep it in one file with its vocabulary.
#
# The data are generated: German sentences with numbers in words, and their English translations.
# Word order differs (*dreiundzwanzig* is three-and-twenty; German participles come last), so that a
# copy of the source is no translation. It takes about two minutes on a laptop.

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

import jax
from IPython.display import Image

from nf_resnets import models, optim, plotting, schemes, trained, training, translation

PAIRS = 6_000  # of sentences
VOCABULARY = 600  # tokens
LAYERS = 9  # in the encoder, and as many in the decoder
CHANNELS = 48
STEPS = 150
TOKENS = 768  # a batch
FIGURES = Path(tempfile.mkdtemp())

# %% [markdown]
# ## Sentences and tokens
#
# `load_pairs("made")` generates the sentences; `"wmt16_translate/de-en"`,
# `"multi30k_translate/de-en"` and others are read with TensorFlow Datasets. The vocabulary has
# joint byte pairs, as in the published recipes. Batches hold sentences of similar length; here we
# keep one length, so that everything compiles once.

# %%
pairs = translation.load_pairs("made", limit=PAIRS)
vocabulary = translation.train_vocabulary(pairs.train.source, pairs.train.target, size=VOCABULARY)
whole = translation.encode(pairs.train.source, pairs.train.target, vocabulary, max_length=64)
widths = list(whole.widths)
usual = max(set(widths), key=widths.count)
kept = [index for index, width in enumerate(widths) if width == usual]
corpus = translation.Corpus(
    tuple(whole.source[index] for index in kept),
    tuple(whole.target[index] for index in kept),
    usual,
)
print(
    f"{len(kept):,} pairs of at most {usual} tokens, {vocabulary.target_size} tokens; for example"
)
print(f"  {pairs.train.source[0]}\n  {pairs.train.target[0]}")

# %% [markdown]
# ## Three Transformers
#
# `models.Transformer` takes a scheme by name and contains the parts that it needs: LayerNorm after
# each sum, as published; Fixup's scalar biases and multipliers; or nothing. All three start from
# one Xavier draw, which the scheme's function changes. With $L = 5N = 45$ residual branches Fixup
# multiplies the attention's layers by $L^{-1/6} \approx 0.53$ and the feed-forward layers by
# $L^{-1/2} \approx 0.15$. It sets the last layer of each branch and the head to 0.

# %%
VARIANTS = {"LayerNorm": "layernorm_post", "Fixup": "fixup", "no LayerNorm": "plain"}


def network(scheme):
    return models.Transformer(
        vocab_size=vocabulary.target_size,
        num_layers=LAYERS,
        d_model=CHANNELS,
        num_heads=4,
        d_ff=2 * CHANNELS,
        scheme=scheme,
        max_length=64 + translation.LONGER,
    )


def optimizer(hyper):
    rate = optim.inverse_sqrt(hyper["learning_rate"], max(1, STEPS // 4))
    return translation.adam(rate)  # Fixup's scalars at a tenth of the rate


def train(scheme):
    model = network(scheme)
    start = training.Start(schemes.get(scheme), seed=0, hyper={"learning_rate": 3e-3})
    mesh = training.make_mesh(devices=jax.devices()[:1])
    settings = translation.TokenTraining(max_tokens=TOKENS, num_steps=STEPS)
    program = translation.token_program(model, corpus, optimizer, mesh, settings, start)
    (run,) = training.train(program, [start], keep_states=True)
    return model, run


runs = {title: train(scheme) for title, scheme in VARIANTS.items()}

# %%
curves = []
for title, (_, run) in runs.items():
    smooth = plotting.moving_average(run.column("likelihood").tolist(), 5)
    diverged = run.status == "diverged"
    curves.append(plotting.Curve(title, range(1, len(smooth) + 1), smooth, diverged=diverged))
ends = ", ".join(f"{curve.title} {curve.y[-1]:,.1f}" for curve in curves)
panel = plotting.Panel("step", "nats a token", curves, more_is_better=False, y_base=10)
plotting.curves_figure(
    [panel],
    FIGURES / "loss.png",
    title=f"Loss after {STEPS} steps: {ends}",
    subtitle=(
        f"{2 * LAYERS} layers of {CHANNELS} channels, {TOKENS} tokens a batch, Adam, rate 0.003, "
        "mean of 5 steps"
    ),
)  # fmt: skip
Image(FIGURES / "loss.png", width=700)

# %% [markdown]
# Without LayerNorm and with the standard initialisation the loss stays at about 10,000 nats or
# more. With Fixup the same network learns. At this rate, the same for all three, and in so few
# steps it learns faster than the network with LayerNorm after every sum.
#
# ## Translating
#
# `translate` is a beam search in one compiled loop; with `beam=1` it takes the likeliest token at
# each step. One file keeps the network and its vocabulary, and the command line reads it:
# `nf-resnets predict translator.safetensors --sentence "Anna hat drei Hüte."`

# %%
model, run = runs["Fixup"]
path = trained.save(
    FIGURES / "translator.safetensors",
    model,
    {"params": run.state.params},
    inputs=trained.Sentences("de", "en", vocabulary.source, vocabulary.target),
    overwrite=True,
)
found = trained.load(path)
sources, targets = pairs.test.source[:3], pairs.test.target[:3]
answers = translation.translate(found.model, found.variables["params"], vocabulary, sources, beam=1)
for source, target, words in zip(sources, targets, answers, strict=True):
    print(f"{source}\n  should be: {target}\n  is:        {words}")

# %% [markdown]
# After so few steps the word order is right, but not yet all of the words.
#
# ## Where to go
#
# - `nf-resnets experiment fixup_table3_translation` trains these networks for longer, and one with
#   LayerNorm before each branch, and measures BLEU. `--scale multi30k` takes Multi30k.
# - `--scale paper` is the setting of table 3 of the Fixup paper, for a GPU.
