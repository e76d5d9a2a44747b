r"""Fixup's table 3: a Transformer without LayerNorm translates as well as one with it.

Claim (section 4.3): with LayerNorm replaced by Fixup, training is "very stable and as fast as the
baseline model", and reaches BLEU 34.5 against 34.2 on IWSLT German-English, 29.3 against 29.3 on
WMT English-German. Others had found that removing LayerNorm "results in unstable training runs".

Setting, `--scale paper`: IWSLT'14, fairseq's `transformer_iwslt_de_en`, 10,000 joint byte pairs,
Adam(0.9, 0.98) with 4,000 steps of warm-up and the inverse square root after, 200,000 steps, beam
5. TensorFlow Datasets does not have IWSLT'14: prepare it as `iwslt14_translate/de-en` with a
`Translation` feature, or name another set by `--dataset`. `--scale paper_wmt`: WMT English-German,
tested on newstest2014, the big Transformer of Ott et al. (2018), beam 4 with exponent 0.6; the size
of a batch is not in the paper, 32,000 tokens here. Both need GPUs, and have not been run here. The
published BLEU is of tokenised text, ours sacrebleu's of detokenised text with the signature
printed: the order is comparable, the second digit is not.

`--scale laptop` trains 18 layers (9 + 9, 45 branches) of 64 channels on generated sentences with
the same recipe, shorter, in ten minutes. It shows three things in one figure. Fixup reaches the
loss and the BLEU of LayerNorm before each branch, about 100 steps later. LayerNorm after the sum,
as published for 6 + 6 layers, has hardly begun to learn at this depth and rate. Without LayerNorm
the standard initialisation has a loss that is never below 5,000 nats per token, and the run
diverges. With `--data-dir` it trains on Multi30k German-English (`multi30k_translate/de-en`, pairs
of at most 32 tokens, greedy translation) from that folder, in about a quarter of an hour. It cannot
show the published numbers. `--scale smoke` trains a Transformer of 2 + 2 layers on generated
sentences for a minute or so, which is enough for a BLEU above that of an untrained network and of a
copy.

Tried otherwise, one seed: with `--layers 6`, the published 6 + 6 layers, LayerNorm after the sum
learns too, to a BLEU of 70.8 after 400 steps. Fixup has 99.8, LayerNorm before each branch 98.8.
Without LayerNorm the test loss is 830 nats per token, and the run does not diverge. The depth of
9 + 9 was chosen for the figure since three of these are further apart there.

`--scale rivals` compares nine schemes in about ten minutes, on generated sentences with a shorter
recipe of `laptop`, at the published 6 + 6 layers: LayerNorm in both places, DeepNorm and Admin, and
without LayerNorm Fixup, T-Fixup, ReZero, DyT and Derf. All have laptop's rate, and 60 steps of
warm-up, which were chosen for none of them: T-Fixup and ReZero were published to need no warm-up,
DyT and Derf with rates of their own. The authors' own numbers, on other tasks and sizes, are on the
schemes' pages; none of them is reproduced here.

Not as published: `laptop` and `smoke` train the scalars at a tenth of the rate, as Fixup's networks
for images do. The paper does not mention it for translation, and the authors' code for translation
trains them at the full rate, as `paper` and `paper_wmt` do. That code makes 226,000 updates, the
paper 200,000. For WMT the training pairs are those of 2014, where the paper says 2016, and the
weight decay, which is not known, is 0. The vocabulary is SentencePiece's, of raw text, and joint;
the authors' has one table of merges and two dictionaries. Published runs have the rate 5e-4 at
every size; the small networks here learn at a higher one.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from nf_resnets import models, optim, schemes, translation
from nf_resnets.plotting.curves import Curve, Panel, curves_figure, moving_average
from nf_resnets.plotting.whole import whole_file
from nf_resnets.training import Start

from . import experiment
from .experiment import Experiment, Lines, Point, Results, Setup, number, thinned
from .findings import who_trains
from .folder import ResultsFolder, Row
from .main import run
from .table import grouped, text_table

LEAST = 5
"""How far above a copy of the source the BLEU of a Transformer that trains lies at least."""
VARIANTS = {
    "layernorm": ("LayerNorm", "layernorm_post"),
    "layernorm_pre": ("LayerNorm before each branch", "layernorm_pre"),
    "fixup": ("Fixup, no LayerNorm", "fixup"),
    "plain": ("no LayerNorm, standard initialisation", "plain"),
    "t_fixup": ("T-Fixup, no LayerNorm", "t_fixup"),
    "rezero": ("ReZero, no LayerNorm", "rezero"),
    "dyt": ("DyT instead of LayerNorm", "dyt"),
    "derf": ("Derf instead of LayerNorm", "derf"),
    "deepnorm": ("DeepNorm", "deepnorm"),
    "admin": ("Admin", "admin"),
}
"""The title and the scheme of each variant. The published LayerNorm is after the sum; deep networks
are easier to train with one before each branch."""

OF_THE_TABLE = ("layernorm", "layernorm_pre", "fixup", "plain")
RIVALS = tuple(name for name in VARIANTS if name != "plain")

MULTI30K = "multi30k_translate/de-en"
SIZES = ("num_layers", "d_model", "num_heads", "d_ff", "dropout")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the table's rows depend on."""

    dataset: str
    variants: tuple[str, ...] = OF_THE_TABLE
    seeds: tuple[int, ...] = (0,)
    source: str | None = None  # the language to translate from; None: the one named first
    train_pairs: int | None = None  # None: all
    test_pairs: int | None = None
    vocabulary: int = 10_000
    joint: bool = True
    byte_fallback: bool = False
    num_layers: int = 6  # of the encoder, and of the decoder
    d_model: int = 512
    num_heads: int = 4
    d_ff: int = 1024
    max_length: int = 256
    max_tokens: int = 4_000
    steps: int = 200_000
    learning_rate: float = 5e-4
    warmup_steps: int = 4_000
    dropout: float = 0.5
    label_smoothing: float = 0.1
    scalar_factor: float = 0.1
    weight_decay: float = 0.0
    beam: int = 5
    alpha: float = 1.0
    offset: float = 0.0  # fairseq's length penalty
    looks: int = 10  # how often BLEU is measured on validation pairs
    look_pairs: int = 200
    window: int = 100  # steps of the moving average in the figure


