"""BLEU by sacrebleu, with the signature that says which BLEU it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nf_resnets.translation.vocabulary import check_sentences


class Bleu(NamedTuple):
    """A BLEU score.

    Attributes:
      score: 0 to 100.
      signature: sacrebleu's, which says how it was computed and by which version.
    """

    score: float
    signature: str


def bleu(translations: Sequence[str], references: Sequence[str]) -> Bleu:
    """The case-sensitive, detokenised corpus BLEU of translations.

    Args:
      translations: what is judged.
      references: one for each.

    Raises:
      ValueError: if there are none, not as many of both, or one is a string.
      ModuleNotFoundError: if sacrebleu is not installed.

    Source: Papineni et al., *BLEU*, ACL 2002; Post, *A Call for Clarity in Reporting BLEU Scores*,
    WMT 2018.

    Example:
      >>> score, signature = bleu(["The cat is on the mat."], ["The cat is on the mat."])
      >>> round(score), signature.split("|")[0]
      (100, 'nrefs:1')
    """
    for sentences in (translations, references):
        check_sentences(sentences)
    if not translations or len(translations) != len(references):
        raise ValueError(
            f"{len(translations)} translations and {len(references)} references found; expected as "
            "many of both, and at least one."
        )
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "BLEU needs sacrebleu: pip install 'nf_resnets[translation]'."
        ) from None
    metric = BLEU()
    score = metric.corpus_score(list(translations), [list(references)])
    return Bleu(float(score.score), str(metric.get_signature()))


__all__ = ["Bleu", "bleu"]
