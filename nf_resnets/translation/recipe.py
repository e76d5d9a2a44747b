"""Sentences as tokens, and a Transformer that is trained on them by Adam, from settings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import optax

from nf_resnets import models, optim
from nf_resnets.training.state import OptimizerFn
from nf_resnets.translation.batches import Corpus, encode
from nf_resnets.translation.pairs import Pairs, PairSet
from nf_resnets.translation.program import TokenTraining
from nf_resnets.translation.translate import LONGER, Bleu, bleu, translate
from nf_resnets.translation.vocabulary import PADDING, Vocabulary, train_vocabulary


def adam(learning_rate: Any, *, b2: float = 0.98, **options: Any) -> optax.GradientTransformation:
    r"""Adam with Vaswani et al.'s ``b2``, in the parameter groups of a scheme.

    The slow leaves of Fixup learn at a tenth of the rate, as in its image networks. The paper gives
    no factor for its Transformer, and its code has none: ``scalar_factor=1.0``. The arguments are
    those of :func:`nf_resnets.optim.adamw`.

    Source: Vaswani et al., *Attention Is All You Need*, NeurIPS 2017, section 5.3; Zhang, Dauphin,
    Ma, ICLR 2019, section 4.3.
    """
    return optim.adamw(learning_rate, b2=b2, **options)


OPTIMIZERS = {**optim.OPTIMIZERS, "adamw": (adam, "adam")}
"""As :data:`nf_resnets.optim.OPTIMIZERS`, with Vaswani et al.'s ``b2``."""


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Sentence pairs, the vocabulary of those for training, and two splits as tokens."""

    pairs: PairSet
    vocabulary: Vocabulary
    train: Corpus
    test: Corpus

    @classmethod
    def of(cls, pairs: PairSet, *, size: int, max_length: int, joint: bool = True) -> Sentences:
        """Trains a vocabulary of so many tokens on the pairs, and encodes them."""
        vocabulary = train_vocabulary(
            pairs.train.source, pairs.train.target, size=size, joint=joint
        )
        train, test = (
            encode(*split, vocabulary, max_length=max_length) for split in (pairs.train, pairs.test)
        )
        return cls(pairs, vocabulary, train, test)

    def bleu(
        self, model: Any, params: Any, pairs: Pairs, count: int | None = None, **search: Any
    ) -> Bleu:
        """BLEU on the first pairs of a split, or on all; ``search`` is as of ``translate``."""
        sources, targets = pairs.source[:count], pairs.target[:count]
        texts = translate(model, params, self.vocabulary, sources, too_long="cut", **search)
        return bleu(texts, targets, language=self.pairs.languages[1])

    def bleu_of_copies(self, pairs: Pairs, count: int | None = None) -> Bleu:
        """BLEU of the sources, left as they are."""
        return bleu(pairs.source[:count], pairs.target[:count], language=self.pairs.languages[1])


def recipe(
    settings: Mapping[str, Any], sentences: Sentences
) -> tuple[models.Transformer, OptimizerFn, TokenTraining]:
    """Network, optimizer and steps.

    Args:
      settings: ``model`` (``transformer-6``), ``scheme``, ``d_model``, ``num_heads``, ``d_ff``,
        ``dropout``, ``dtype``, ``max_length``; ``optimizer``, ``warmup_steps`` before the inverse
        square root, ``weight_decay``, ``scalar_factor`` (None for the scheme's); ``max_tokens``,
        ``steps``, ``label_smoothing``.
      sentences: what it is trained on.
    """
    model = models.make(
        settings["model"], settings["scheme"],
        vocab_size=sentences.vocabulary.target_size,
        source_vocab_size=sentences.vocabulary.source_size,
        padding_id=PADDING,
        # Room for a translation that is longer than its source.
        max_length=settings["max_length"] + LONGER,
        dtype=models.dtype_of(settings["dtype"]),
        **{name: settings[name] for name in ("d_model", "num_heads", "d_ff", "dropout")},
    )  # fmt: skip

    def optimizer(hyper: Mapping[str, Any]) -> Any:
        rule, _ = OPTIMIZERS[settings["optimizer"]]
        return rule(
            optim.inverse_sqrt(hyper["learning_rate"], settings["warmup_steps"]),
            weight_decay=settings["weight_decay"],
            scheme=model.scheme,
            scalar_factor=settings["scalar_factor"],
        )

    how = TokenTraining(settings["max_tokens"], settings["steps"], settings["label_smoothing"])
    return model, optimizer, how