SCALES = {
    "smoke": Settings(
        translation.MADE, variants=("layernorm", "fixup"), test_pairs=100, vocabulary=200,
        num_layers=2, d_model=64, d_ff=128, max_length=64, max_tokens=1_500, steps=300,
        learning_rate=3e-3, warmup_steps=60, dropout=0.0, beam=1, looks=2, look_pairs=50, window=10,
    ),
    "laptop": Settings(
        translation.MADE, vocabulary=400, num_layers=9, d_model=64, d_ff=128, max_length=64,
        max_tokens=1_500, steps=400, learning_rate=2e-3, warmup_steps=100, dropout=0.0, beam=4,
        alpha=0.6, offset=5.0, looks=4, look_pairs=50, window=10,
    ),
    "paper": Settings("iwslt14_translate/de-en", weight_decay=1e-4, scalar_factor=1.0),
    "paper_wmt": Settings(
        "wmt14_translate/de-en", source="en", vocabulary=32_000, d_model=1024, num_heads=16,
        d_ff=4096, max_tokens=32_000, dropout=0.4, scalar_factor=1.0, beam=4, alpha=0.6,
    ),
}  # fmt: skip
SCALES["rivals"] = dataclasses.replace(
    SCALES["laptop"], variants=RIVALS, num_layers=6, steps=250, warmup_steps=60, test_pairs=100,
    beam=1, looks=1, look_pairs=25,
)  # fmt: skip
ON_MULTI30K = {
    "dataset": MULTI30K, "vocabulary": 2_000, "max_length": 32, "test_pairs": 100, "beam": 1,
    "looks": 2,
}  # fmt: skip
"""What `laptop` changes where it has Multi30k: long sentences and beams take most of the time, to
be translated and to be compiled for every length."""


