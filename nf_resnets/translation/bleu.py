"""BLEU by sacrebleu, with the signature that says which BLEU it is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from nf_resnets.translation.vocabulary import as_sentences


class Bleu(NamedTuple):
    """A BLEU score.

    Attributes:
      score: 0 to 100.
      signature: sacrebleu's, which says how it was computed and by which version.
    """

    score: float
    signature: str


def bleu(
    translations: Iterable[str],
    *references: Iterable[str],
    tokenize: str | None = None,
    language: str = "",
) -> Bleu:
    """The case-sensitive, detokenised corpus BLEU of translations.

    Args:
      translations: what is judged.
      *references: one for each translation; several such lists if each has several references.
      tokenize: one of sacrebleu's tokenizers, of which it downloads the ``spm`` and ``flores``
        ones; None for that of the language.
      language: the code of the translations' language. Chinese (``zh``), Japanese and Korean have
        tokenizers of their own; all others have ``13a``.

    Raises:
      ValueError: if there are none, not as many of both, one is no text, or ``tokenize`` no
        tokenizer of sacrebleu's.
      ModuleNotFoundError: if sacrebleu, or what its tokenizer needs, is not installed.

    Source: Papineni et al., *BLEU*, ACL 2002; Post, *A Call for Clarity in Reporting BLEU Scores*,
    WMT 2018.

    Example:
      >>> score, signature = bleu(["The cat is on the mat."], ["The cat is on the mat."])
      >>> round(score), signature.split("|")[0]
      (100, 'nrefs:1')
      >>> round(bleu(["今天天气很好"], ["今天天气不好"], ["今天天气很好"], language="zh").score)
      100
    """
    judged = as_sentences(translations, "translations")
    right = [as_sentences(each, "references") for each in references]
    counts = [len(each) for each in right]
    if not judged or not right or {len(judged)} != set(counts):
        raise ValueError(
            f"{len(judged)} translations and {' and '.join(map(str, counts)) or 'no'} references "
            "found; expected as many of both, and at least one."
        )
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "BLEU needs sacrebleu: pip install 'nf_resnets[translation]'."
        ) from None
    if tokenize is not None and tokenize not in BLEU.TOKENIZERS:
        raise ValueError(
            f"tokenize={tokenize!r} found; expected one of {', '.join(BLEU.TOKENIZERS)}."
        )
    try:
        metric = BLEU(tokenize=tokenize, trg_lang=language.replace("_", "-").partition("-")[0])
    except RuntimeError as error:
        raise ModuleNotFoundError(" ".join(str(error).split())) from None
    score = metric.corpus_score(judged, right)
    return Bleu(float(score.score), str(metric.get_signature()))


__all__ = ["Bleu", "bleu"]
