r"""Fixup's table 3: a Transformer without LayerNorm translates as well as one with it.

Claim (section 4.3): with LayerNorm replaced by Fixup, training is "very stable and as fast as the
baseline model", and reaches BLEU 34.5 against 34.2 on IWSLT German-English, 29.3 against 29.3 on
WMT English-German. Others had found that removing LayerNorm "results in unstable training runs".

Setting, `--scale paper`: IWSLT'14, fairseq's `transformer_iwslt_de_en` (6 + 6 layers, 512 channels,
1,024 in the feed-forward branches, 4 heads), 10,000 joint byte pairs, batches of 4,000 tokens,
Adam(0.9, 0.98), rate 5e-4 with 4,000 steps of warm-up and the inverse square root after, dropout
0.5, label smoothing 0.1, weight decay 1e-4, 200,000 steps, beam 5. TensorFlow Datasets
does not have IWSLT'14: prepare it as `iwslt14_translate/de-en` with a `Translation` feature, or
name another set by `--dataset`. `--scale paper_wmt`: WMT English-German, tested on newstest2014,
the big Transformer of Ott et al. (2018), dropout 0.4, 32,000 joint byte pairs, beam 4 with
exponent 0.6; the size of a batch is not in the paper, 32,000 tokens here. Nobody here has run
either; they need GPUs. The published BLEU is of tokenised text, ours sacrebleu's of whole sentences
with the signature printed: the order is comparable, the second digit is not.

`--scale laptop` shows three things in one figure, with 18 layers (9 + 9, 45 branches) of 64
channels and the same recipe, shorter, in ten minutes: Fixup's loss ends where that of LayerNorm
before each branch does, 100 steps later at the most, and so does its BLEU; LayerNorm after the sum,
as published for 6 + 6 layers, has hardly begun at this depth and rate; without either, the
standard initialisation gives a loss of tens of thousands, which never comes down, and the run
diverges. These are ten minutes with sentences that the code makes. With `--data-dir` it takes
Multi30k German-English (`multi30k_translate/de-en`, pairs of at most 32 tokens, translated
greedily) from that folder, for about a quarter of an hour. It cannot show the published numbers.
`--scale smoke` trains a Transformer of 2 + 2 layers on made sentences for a minute or so: enough
for a BLEU that neither an untrained network nor a copy of the source has.

Tried otherwise, one seed: with `--layers 6`, the published 6 + 6 layers, LayerNorm after the sum
learns too, to a BLEU of 70.8 after 400 steps; Fixup has 99.8, LayerNorm before each branch 98.8,
and without either the test loss is still 830 nats a token, without having diverged. The depth of
9 + 9, at which three of these are further apart, was chosen for the figure.

Not as published: `laptop` and `smoke` train the scalars at a tenth of the rate, as Fixup's networks
for images have it; the paper does not speak of it in this place, and the authors' code for
translation trains them at the full one, as `paper` and `paper_wmt` do; that code makes 226,000
updates, the paper 200,000; WMT's training pairs are
those of 2014, where the paper says 2016; its weight decay is not known, and 0 here; the vocabulary
is SentencePiece's, of raw text, and joint, where the authors' has one table of merges and two
dictionaries; published runs keep the rate of 5e-4 at every size, the small networks here learn at a
higher one.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import tyro

from experiments import grid
from experiments.command import (
    first_words,
    keep_failures,
    last_words,
    open_folder,
    resolve,
    workers_of,
)
from experiments.curves import CurvesFile
from experiments.folder import Row
from experiments.table import text_table
from experiments.training_run import OnStep
from nf_resnets import models, optim, schemes, training, translation
from nf_resnets.plotting.curves import Curve, Panel, curves_figure, moving_average

VARIANTS = {
    "layernorm": ("LayerNorm", "layernorm_post"),
    "layernorm_pre": ("LayerNorm before each branch", "layernorm_pre"),
    "fixup": ("Fixup, no LayerNorm", "fixup"),
    "plain": ("no LayerNorm, standard initialisation", "plain"),
}
"""Of each variant its title and its scheme. The published LayerNorm stands after the sum; deep
networks are easier to train with one before each branch."""

CEILING = 10.0
"""The largest loss that the figure shows: an untrained network's may be tens of thousands."""

