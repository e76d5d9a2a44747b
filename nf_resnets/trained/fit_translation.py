"""A short training of a Transformer for the command: warm-up, then inverse square root."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import tyro

from nf_resnets import data, models, optim, schemes, training, translation
from nf_resnets.trained.file import Trained
from nf_resnets.trained.fit import mesh_for
from nf_resnets.trained.inputs import Sentences
from nf_resnets.trained.run import Watch, train_one


@dataclasses.dataclass(frozen=True)
class TranslationRecipe:
    """How a Transformer is made and trained; the size of a sentence or two, for a CPU."""

    layers: int = 2
    """Layers of the encoder, and of the decoder."""
    channels: int = 64
    """Channels between the layers; the feed-forward branches have twice as many inside."""
    heads: int = 4
    """Of every attention."""
    vocabulary: int = 200
    """Tokens, both languages together."""
    max_length: int = 64
    """Tokens of a sentence, at most; longer pairs are left out."""
    steps: int = 600
    """Updates."""
    max_tokens: int = 1_500
    """Tokens in a batch, padding counted."""
    learning_rate: Annotated[float, tyro.conf.arg(name="peak-lr")] = 3e-3
    """The rate at the end of the warm-up, a fifth of the steps; then it falls as 1/sqrt(step)."""
    optimizer: optim.Name = "adamw"
    """adamw, lion, muon or sgd; without weight decay in any case."""
    dropout: float = 0.0
    """At the end of every branch."""
    label_smoothing: float = 0.1
    """The fraction of the target that is spread over the vocabulary."""
    seed: int = 0
    """The weights and the order follow from it, below 2^32."""


def fit_translation(
    pairs: translation.PairSet,
    scheme: str,
    recipe: TranslationRecipe,
    *,
    dtype: models.Dtype = models.DTYPES[0],
    tested: int = 100,
    watch: Watch = Watch(),  # noqa: B008 (a frozen value)
) -> Trained:
    """As :func:`nf_resnets.trained.fit.fit`, but on sentence pairs, and with the vocabulary.

    Args:
      pairs: sentence pairs.
      scheme: the name of a scheme for Transformers.
      recipe: sizes and settings.
      dtype: of the network's computations.
      tested: how many test pairs are translated, for BLEU.
      watch: what receives the events of the training, and keeps it.

    Returns:
      The network after the last step; its notes have ``recipe``, ``test_bleu``,
      ``test_bleu_of_copies`` (of the sources, left as they are) and sacrebleu's ``signature``.
    """
    sentences = translation.Sentences.of(
        pairs, size=recipe.vocabulary, max_length=recipe.max_length
    )
    # First, since it fails if a package is missing.
    copied = sentences.bleu_of_copies(pairs.test, tested)
    settings = {
        "scheme": scheme, **dataclasses.asdict(recipe), "dataset": pairs.name, "dtype": dtype,
        "model": f"transformer-{recipe.layers}", "d_model": recipe.channels,
        "num_heads": recipe.heads, "d_ff": 2 * recipe.channels,
        "warmup_steps": max(1, recipe.steps // 5), "weight_decay": 0.0, "scalar_factor": None,
    }  # fmt: skip
    model, optimizer, how = translation.recipe(settings, sentences)
    start = training.Start(
        schemes.get(scheme), recipe.seed, {"learning_rate": recipe.learning_rate}
    )
    program = translation.token_program(model, sentences.train, optimizer, mesh_for(0), how, start)

    def finish(_: Any, plan: Any, state: training.TrainState) -> Mapping[str, Any]:
        score, signature = sentences.bleu(model, state.params, pairs.test, tested)
        return {"test_bleu": score, "signature": signature}

    plan = training.Plan(
        settings, f"Transformer, {scheme}", recipe.steps, program.steps_per_epoch,
        data=data.fingerprint(pairs),
    )  # fmt: skip
    state, row = train_one(program, start, plan, watch, finish=finish)
    notes = {
        "recipe": dataclasses.asdict(recipe),
        **{name: row["measures"][name] for name in ("test_bleu", "signature")},
        "test_bleu_of_copies": copied.score,
    }
    vocabulary = sentences.vocabulary
    inputs = Sentences(*pairs.languages, vocabulary.source, vocabulary.target)
    return Trained(model, {"params": state.params}, inputs, notes)
