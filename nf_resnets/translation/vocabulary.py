"""The vocabulary: sentences to tokens and back, by SentencePiece models trained on the sentences.

SentencePiece is imported by the call that needs it, since it comes with an extra.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from nf_resnets.machine import needed

PADDING, BEGIN, END, UNKNOWN = 0, 1, 2, 3
"""The tokens that are no part of a sentence: what fills up short ones, what stands before and after
each, and what stands for anything that the vocabulary does not have."""

_LONGEST = 1 << 30  # bytes of a training sentence, SentencePiece's most; it skips longer ones
_RESERVED = "\u2585"  # SentencePiece skips a training sentence that has it


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The tokens of both languages, as two serialised SentencePiece models, or twice the same.

    Raises:
      ValueError: if bytes are no SentencePiece model, or one in which the tokens 0 to 3 are not
        padding, begin, end and unknown.
    """

    source: bytes
    target: bytes

    def __post_init__(self) -> None:
        _processor(self.source), _processor(self.target)

    @property
    def source_size(self) -> int:
        """How many tokens the source has."""
        return int(_processor(self.source).vocab_size())

    @property
    def target_size(self) -> int:
        """How many tokens the target has."""
        return int(_processor(self.target).vocab_size())

    def encode_source(self, sentences: Iterable[str]) -> list[list[int]]:
        """The tokens of each sentence, followed by ``END``."""
        return _encoded(self.source, sentences)

    def encode_target(self, sentences: Iterable[str]) -> list[list[int]]:
        """The tokens of each sentence, followed by ``END``."""
        return _encoded(self.target, sentences)

    def decode(self, tokens: Iterable[int]) -> str:
        """The sentence of target tokens; what follows the first ``END`` is no part of it."""
        sentence = itertools.takewhile(lambda token: token != END, map(int, tokens))
        return str(_processor(self.target).decode(list(sentence)))


def as_sentences(sentences: Iterable[str]) -> list[str]:
    """Makes a list of sentences; one string, whose letters would be taken for them, is refused."""
    if isinstance(sentences, str):
        raise ValueError("one string found; expected a list of sentences.")
    return list(sentences)


def _encoded(model: bytes, sentences: Iterable[str]) -> list[list[int]]:
    return [[*tokens, END] for tokens in _processor(model).encode(as_sentences(sentences))]


def train_vocabulary(
    source: Iterable[str], target: Iterable[str], *, size: int, joint: bool = True
) -> Vocabulary:
    """Trains byte-pair encodings on the sentences of a training split, as published.

    Args:
      source: sentences of the source.
      target: sentences of the target.
      size: how many tokens, those for padding, begin, end and unknown included; of each language,
        unless ``joint``.
      joint: whether both languages share their tokens, as in the published recipes.

    Raises:
      ValueError: if the sentences are empty, or too few for a vocabulary of that size.

    Source: Sennrich, Haddow, Birch, *Neural Machine Translation of Rare Words with Subword Units*,
    ACL 2016; Kudo, Richardson, *SentencePiece*, EMNLP 2018.
    """
    source, target = as_sentences(source), as_sentences(target)
    if joint:
        model = _train([*source, *target], size)
        return Vocabulary(model, model)
    return Vocabulary(_train(source, size), _train(target, size))


def _train(sentences: Sequence[str], size: int) -> bytes:
    if not any(sentence.strip() for sentence in sentences):
        raise ValueError(f"{len(sentences)} sentences without a word found; expected some words.")
    model = io.BytesIO()
    try:
        needed("sentencepiece", "translation").SentencePieceTrainer.train(
            sentence_iterator=(each.replace(_RESERVED, " ") for each in sentences),
            max_sentence_length=_LONGEST, model_writer=model, vocab_size=size, model_type="bpe",
            # No character of the training sentences is unknown, and none is drawn by chance.
            character_coverage=1.0, input_sentence_size=0,
            # With several threads the order of the sums, and with it a tie, may change.
            num_threads=1,
            pad_id=PADDING, bos_id=BEGIN, eos_id=END, unk_id=UNKNOWN, minloglevel=2,
        )  # fmt: skip
    except RuntimeError as error:
        raise ValueError(
            f"no vocabulary of size={size} can be made of {len(sentences)} sentences ({error})."
        ) from None
    return model.getvalue()


@functools.lru_cache(maxsize=8)
def _processor(model: bytes) -> Any:
    processor = needed("sentencepiece", "translation").SentencePieceProcessor()
    try:
        if not model:  # SentencePiece would complain when it is asked for something
            raise RuntimeError
        processor.LoadFromSerializedProto(model)
    except (RuntimeError, TypeError):
        raise ValueError(
            f"{len(model):,} bytes are no SentencePiece model; expected one as train_vocabulary "
            "makes it."
        ) from None
    tokens = (processor.pad_id(), processor.bos_id(), processor.eos_id(), processor.unk_id())
    if tokens != (PADDING, BEGIN, END, UNKNOWN):
        raise ValueError(
            f"padding, begin, end and unknown found at {tokens}; expected "
            f"{(PADDING, BEGIN, END, UNKNOWN)}."
        )
    return processor