MULTI30K = "multi30k_translate/de-en"


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the table's rows depend on."""

    dataset: str
    variants: tuple[str, ...] = tuple(VARIANTS)
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
        translation.MADE,
        variants=("layernorm", "fixup"),
        test_pairs=100,
        vocabulary=200,
        num_layers=2,
        d_model=64,
        d_ff=128,
        max_length=64,
        max_tokens=1_500,
        steps=300,
        learning_rate=3e-3,
        warmup_steps=60,
        dropout=0.0,
        beam=1,
        looks=2,
        look_pairs=50,
        window=10,
    ),
    "laptop": Settings(
        translation.MADE,
        vocabulary=400,
        num_layers=9,
        d_model=64,
        d_ff=128,
        max_length=64,
        max_tokens=1_500,
        steps=400,
        learning_rate=2e-3,
        warmup_steps=100,
        dropout=0.0,
        beam=4,
        alpha=0.6,
        offset=5.0,
        looks=4,
        look_pairs=50,
        window=10,
    ),
    "paper": Settings("iwslt14_translate/de-en", weight_decay=1e-4, scalar_factor=1.0),
    "paper_wmt": Settings(
        "wmt14_translate/de-en",
        source="en",
        vocabulary=32_000,
        d_model=1024,
        num_heads=16,
        d_ff=4096,
        max_tokens=32_000,
        dropout=0.4,
        scalar_factor=1.0,
        beam=4,
        alpha=0.6,
    ),
}
ON_MULTI30K = {
    "dataset": MULTI30K,
    "vocabulary": 2_000,
    "max_length": 32,
    "test_pairs": 100,
    "beam": 1,
    "looks": 2,
}
"""What `laptop` changes where it has Multi30k: long sentences and beams take most of the time, to
be translated and to be compiled for every length."""

GRID = ("variants", "seeds")
KEY = ("variant", "seed")
COLUMNS = (
    "variant", "title", "layers", "branches", "seed", "status", "steps", "tokens", "bleu",
    "signature", "untrained_bleu", "copy_bleu", "test_likelihood", "first_loss", "last_loss",
    "seconds", "seconds_per_step",
)  # fmt: skip
CURVE_COLUMNS = (*KEY, "step", "loss", "likelihood", "grad_norm", "bleu")


@dataclasses.dataclass(frozen=True)
class Command:
    """Redraw Fixup's table 3: translation with LayerNorm, with Fixup instead, with neither."""

    scale: Literal["smoke", "laptop", "paper", "paper_wmt"] = "laptop"
    """smoke: a minute; laptop: minutes on two cores; paper: IWSLT as published; paper_wmt: WMT."""
    dataset: str = ""
    """A data set of tensorflow-datasets with its languages, such as wmt16_translate/de-en, or
    "made" for sentences that the code makes; by default that of the scale."""
    variants: tuple[str, ...] = ()
    """Some of layernorm, layernorm_pre, fixup, plain, with spaces between."""
    seeds: tuple[int, ...] = ()
    """Seeds, with spaces between; by default those of the scale."""
    steps: int = 0
    """Steps of each run; 0 for the scale's number."""
    layers: int = 0
    """Layers of the encoder, and of the decoder; 0 for the scale's number."""
    data_dir: str | None = None
    """Where tensorflow-datasets keeps its data; with it, laptop takes Multi30k from there."""
    out: Path | None = None
    """The results folder; by default runs/fixup_table3_translation-SCALE. Started again with the
    same folder, the command makes only what is missing."""
    workers: int = 0
    """Runs at a time; 0 for two on a CPU of two cores or more, else one."""


def settings_of(command: Command) -> Settings:
    """The scale's settings with what the command line changes, checked."""
    settings: Settings = resolve(command, SCALES, GRID)
    unknown = [name for name in settings.variants if name not in VARIANTS]
    if unknown:
        raise SystemExit(f"--variants {unknown[0]} found; expected some of {', '.join(VARIANTS)}.")
    if command.layers < 0:
        raise SystemExit(f"--layers {command.layers} found; expected at least 1.")
    if command.layers:
        settings = dataclasses.replace(settings, num_layers=command.layers)
    if command.dataset:
        settings = dataclasses.replace(settings, dataset=command.dataset)
        if command.scale == "laptop" and command.dataset != translation.MADE:
            settings = dataclasses.replace(settings, **{**ON_MULTI30K, "dataset": command.dataset})
    elif command.scale == "laptop" and command.data_dir is not None:
        settings = dataclasses.replace(settings, **ON_MULTI30K)
    return settings


