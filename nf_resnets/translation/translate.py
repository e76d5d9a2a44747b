"""From sentences to sentences, by a trained Transformer, and how good these are by BLEU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from nf_resnets import models
from nf_resnets.machine import needed
from nf_resnets.translation.batches import fitting_width, padded
from nf_resnets.translation.beam import beam_search
from nf_resnets.translation.vocabulary import Vocabulary, as_sentences

LONGER = 50
"""By how many tokens a translation may be longer than its source: Vaswani et al., section 6.1."""


def translate(
    model: models.Transformer,
    params: Any,
    vocabulary: Vocabulary,
    sentences: Sequence[str],
    *,
    beam: int = 4,
    alpha: float = 0.6,
    offset: float = 5.0,
    max_tokens: int = 4096,
    too_long: Literal["refuse", "cut"] = "refuse",
) -> list[str]:
    """Translates sentences by beam search.

    Sentences of similar length share a batch; a translation does not depend on the others.
    A sentence without words gives an empty one. Characters that the vocabulary does not have are
    read as its unknown token.

    Args:
      model: the network, as it was trained.
      params: its parameters.
      vocabulary: the tokens it was trained with.
      sentences: in the source's language, any number of them.
      beam: ``K``, hypotheses that are followed; 1 takes the likeliest token at every step.
      alpha: exponent of the length penalty; see :func:`beam_search`.
      offset: of the length penalty; 5 is Wu et al.'s, 0 fairseq's.
      max_tokens: the most tokens, padding and all hypotheses counted, in a batch.
      too_long: whether a sentence of more tokens than ``model.max_length`` is refused or cut off.

    Raises:
      ValueError: if a sentence is too long, or the vocabulary's sizes are not the model's.

    Source: Vaswani et al., *Attention Is All You Need*, NeurIPS 2017, section 6.1.
    """
    sentences = as_sentences(sentences)
    sizes = (model.source_vocab_size or model.vocab_size, model.vocab_size)
    if (vocabulary.source_size, vocabulary.target_size) != sizes:
        raise ValueError(
            f"a vocabulary of {vocabulary.source_size:,} source and {vocabulary.target_size:,} "
            f"target tokens found; expected {sizes[0]:,} and {sizes[1]:,}, those of the model."
        )
    if beam < 1:
        raise ValueError(f"beam={beam} found; expected 1 or more.")
    encoded = vocabulary.encode_source(sentences)
    for number, (sentence, tokens) in enumerate(zip(sentences, encoded, strict=True), start=1):
        if len(tokens) > model.max_length:
            if too_long == "refuse":
                raise ValueError(
                    f"sentence {number} ({sentence[:30]!r}...) has {len(tokens):,} tokens; "
                    f"expected at most max_length={model.max_length:,}."
                )
            del tokens[model.max_length - 1 : -1]
    translations = [""] * len(encoded)
    widths: dict[int, list[int]] = {}
    for index, tokens in enumerate(encoded):
        if len(tokens) > 1:  # more than the end
            widths.setdefault(fitting_width(len(tokens), model.max_length), []).append(index)
    for width, indices in widths.items():
        longest = min(width + LONGER, model.max_length)
        # A power of two, so that any number of sentences is computed in one of a few shapes.
        most = max(1, max_tokens // (beam * longest))
        rows = min(1 << (most.bit_length() - 1), 1 << (len(indices) - 1).bit_length())
        for start in range(0, len(indices), rows):
            part = indices[start : start + rows]
            source = padded([encoded[index] for index in part], rows, width)
            limits = np.minimum((source != 0).sum(axis=1) + LONGER, longest).astype(np.int32)
            best = beam_search(
                model, params, source, limits,
                length=longest, beam=beam, alpha=alpha, offset=offset,
            )  # fmt: skip
            tokens, scores = jax.device_get(best)
            if not np.isfinite(scores[: len(part), 0]).all():
                raise ValueError("the network's outputs are NaN; expected finite weights.")
            for row, index in enumerate(part):
                translations[index] = vocabulary.decode(tokens[row, 0])
    return translations


class Bleu(NamedTuple):
    """A BLEU score, 0 to 100, and sacrebleu's signature: tokenizer, smoothing, version."""

    score: float
    signature: str


def bleu(translations: Iterable[str], *references: Iterable[str], language: str = "") -> Bleu:
    """The case-sensitive, detokenised corpus BLEU of translations.

    Args:
      translations: the sentences that are judged.
      *references: one for each translation; several such lists if each has several references.
      language: the code of the translations' language. Chinese (``zh``), Japanese and Korean have
        tokenizers of their own; all others have ``13a``.

    Raises:
      ValueError: if there are none, or not as many of both.
      ModuleNotFoundError: if sacrebleu is not installed.

    Source: Papineni et al., *BLEU*, ACL 2002; Post, *A Call for Clarity in Reporting BLEU Scores*,
    WMT 2018.

    Example:
      >>> score, signature = bleu(["The cat is on the mat."], ["The cat is on the mat."])
      >>> round(score), signature.split("|")[0]
      (100, 'nrefs:1')
    """
    judged, *lists = map(as_sentences, (translations, *references))
    if not judged or {len(judged)} != set(map(len, lists)):
        raise ValueError(
            f"{len(judged)} translations and {list(map(len, lists))} references found; expected as "
            "many of both, and at least one."
        )
    metric = needed("sacrebleu.metrics.bleu", "translation").BLEU(
        trg_lang=language.replace("_", "-").partition("-")[0]
    )
    score = metric.corpus_score(judged, lists)
    return Bleu(float(score.score), str(metric.get_signature()))
