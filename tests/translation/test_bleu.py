"""BLEU against the definition, computed by hand, with its signature."""

import math
import sys

import pytest

from nf_resnets.translation import bleu


def test_the_definition_on_one_sentence():
    found = bleu(["a b c d e f"], ["a b c d x e f g"])
    # Of 6, 5, 4, 3 n-grams 6, 4, 2, 1 are in the reference; it has 8 words, the candidate 6.
    precision = (6 / 6 * 4 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert found.score == pytest.approx(100 * math.exp(1 - 8 / 6) * precision, rel=1e-6)
    assert found.signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_it_is_of_the_corpus_and_not_a_mean_of_sentences():
    translations, references = ["a b c d", "a b c d e x"], ["a b c d", "a b c d e f"]
    # 10, 8, 6, 4 n-grams, of which 9, 7, 5, 3 are there.
    expected = 100 * (9 / 10 * 7 / 8 * 5 / 6 * 3 / 4) ** 0.25
    assert bleu(translations, references).score == pytest.approx(expected, rel=1e-6)


def test_one_string_is_no_list_of_sentences():
    for pair in (("the cat", "the cat"), (["the cat"], "the cat")):
        with pytest.raises(ValueError, match="^one string found; expected a list of sentences"):
            bleu(*pair)


def test_wrong_numbers_of_sentences_are_refused():
    for translations, references in (([], []), (["a"], ["a", "b"])):
        with pytest.raises(ValueError, match="expected as many of both"):
            bleu(translations, references)


def test_without_sacrebleu_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'nf_resnets\[translation\]'"):
        bleu(["a"], ["a"])
