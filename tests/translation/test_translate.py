"""From sentences to sentences: whatever they are, in order, and not by their neighbours."""

import functools

import numpy as np
import pytest

from nf_resnets import translation
from nf_resnets.translation import LONGER, beam_search
from tests.translation.small import random_params, transformer, vocabulary

MODEL = transformer(vocab_size=120, max_length=40)
# Of 29, 31 and 35 tokens: the first two are computed at width 32, the last at 40.
SENTENCES = [german for german, _ in translation.made_pairs(3, seed=9)]


@pytest.fixture(scope="module")
def words():
    return vocabulary()


@pytest.fixture(scope="module")
def params():
    return random_params(MODEL, scale=1.5)


@pytest.fixture(scope="module")
def translate(params, words):
    return functools.partial(translation.translate, MODEL, params, words, beam=2)


def test_the_order_and_the_neighbours_do_not_matter(translate):
    found = translate(SENTENCES)
    assert len(set(found)) == len(SENTENCES) and all(found)
    # One at a time, and the last one first.
    assert translate(SENTENCES[::-1], max_tokens=100)[::-1] == found
    assert translate(SENTENCES[1:2]) == found[1:2]


def test_it_is_the_best_of_the_search(translate, params, words):
    tokens = words.encode_source(SENTENCES[:1])[0]
    source = np.array([tokens + [translation.PADDING] * (32 - len(tokens))], np.int32)
    limits = np.array([min(len(tokens) + LONGER, 40)], np.int32)
    best, _ = beam_search(MODEL, params, source, limits, length=40, beam=2, alpha=0.6, offset=5.0)
    assert translate(SENTENCES[:1]) == [words.decode(best[0, 0].tolist())]


def test_sentences_without_words_and_with_unknown_characters(translate):
    found = translate(["", "買った", "  \n", SENTENCES[0]])
    assert found[0] == found[2] == "" and found[1] and found[3]
    assert translate([]) == []
    with pytest.raises(ValueError, match="beam=0 found; expected 1 or more"):
        translate(["Anna."], beam=0)


def test_a_sentence_of_ten_thousand_words(translate, words):
    long = " ".join(["Anna"] * 10_000)
    with pytest.raises(ValueError, match="^sentence 2 .* max_length=40.$"):
        translate(["Anna.", long])
    cut = words.encode_source([long])[0][:39]
    short = words.decode(cut)
    assert words.encode_source([short])[0][:39] == cut
    assert translate([long], too_long="cut") == translate([short])


def test_another_vocabulary_is_refused(params, words):
    with pytest.raises(ValueError, match="120 source and 120 target tokens found"):
        translation.translate(transformer(), params, words, SENTENCES)
