"""BLEU against the definition, computed by hand, with its signature."""

import math
import sys

import pytest
from sacrebleu.tokenizers import tokenizer_ja_mecab

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


def test_each_translation_has_several_references():
    translations = ["a b c d e", "a b c d"]
    references = ["a b c d x", "x b c d"], ["x b c d e", "a b c x"]
    # Of 9, 7, 5, 3 n-grams all but "a b c d" are in one of the two references.
    found = bleu(translations, *references)
    assert found.score == pytest.approx(100 * (2 / 3) ** 0.25, rel=1e-6)
    assert found.signature.startswith("nrefs:2|")


CHINESE = (
    ["今天天气很好我们去公园", "我喜欢吃苹果和香蕉"],
    ["今天天气很好我们去学校", "我喜欢吃苹果和橙子"],
)


@pytest.mark.parametrize(
    ("options", "tokenizer", "score"),
    [
        ({}, "13a", 0.0),
        ({"tokenize": "zh"}, "zh", 75.98),
        ({"language": "zh"}, "zh", 75.98),
        ({"language": "zh-cn"}, "zh", 75.98),
        ({"language": "zh_TW"}, "zh", 75.98),
        ({"language": "zh", "tokenize": "char"}, "char", 75.98),
        ({"language": "de"}, "13a", 0.0),
    ],
)
def test_the_tokenizer_is_that_of_the_language_or_the_one_named(options, tokenizer, score):
    found = bleu(*CHINESE, **options)
    assert found.score == pytest.approx(score, abs=0.005)
    assert f"tok:{tokenizer}|" in found.signature


def test_a_tokenizer_that_is_not_there_is_refused(monkeypatch):
    with pytest.raises(ValueError, match=r"^tokenize='words' found; expected one of none, zh, 13a"):
        bleu(["a"], ["a"], tokenize="words")
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with pytest.raises(ModuleNotFoundError, match=r"^Japanese .*pip install sacrebleu\[ja\]$"):
        bleu(["a"], ["a"], language="ja")


def test_without_sacrebleu_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'nf_resnets\[translation\]'"):
        bleu(["a"], ["a"])