def load_pairs(settings: Settings, data_dir: str | None) -> translation.PairSet:
    """Loads the sentence pairs, or ends with the sentence that says why not."""
    try:
        return translation.load_pairs(
            settings.dataset, data_dir, source=settings.source, limit=settings.train_pairs
        )
    except (ValueError, OSError, ImportError) as error:
        raise SystemExit(str(error)) from None


def make_vocabulary(settings: Settings, pairs: translation.PairSet) -> translation.Vocabulary:
    """Trains the vocabulary on the training pairs, or ends with one sentence."""
    try:
        return translation.train_vocabulary(
            pairs.train.source,
            pairs.train.target,
            size=settings.vocabulary,
            joint=settings.joint,
            byte_fallback=settings.byte_fallback,
        )
    except (ValueError, ImportError) as error:
        raise SystemExit(str(error)) from None


def keep_vocabulary(folder: Path, vocabulary: translation.Vocabulary) -> None:
    """Writes the SentencePiece models beside the rows, one file if both languages share it."""
    models_of = {"vocabulary": vocabulary.source}
    if not vocabulary.joint:
        models_of = {"source": vocabulary.source, "target": vocabulary.target}
    for name, content in models_of.items():
        new = folder / f"{name}.model.new"
        new.write_bytes(content)
        os.replace(new, folder / f"{name}.model")


@dataclasses.dataclass(frozen=True)
class Program:
    """What all runs of one variant share.

    Attributes:
      model: the network.
      mesh: the devices.
      optimizer: ``optimizer(hyper)`` gives the optax transformation.
      step: the training step.
      steps: steps of a run.
    """

    model: models.Transformer
    mesh: jax.sharding.Mesh
    optimizer: Any
    step: Any
    steps: int


def make_program(settings: Settings, vocabulary: translation.Vocabulary, variant: str) -> Program:
    """Builds what the runs of one variant need; everything is compiled at its first call."""
    _, scheme = VARIANTS[variant]
    model = models.Transformer(
        vocab_size=vocabulary.target_size,
        source_vocab_size=vocabulary.source_size,
        num_layers=settings.num_layers,
        d_model=settings.d_model,
        num_heads=settings.num_heads,
        d_ff=settings.d_ff,
        scheme=scheme,
        padding_id=translation.PADDING,
        # Room for a translation that is longer than its source.
        max_length=settings.max_length + translation.LONGER,
        dropout=settings.dropout,
    )

    def optimizer(hyper: dict[str, Any]) -> Any:
        rate = optim.inverse_sqrt(hyper["learning_rate"], settings.warmup_steps)
        return translation.adam(
            rate,
            weight_decay=settings.weight_decay,
            scheme=scheme,
            scalar_factor=settings.scalar_factor,
        )

    mesh = training.make_mesh()
    step = translation.make_train_step(
        model, optimizer, mesh, label_smoothing=settings.label_smoothing
    )
    return Program(model, mesh, optimizer, step, settings.steps)


def initial_params(model: models.Transformer, seed: int) -> Any:
    """One standard draw for every variant, and what the scheme makes of it."""
    # It runs once a run, for milliseconds: what counts is how long it takes to compile.
    on_cpu = jax.default_backend() == "cpu"
    quickly = {"xla_backend_optimization_level": 0} if on_cpu else None

    def drawn(key: jax.Array) -> Any:
        tokens = jnp.ones((1, 2), jnp.int32)
        params = model.init(key, tokens, tokens)["params"]
        return schemes.get(model.scheme).init(params, model.num_branches)

    return jax.jit(drawn, compiler_options=quickly)(jax.random.key(seed))


def bleu_of(
    settings: Settings,
    model: models.Transformer,
    params: Any,
    vocabulary: translation.Vocabulary,
    pairs: translation.Pairs,
    count: int | None,
) -> translation.Bleu:
    """BLEU on the first pairs of a split."""
    found = translation.translate(
        model,
        params,
        vocabulary,
        pairs.source[:count],
        beam=settings.beam,
        alpha=settings.alpha,
        offset=settings.offset,
        too_long="cut",
    )
    return translation.bleu(found, pairs.target[:count])


