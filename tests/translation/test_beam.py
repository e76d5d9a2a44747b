"""Beam search against a search by hand, a greedy loop, and itself in other batches.

Logits are float32 numbers of up to 60, each off by a few 1e-6, of which up to ten are added: seen
are differences of 2e-5, and 1e-5 of the value in scores of -70. Random parameters leave larger gaps
between the best sequences.
"""

import functools
import itertools

import jax
import numpy as np
import pytest

from nf_resnets.translation import BEGIN, END, PADDING, UNKNOWN, beam_search, length_penalty
from tests.translation.small import random_params, transformer

TOLERANCE = 2e-4
WORDS = (UNKNOWN, 4, 5)  # beside padding, begin and end, all that a tiny vocabulary has
TINY = transformer(vocab_size=6, source_vocab_size=9)
SOURCE = np.array([[4, 5, 6, END], [7, END, PADDING, PADDING], [8, 8, END, PADDING]], np.int32)
LENGTH = 4  # three words and the end


def words_of(tokens):
    tokens = tokens.tolist()
    end = tokens.index(END)
    assert not any(tokens[end + 1 :]), "something follows the end"
    return tuple(tokens[: end + 1])


@functools.cache
def next_log_probabilities(seed):
    """For each source, of every prefix of up to three words: the log-probability of each token."""
    params = random_params(TINY, seed, scale=1.5)
    prefixes = [words for n in range(LENGTH) for words in itertools.product(WORDS, repeat=n)]
    inputs = np.full((len(prefixes), LENGTH), PADDING, np.int32)
    for row, prefix in enumerate(prefixes):
        inputs[row, : len(prefix) + 1] = (BEGIN, *prefix)
    apply = jax.jit(TINY.apply)
    found = []
    for source in SOURCE:
        logits = apply({"params": params}, np.tile(source, (len(prefixes), 1)), inputs)
        log_p = np.asarray(jax.nn.log_softmax(logits), np.float64)
        found.append({prefix: log_p[row, len(prefix)] for row, prefix in enumerate(prefixes)})
    return found


def searched_by_hand(log_p, beam, alpha, limit):
    """The search as its docstring has it, hypothesis by hypothesis."""
    alive, ended = [(0.0, ())], []
    for position in range(limit):
        last = position + 1 == limit
        grown = sorted(
            (
                (total + log_p[prefix][token], (*prefix, token))
                for total, prefix in alive
                for token in ((END,) if last else (*WORDS, END))
            ),
            reverse=True,
        )
        for total, tokens in grown[:beam]:
            if tokens[-1] == END:
                ended.append((total / float(length_penalty(position + 1, alpha)), tokens))
        ended = sorted(ended, reverse=True)[:beam]
        alive = [pair for pair in grown[: 2 * beam] if pair[1][-1] != END][:beam]
        if len(ended) == beam or not alive:
            break
        if ended and ended[0][0] >= alive[0][0] / float(length_penalty(limit, alpha)):
            break
    return ended


@pytest.mark.parametrize(
    "beam", [2, *(pytest.param(beam, marks=pytest.mark.slow) for beam in (1, 3))]
)
@pytest.mark.parametrize("alpha", [0.0, 0.6, 3.0])
def test_the_search_ends_as_its_docstring_says(beam, alpha):
    """All hypotheses and scores, which are others where a search ends a step later or earlier."""
    limits = np.array([LENGTH, LENGTH - 1, LENGTH])
    for seed in range(6):
        tokens, scores = jax.device_get(
            beam_search(
                TINY,
                random_params(TINY, seed, scale=1.5),
                SOURCE,
                limits,
                length=LENGTH,
                beam=beam,
                alpha=alpha,
            )
        )
        for row, limit in enumerate(limits):
            expected = searched_by_hand(next_log_probabilities(seed)[row], beam, alpha, limit)
            found = [words_of(line) for line in tokens[row][np.isfinite(scores[row])]]
            assert found == [sequence for _, sequence in expected]
            np.testing.assert_allclose(
                scores[row][: len(found)], [score for score, _ in expected], TOLERANCE
            )


def test_limits_are_kept_and_a_sentence_does_not_notice_the_others():
    params = random_params(TINY, 1, scale=1.5)
    limits = np.array([1, 2, LENGTH])
    search = functools.partial(beam_search, TINY, params, length=LENGTH, beam=2)
    found, scores = jax.device_get(search(SOURCE, limits))
    for row, limit in enumerate(limits):
        assert len(words_of(found[row, 0])) <= limit
        # Among rows of padding, so that the shapes, and with them the rounding, are the same.
        alone = np.zeros_like(SOURCE)
        alone[row] = SOURCE[row]
        tokens, own = jax.device_get(search(alone, limits))
        assert (tokens[row] == found[row]).all() and (own[row] == scores[row]).all()
        assert not tokens[(row + 1) % 3].any()
    assert words_of(found[0, 0]) == (END,)
