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
# A Transformer has a LayerNorm after each of its residual branches, and without them deep ones do
# not train. Here you learn
#
# 1. that it is the *initialisation* that LayerNorm makes up for: three deep Transformers, one with
#    LayerNorm, one without, one without but started by Fixup,
# 2. how attention fits into Fixup's rule: the query, key, value and output layers of a branch are
#    its $m = 4$ layers, the two feed-forward layers $m = 2$,
# 3. how to translate with the result, and keep it in one file with its vocabulary.
#
# The task is real, small and made on the spot: German sentences with numbers in words, to English.
# It needs reordering (*dreiundzwanzig* is three-and-twenty; German verbs wait for the end), so that
# copying gets a model nowhere. About two minutes on a laptop.

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
TESTED = 20  # sentences
FIGURES = Path(tempfile.mkdtemp())

# %% [markdown]
# ## Sentences and tokens
#
# `load_pairs("made")` makes the sentences; `"wmt16_translate/de-en"`, `"multi30k_translate/de-en"`
# and others are read with TensorFlow Datasets. The vocabulary is trained on the spot, joint byte
# pairs as in the published recipes. Batches hold sentences of similar length; here we keep one
# length, so that everything compiles once.

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
# `models.Transformer` takes a scheme by name and contains what it needs: LayerNorm after each sum,
# as published; Fixup's scalar biases and multipliers; or nothing. All three start from one Xavier
# draw, and the scheme's function makes of it what the scheme is. With $L = 5N = 45$ residual
# branches Fixup multiplies the attention's layers by $L^{-1/6} \approx 0.53$, the feed-forward's by
# $L^{-1/2} \approx 0.15$, and sets each branch's last layer and the head to 0.

# %%
VARIANTS = {
    "LayerNorm": "layernorm_post",
    "Fixup, no LayerNorm": "fixup",
    "plain residual, no LayerNorm": "plain",
}


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
    return model, training.train(program, start)


runs = {title: train(scheme) for title, scheme in VARIANTS.items()}

# %%
curves = []
for title, (_, run) in runs.items():
    losses = [float(metrics["likelihood"]) for metrics in run.curve]
    smooth = plotting.moving_average(losses, 5)
    diverged = run.status == "diverged"
    curves.append(plotting.Curve(title, range(1, len(smooth) + 1), smooth, diverged=diverged))
ends = ", ".join(f"{curve.title} {curve.y[-1]:.1f}" for curve in curves)
panel = plotting.Panel("step", "nats a token", curves, more_is_better=False, y_base=10)
plotting.curves_figure(
    [panel],
    FIGURES / "loss.png",
    title=f"The loss of {2 * LAYERS} layers ends at: {ends}",
    subtitle=f"{CHANNELS} channels, {TOKENS} tokens a batch, Adam, rate 0.003, mean of 5 steps",
)  # fmt: skip
Image(FIGURES / "loss.png", width=700)

# %% [markdown]
# Without LayerNorm and with the standard initialisation the loss is tens of thousands of nats from
# the first steps on, and does not fall. Fixup, which has as little LayerNorm, learns; at this rate,
# one for all three, and in so few steps faster than the network with LayerNorm after every sum.
#
# ## Translating
#
# `translate` is a beam search in one compiled loop. The network is kept with its vocabulary in one
# file, which the command line reads too:
# `python -m nf_resnets.trained predict translator.safetensors --sentence "Anna hat drei Hüte."`

# %%
model, run = runs["Fixup, no LayerNorm"]
path = trained.save(
    FIGURES / "translator.safetensors",
    model,
    {"params": run.state.params},
    inputs=trained.Sentences("de", "en", vocabulary.source, vocabulary.target),
)
found = trained.load(path)
sources, targets = pairs.test.source[:TESTED], pairs.test.target[:TESTED]
for source, target, words in zip(
    sources[:3],
    targets,
    translation.translate(found.model, found.variables["params"], vocabulary, sources, beam=1),
    strict=False,
):
    print(f"{source}\n  should be: {target}\n  is:        {words}")

# %% [markdown]
# The order of the words is there, the right words are not yet: so few steps are too few for that.
#
# ## Where to go
#
# - `python -m experiments.fixup_table3_translation` trains these and the network with LayerNorm
#   before each branch, for longer, and measures BLEU with its signature; with `--data-dir` on
#   Multi30k.
# - `--scale paper` is the published setting of the Fixup paper's table 3, for a GPU.