@dataclasses.dataclass(frozen=True)
class Command(experiment.Command):
    """The options of the table."""

    scale: Literal["smoke", "laptop", "rivals", "paper", "paper_wmt"] = "laptop"
    """smoke: a minute; laptop: minutes on two cores; rivals: laptop's recipe for nine schemes;
    paper: IWSLT as published; paper_wmt: WMT."""
    dataset: str = ""
    """A data set of tensorflow-datasets with its languages, such as wmt16_translate/de-en, or
    "made" for sentences that the code makes; by default that of the scale."""
    optimizer: optim.Name = "adamw"
    """adamw, as published; lion, muon or sgd, which want other rates than the scale has."""
    variants: tuple[str, ...] = ()
    """Some of layernorm, layernorm_pre, fixup, plain, t_fixup, rezero, dyt, derf, deepnorm, admin,
    with spaces between."""
    layers: int | None = None
    """Layers of the encoder, and of the decoder; by default the scale's."""
    data_dir: str | None = None
    """Where tensorflow-datasets keeps its data; with it, laptop takes Multi30k from there."""


def check(settings: Settings, command: Command) -> Settings:
    """The settings with the layers of the command line, and what a data set of its own changes."""
    if command.layers is not None:
        if command.layers < 1:
            raise ValueError(f"--layers {command.layers} found; expected at least 1.")
        settings = dataclasses.replace(settings, num_layers=command.layers)
    if command.scale == "laptop" and (command.dataset or command.data_dir is not None):
        name = command.dataset or MULTI30K
        if name != translation.MADE:
            settings = dataclasses.replace(settings, **ON_MULTI30K | {"dataset": name})
    return settings


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Sentence pairs, the vocabulary of those for training, and two splits as tokens."""

    pairs: translation.PairSet
    vocabulary: translation.Vocabulary
    train: translation.Corpus
    test: translation.Corpus


def load(settings: Settings, command: Command) -> Sentences:
    """Loads the sentence pairs, trains the vocabulary on them, and encodes them."""
    pairs = translation.load_pairs(
        settings.dataset, command.data_dir, source=settings.source, limit=settings.train_pairs
    )
    vocabulary = translation.train_vocabulary(
        pairs.train.source,
        pairs.train.target,
        size=settings.vocabulary,
        joint=settings.joint,
        byte_fallback=settings.byte_fallback,
    )
    train, test = (
        translation.encode(*split, vocabulary, max_length=settings.max_length)
        for split in (pairs.train, pairs.test)
    )
    return Sentences(pairs, vocabulary, train, test)


def keep_vocabulary(settings: Settings, sentences: Sentences, folder: ResultsFolder) -> None:
    """Writes the SentencePiece models beside the rows, one file if both languages share it."""
    vocabulary, train = sentences.vocabulary, sentences.train
    files = {"vocabulary": vocabulary.source}
    if not vocabulary.joint:
        files = {"source": vocabulary.source, "target": vocabulary.target}
    for name, content in files.items():
        with whole_file(folder.path / f"{name}.model") as new:
            new.write_bytes(content)
    print(
        f"{len(train.source):,} training pairs {' to '.join(sentences.pairs.languages)}, "
        f"{vocabulary.target_size:,} tokens; {train.dropped:,} pairs left out for having no words "
        f"or more than {settings.max_length} tokens",
        flush=True,
    )


def points(settings: Settings, sentences: Sentences, rows: Sequence[Row]) -> list[Point]:
    """The runs of the table; each is looked at ``settings.looks`` times."""
    hyper = {"learning_rate": settings.learning_rate}
    return [
        Point(
            key={"variant": name, "seed": seed},
            title=VARIANTS[name][0],
            start=Start(schemes.get(VARIANTS[name][1]), seed, hyper),
            program=name,
            num_steps=settings.steps,
            steps_per_epoch=max(1, settings.steps // settings.looks),
        )
        for name, seed in itertools.product(settings.variants, settings.seeds)
    ]


def setup(settings: Settings, sentences: Sentences, point: Point) -> Setup:
    """Network, optimizer and steps of one variant."""
    scheme = point.start.scheme
    sizes = {name: getattr(settings, name) for name in SIZES}
    model = models.Transformer(
        vocab_size=sentences.vocabulary.target_size,
        source_vocab_size=sentences.vocabulary.source_size,
        scheme=scheme,
        padding_id=translation.PADDING,
        # Room for a translation that is longer than its source.
        max_length=settings.max_length + translation.LONGER,
        **sizes,
    )

    def optimizer(hyper: dict[str, Any], name: optim.Name = "adamw") -> Any:
        rule, _ = translation.OPTIMIZERS[name]
        return rule(
            optim.inverse_sqrt(hyper["learning_rate"], settings.warmup_steps),
            weight_decay=settings.weight_decay,
            scheme=scheme,
            scalar_factor=settings.scalar_factor,
        )

    training = translation.TokenTraining(
        max_tokens=settings.max_tokens,
        num_steps=settings.steps,
        label_smoothing=settings.label_smoothing,
    )
    return Setup(model, optimizer, training, sentences.train)


def bleu_of(
    settings: Settings,
    sentences: Sentences,
    model: Any,
    params: Any,
    pairs: translation.Pairs,
    count: int | None,
) -> translation.Bleu:
    """BLEU on the first pairs of a split."""
    search = {"beam": settings.beam, "alpha": settings.alpha, "offset": settings.offset}
    found = translation.translate(
        model, params, sentences.vocabulary, pairs.source[:count], too_long="cut", **search
    )
    return translation.bleu(found, pairs.target[:count], language=sentences.pairs.languages[1])


def probe(
    settings: Settings, sentences: Sentences, point: Point, program: Any, state: Any, step: int
) -> dict[str, Any]:
    """BLEU on validation pairs; before the first step also that of the test and of a copy."""
    params, pairs = jax.device_put(state.params), sentences.pairs
    bleu = (settings, sentences, program.model, params)
    found = {"bleu": bleu_of(*bleu, pairs.validation, settings.look_pairs).score}
    if step == 0:
        count = settings.test_pairs
        untrained = bleu_of(*bleu, pairs.test, count)
        test, language = pairs.test, pairs.languages[1]
        copied = translation.bleu(test.source[:count], test.target[:count], language=language)
        found |= {"untrained": untrained.score, "signature": untrained.signature}
        found |= {"copy": copied.score}
    return found


def finish(
    settings: Settings, sentences: Sentences, point: Point, program: Any, state: Any
) -> dict[str, float]:
    """BLEU and likelihood of the test pairs."""
    params, test = jax.device_put(state.params), sentences.pairs.test
    score, _ = bleu_of(settings, sentences, program.model, params, test, settings.test_pairs)
    likelihood = translation.mean_likelihood(program.model, params, sentences.test)
    return {"bleu": score, "test_likelihood": float(likelihood)}


def row(settings: Settings, point: Point, run: Mapping[str, Any]) -> Row:
    """The columns of a translation."""
    measures, first = run["measures"], run["history"][0]["measures"]
    curve = measures["curve"]
    lengths = np.diff([0, *curve["step"]]).tolist()
    return {
        "layers": 2 * settings.num_layers,
        "tokens": round(sum(map(math.prod, zip(curve["tokens"], lengths, strict=True)))),
        "bleu": round(number(measures.get("bleu")), 2),
        "signature": first["signature"],
        "untrained_bleu": round(first["untrained"], 2),
        "copy_bleu": round(first["copy"], 2),
        "test_likelihood": number(measures.get("test_likelihood")),
    }


def lines(settings: Settings, point: Point, run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The curve of a run from step 0 on, and BLEU where it was looked at."""
    names = ("loss", "likelihood", "grad_norm", "bleu")
    found: dict[int, dict[str, Any]] = {0: {}}
    for line in thinned(run["measures"]["curve"], settings.steps, settings.steps):
        found[int(line["step"])] = {name: line[name] for name in names[:3]}
    for epoch in run["history"]:
        found.setdefault(epoch["step"], {})["bleu"] = epoch["measures"].get("bleu", "")
    return [
        {"step": step, **{name: found[step].get(name, "") for name in names}}
        for step in sorted(found)
    ]