def run(
    settings: Settings,
    pairs: translation.PairSet,
    vocabulary: translation.Vocabulary,
    corpora: tuple[translation.Corpus, translation.Corpus],
    program: Program,
    point: grid.Point,
    curves: CurvesFile,
    on_step: OnStep,
) -> Row:
    """Trains one network, looks at its BLEU on the way, tests it; keeps its curve."""
    start = time.perf_counter()
    variant, seed = point.key["variant"], point.key["seed"]
    model = program.model
    state = training.create_state(
        initial_params(model, seed),
        program.optimizer,
        {"learning_rate": settings.learning_rate},
        seed=seed,
    )
    times: list[float] = []

    def tick(made: int, metrics: dict[str, float]) -> None:
        times.append(time.perf_counter())
        on_step(made, metrics)

    def look(params: Any) -> float:
        validation = pairs.validation
        return bleu_of(settings, model, params, vocabulary, validation, settings.look_pairs).score

    untrained = bleu_of(settings, model, state.params, vocabulary, pairs.test, settings.test_pairs)
    status, curve, seen = "finished", [], {0: look(state.params)}
    stops = sorted({settings.steps * turn // settings.looks for turn in range(1, settings.looks)})
    for stop in [*(stop for stop in stops if stop), settings.steps]:
        part = translation.train(
            program.step,
            state,
            corpora[0],
            program.mesh,
            num_steps=stop,
            max_tokens=settings.max_tokens,
            on_step=tick,
        )
        status, state = part.status, part.state
        curve += part.curve
        if status != "finished":
            break
        seen[stop] = look(jax.device_put(jax.device_get(state.params)))

    score, likelihood, signature = math.nan, math.nan, untrained.signature
    if status == "finished":
        params = jax.device_put(jax.device_get(state.params))
        score, signature = bleu_of(
            settings, model, params, vocabulary, pairs.test, settings.test_pairs
        )
        likelihood = translation.mean_likelihood(model, params, corpora[1])
    curves.put(
        point.key,
        [
            {"step": step, "bleu": seen.get(step, ""), **_numbers(metrics)}
            for step, metrics in enumerate([{}, *curve])
        ],
    )
    copied = translation.bleu(
        pairs.test.source[: settings.test_pairs], pairs.test.target[: settings.test_pairs]
    )
    gaps = sorted(later - earlier for earlier, later in zip(times, times[1:], strict=False))
    return {
        "variant": variant,
        "title": VARIANTS[variant][0],
        "layers": sum(model.depths),
        "branches": model.num_branches,
        "seed": seed,
        "status": status,
        "steps": len(curve),
        "tokens": int(sum(metrics["tokens"] for metrics in curve)),
        "bleu": round(score, 2),
        "signature": signature,
        "untrained_bleu": round(untrained.score, 2),
        "copy_bleu": round(copied.score, 2),
        "test_likelihood": likelihood,
        "first_loss": curve[0]["loss"],
        "last_loss": curve[-1]["loss"],
        "seconds": round(time.perf_counter() - start, 2),
        # The median: some steps compile, and between some there is a look.
        "seconds_per_step": round(gaps[len(gaps) // 2], 5) if gaps else math.nan,
    }


def _numbers(metrics: dict[str, float]) -> dict[str, Any]:
    return {name: metrics.get(name, "") for name in ("loss", "likelihood", "grad_norm")}


def points(settings: Settings) -> list[grid.Point]:
    """The runs of the table."""
    return [
        grid.Point(
            key={"variant": variant, "seed": seed},
            label=f"{VARIANTS[variant][0]}, seed {seed}",
            program=variant,
            cost=float(settings.steps),
        )
        for variant in settings.variants
        for seed in settings.seeds
    ]


def describe(row: Row) -> str:
    """What came of a run, in a few words."""
    if row["status"] == "diverged":
        return f"diverged at step {row['steps']}, {row['seconds']:.0f} s"
    return f"BLEU {row['bleu']:.1f}, loss {row['last_loss']:.2f}, {row['seconds']:.0f} s"


def rows_of(rows: Sequence[Row], settings: Settings) -> dict[str, list[Row]]:
    """Those rows of a folder that the settings ask for, of each variant that has some."""
    seeds = {str(seed) for seed in settings.seeds}
    found = {
        name: [row for row in rows if row["variant"] == name and row["seed"] in seeds]
        for name in settings.variants
    }
    return {name: of_variant for name, of_variant in found.items() if of_variant}


def plot(rows: dict[str, list[Row]], curves: CurvesFile, settings: Settings, path: Path) -> None:
    """Draws the training loss and the validation BLEU of every run against its steps."""
    losses, scores = [], []
    for of_variant in rows.values():
        for row in of_variant:
            lines = curves.of(row)
            steps = [line for line in lines if line["loss"]]
            gone = row["status"] == "diverged"
            losses.append(
                Curve(
                    row["title"],
                    [int(line["step"]) for line in steps],
                    moving_average(
                        [min(float(line["loss"]), CEILING) for line in steps], settings.window
                    ),
                    diverged=gone,
                )
            )
            looks = [line for line in lines if line["bleu"]]
            scores.append(
                Curve(
                    row["title"],
                    [int(line["step"]) for line in looks],
                    [float(line["bleu"]) for line in looks],
                    diverged=gone,
                    marked=True,
                )
            )
    some = next(iter(rows.values()))[0]
    average = f", mean of {settings.window} steps" if settings.window > 1 else ""
    curves_figure(
        [
            Panel("step", "training loss (nats a token)", losses),
            Panel("step", "BLEU, validation pairs", scores, y_limits=(0, 102)),
        ],
        path,
        title=f"A Transformer of {some['layers']} layers, with LayerNorm and without",
        subtitle=(
            f"{settings.dataset}, {settings.d_model} channels, learning rate "
            f"{settings.learning_rate:g}, {settings.warmup_steps} steps of warm-up, batches of "
            f"{settings.max_tokens:,} tokens{average}, losses cut at {CEILING:g}"
        ),
    )


def table(rows: dict[str, list[Row]]) -> str:
    """BLEU of every variant, the mean over its seeds, beside an untrained network and a copy."""
    cells = [["variant", "BLEU", "untrained", "copy of the source", "nats a token"]]
    for of_variant in rows.values():
        finished = [row for row in of_variant if row["status"] == "finished"]
        gone = len(of_variant) - len(finished)

        def mean(name: str, among: list[Row], digits: int) -> str:
            values = [float(row[name]) for row in among]
            return f"{sum(values) / len(values):.{digits}f}" if values else "-"

        score = mean("bleu", finished, 1) + (f" ({gone} diverged)" if gone else "")
        cells.append(
            [
                of_variant[0]["title"],
                score,
                mean("untrained_bleu", of_variant, 1),
                mean("copy_bleu", of_variant, 1),
                mean("test_likelihood", finished, 3),
            ]
        )
    return text_table(cells)


def main(command: Command) -> int:
    """Makes what is missing, prints the table, draws the figure; returns the exit code."""
    grid.stop_at_once()
    settings = settings_of(command)
    pairs = load_pairs(settings, command.data_dir)
    vocabulary = make_vocabulary(settings, pairs)
    corpora = tuple(
        translation.encode(*split, vocabulary, max_length=settings.max_length)
        for split in (pairs.train, pairs.test)
    )
    folder = open_folder(
        "fixup_table3_translation", command, settings, grid=GRID, columns=COLUMNS, key=KEY
    )
    keep_vocabulary(folder.path, vocabulary)
    curves = CurvesFile(folder, columns=CURVE_COLUMNS, key=KEY)
    runs = f"{len(settings.variants)} variants x {len(settings.seeds)} seeds"
    first_words("Fixup table 3", command, settings.dataset, runs, folder)
    print(
        f"{len(corpora[0].source):,} training pairs {' to '.join(pairs.languages)}, "
        f"{vocabulary.target_size:,} tokens; {corpora[0].dropped:,} pairs left out for having no "
        f"words or more than {settings.max_length} tokens",
        flush=True,
    )
    start = time.monotonic()
    failures = grid.make_rows(
        points(settings),
        folder,
        workers=workers_of(command),
        make_program=lambda point: make_program(settings, vocabulary, point.key["variant"]),
        run=lambda program, point, on_step: run(
            settings, pairs, vocabulary, corpora, program, point, curves, on_step
        ),
        tell=describe,
    )
    keep_failures(folder, failures)

    rows = rows_of(folder.rows, settings)
    if rows:
        text = table(rows)
        signature = next(iter(rows.values()))[0]["signature"]
        tested = settings.test_pairs or len(pairs.test.source)
        print(f"\nTest BLEU of {tested:,} sentences, {signature}:\n\n{text}")
        folder.write_text("table.txt", f"{text}\n\n{signature}\n")
        folder.draw("figure.png", lambda path: plot(rows, curves, settings, path))
    return last_words(folder, failures, start)


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Command)))
