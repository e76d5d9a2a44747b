"""BLEU by sacrebleu, with the signature that says which BLEU it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from nf_resnets.translation.vocabulary import as_sentences


class Bleu(NamedTuple):
    """A BLEU score.

    Attributes:
      score: 0 to 100.
      signature: sacrebleu's: tokenizer, smoothing, version.
    """

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
      ValueError: if there are none, not as many of both, or one is no text.
      ModuleNotFoundError: if sacrebleu, or what its tokenizer needs, is not installed.

    Source: Papineni et al., *BLEU*, ACL 2002; Post, *A Call for Clarity in Reporting BLEU Scores*,
    WMT 2018.

    Example:
      >>> score, signature = bleu(["The cat is on the mat."], ["The cat is on the mat."])
      >>> round(score), signature.split("|")[0]
      (100, 'nrefs:1')
    """
    judged = as_sentences(translations, "translations")
    lists = [as_sentences(each, "references") for each in references]
    if not judged or {len(judged)} != set(map(len, lists)):
        raise ValueError(
            f"{len(judged)} translations and {list(map(len, lists))} references found; expected as "
            "many of both, and at least one."
        )
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "BLEU needs sacrebleu: pip install 'nf_resnets[translation]'."
        ) from None
    try:
        metric = BLEU(trg_lang=language.replace("_", "-").partition("-")[0])
    except RuntimeError as error:
        raise ModuleNotFoundError(" ".join(str(error).split())) from None
    score = metric.corpus_score(judged, lists)
    return Bleu(float(score.score), str(metric.get_signature()))


__all__ = ["Bleu", "bleu"]