def plot(results: Results, path: Path) -> None:
    """Draws the training loss and the validation BLEU of every run against its steps."""
    settings, losses, scores = results.settings, [], []
    for row in results.rows:
        title, gone = row["title"], row["status"] == "diverged"
        at, values = {"loss": [], "bleu": []}, {"loss": [], "bleu": []}
        for line in results.curves["curves.csv"].of(row):
            for name in at:
                if line[name]:
                    at[name].append(int(line["step"]))
                    values[name].append(float(line[name]))
        losses.append(
            Curve(title, at["loss"], moving_average(values["loss"], settings.window), gone)
        )
        scores.append(Curve(title, at["bleu"], values["bleu"], gone, marked=True))
    highest = max((score for curve in scores for score in curve.y), default=0)
    top = 102 if highest > 50 else 1.2 * max(highest, 1)
    sentences = "made sentences" if settings.dataset == "made" else settings.dataset
    average = f", mean of {settings.window} steps" if settings.window > 1 else ""
    curves_figure(
        [
            Panel("step", "training loss (nats a token)", losses, more_is_better=False, y_base=10),
            Panel("step", "BLEU, validation pairs", scores, y_limits=(0, top)),
        ],
        path,
        title=who_trains(
            results.rows,
            max(float(row["copy_bleu"]) for row in results.rows),
            guess="a copy of the source",
            column="bleu",
            least=LEAST,
            unit=" BLEU",
            where=f" with {results.rows[0]['layers']} layers",
        ),
        subtitle=(
            f"Transformers on {sentences}, {settings.d_model} channels, learning rate "
            f"{settings.learning_rate:g}, {settings.warmup_steps} steps of warm-up, batches of "
            f"{settings.max_tokens:,} tokens{average}. "
            f"Trains: no run diverged, and the test BLEU is at least halfway from "
            f"that of a copy of the source to the best, and {LEAST} points above it."
        ),
    )


