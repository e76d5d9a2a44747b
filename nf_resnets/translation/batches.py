"""Batches of sentences of similar length, in a few shapes and an order that the seed decides."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets.data import epoch_order, seed_key
from nf_resnets.translation.vocabulary import BEGIN, PADDING, Vocabulary

WIDTHS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""The widths of batches, in tokens: a step is compiled once for each that occurs. They are at
most a factor of 1.5 apart, so that a third of a row is padding at most, of 8 to 1,024 tokens."""

# The order of epoch e uses fold_in(seed_key, e); that of its batches must be another draw.
_BATCHES = 0xBA7C_0000


def fitting_width(length: int, most: int) -> int:
    """The least width into which a sentence fits, at most that of the longest there may be."""
    return next((width for width in WIDTHS if length <= width < most), most)


def padded(sentences: Sequence[Sequence[int]], rows: int, width: int) -> np.ndarray:
    """Fills sentences up with padding to an array int32 ``[rows, width]``."""
    array = np.full((rows, width), PADDING, np.int32)
    for row, sentence in enumerate(sentences):
        array[row, : len(sentence)] = sentence
    return array


@dataclasses.dataclass(frozen=True, eq=False)
class Corpus:
    """Sentence pairs as tokens, each sentence ended by ``END``.

    None has more than ``max_length`` tokens; ``dropped`` pairs were left out, being longer or
    without words.
    """

    source: tuple[tuple[int, ...], ...]
    target: tuple[tuple[int, ...], ...]
    max_length: int
    dropped: int = 0

    @property
    def widths(self) -> np.ndarray:
        """Of each pair, the width of the batches that it is in: int [N]."""
        pairs = zip(self.source, self.target, strict=True)
        return np.array([fitting_width(max(map(len, pair)), self.max_length) for pair in pairs])


def encode(
    source: Sequence[str], target: Sequence[str], vocabulary: Vocabulary, *, max_length: int
) -> Corpus:
    """Turns sentence pairs into tokens; pairs that are too long or lack words are left out.

    Args:
      source: sentences.
      target: their translations.
      vocabulary: the tokens.
      max_length: the most tokens, with the end's, that a sentence may have.

    Raises:
      ValueError: if there are not as many of both, or no pair is left.
    """
    pairs = zip(vocabulary.encode_source(source), vocabulary.encode_target(target), strict=True)
    kept = [
        (tuple(one), tuple(other))
        for one, other in pairs
        if 1 < len(one) <= max_length and 1 < len(other) <= max_length
    ]
    if not kept:
        raise ValueError(
            f"none of {len(source)} sentence pairs has words on both sides and at most "
            f"max_length={max_length} tokens; expected some."
        )
    sources, targets = zip(*kept, strict=True)
    return Corpus(sources, targets, max_length, dropped=len(source) - len(kept))


class TokenBatch(NamedTuple):
    """A batch: its width in tokens, and which pairs it holds, int [rows], -1 a row of padding."""

    width: int
    pairs: np.ndarray


def batch_shapes(corpus: Corpus, *, max_tokens: int) -> dict[int, int]:
    """The shapes ``{width: rows}`` of all batches of a corpus.

    ``rows * width`` is at most ``max_tokens``, as fairseq counts them (the longer of both sides,
    padding included), but there is at least one row.
    """
    widths = sorted(set(corpus.widths.tolist()))
    return {width: max(1, max_tokens // width) for width in widths}


def epoch_batches(
    corpus: Corpus, seed: int, epoch: int, shapes: dict[int, int]
) -> list[TokenBatch]:
    """The batches of an epoch in their order, a pure function of ``(seed, epoch)``.

    Every pair is in one batch. Which pairs of a width share a batch, and the order of the batches,
    change with the epoch; how many batches there are does not.
    """
    order = np.asarray(epoch_order(seed, epoch, len(corpus.source)))
    widths = corpus.widths[order]
    batches = []
    for width, rows in shapes.items():
        pairs = order[widths == width]
        lines = -(-len(pairs) // rows)
        filled = np.full(lines * rows, -1, order.dtype)
        filled[: len(pairs)] = pairs
        batches += [TokenBatch(width, line) for line in filled.reshape(lines, rows)]
    key = jax.random.fold_in(jax.random.fold_in(seed_key(seed), _BATCHES), epoch)
    turns = jax.random.permutation(key, jnp.arange(len(batches)))
    return [batches[turn] for turn in np.asarray(turns)]


def batch_of(corpus: Corpus, batch: TokenBatch, *, devices: int = 1) -> dict[str, np.ndarray]:
    """The arrays of a batch, with rows of padding up to a multiple of the devices.

    Returns:
      int32 ``[rows, width]`` each: ``source``; ``inputs``, the target after ``BEGIN``, which the
      decoder reads; ``targets``, the target with its ``END``, which it is to predict.
    """
    rows = -(-len(batch.pairs) // devices) * devices
    pairs = [pair for pair in batch.pairs if pair >= 0]
    targets = [corpus.target[pair] for pair in pairs]
    return {
        "source": padded([corpus.source[pair] for pair in pairs], rows, batch.width),
        "inputs": padded([[BEGIN, *target[:-1]] for target in targets], rows, batch.width),
        "targets": padded(targets, rows, batch.width),
    }