def table(results: Results) -> str:
    """BLEU of every variant, the mean over its seeds, beside an untrained network and a copy."""
    cells = [["variant", "BLEU", "untrained", "copy of the source", "nats a token"]]
    for rows in grouped(results.rows, "variant").values():
        finished = [row for row in rows if row["status"] == "finished"]
        gone = len(rows) - len(finished)

        def mean(name: str, among: Sequence[Row], digits: int) -> str:
            values = [float(row[name]) for row in among]
            return f"{sum(values) / len(values):.{digits}f}" if values else "-"

        bleu = mean("bleu", finished, 1) + (f" ({gone} diverged)" if gone else "")
        others = (mean("untrained_bleu", rows, 1), mean("copy_bleu", rows, 1))
        cells.append([rows[0]["title"], bleu, *others, mean("test_likelihood", finished, 3)])
    signatures = dict.fromkeys(row["signature"] for row in results.rows)
    return "\n\n".join([text_table(cells), *signatures])


EXPERIMENT = Experiment(
    name="fixup_table3_translation",
    title="Fixup table 3",
    description="Redraw Fixup's table 3: translation with LayerNorm, with Fixup, with neither.",
    scales=SCALES, command=Command, check=check, load=load,
    grid=("variants", "seeds"),
    choices={"variants": tuple(VARIANTS)},
    key=("variant", "seed"),
    columns=(
        "variant", "title", "layers", "branches", "seed", "status", "steps", "tokens", "bleu",
        "signature", "untrained_bleu", "copy_bleu", "test_likelihood", "first_loss", "last_loss",
        "seconds", "seconds_per_step",
    ),
    measure=keep_vocabulary, points=points, setup=setup, probe=probe, finish=finish, row=row,
    lines={"curves.csv": Lines(("step", "loss", "likelihood", "grad_norm", "bleu"), lines)},
    describe=lambda result: f"BLEU {result['measures']['bleu']:.1f}",
    table=table, plot=plot,
    heading=lambda results: (
        f"Test BLEU of {results.settings.test_pairs or len(results.data.pairs.test.source):,} "
        "sentences:"
    ),
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
