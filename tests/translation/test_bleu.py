"""BLEU against the definition, computed by hand, with its signature."""

import math

import pytest
from sacrebleu.tokenizers import tokenizer_ja_mecab

from nf_resnets.translation import bleu


def test_the_definition_on_one_sentence():
    score, signature = bleu(["a b c d e f"], ["a b c d x e f g"])
    # Of 6, 5, 4, 3 n-grams 6, 4, 2, 1 are in the reference; it has 8 words, the candidate 6.
    precision = (6 / 6 * 4 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert score == pytest.approx(100 * math.exp(1 - 8 / 6) * precision, rel=1e-6)
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")


def test_it_is_of_the_corpus_with_several_references():
    translations = ["a b c d e", "a b c d"]
    references = ["a b c d x", "x b c d"], ["x b c d e", "a b c x"]
    # Of 9, 7, 5, 3 n-grams all but "a b c d" are in one of the two references.
    score, signature = bleu(translations, *references)
    assert score == pytest.approx(100 * (2 / 3) ** 0.25, rel=1e-6)
    assert signature.startswith("nrefs:2|")


@pytest.mark.parametrize(
    ("language", "tokenizer", "score"), [("", "13a", 0.0), ("zh_TW", "zh", 75.98)]
)
def test_the_tokenizer_is_that_of_the_language(language, tokenizer, score):
    translations = ["今天天气很好我们去公园", "我喜欢吃苹果和香蕉"]
    references = ["今天天气很好我们去学校", "我喜欢吃苹果和橙子"]
    result = bleu(translations, references, language=language)
    assert result.score == pytest.approx(score, abs=0.005)
    assert f"tok:{tokenizer}|" in result.signature


def test_a_tokenizer_that_is_not_there_and_other_counts_are_refused(monkeypatch):
    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with pytest.raises(ModuleNotFoundError, match=r"^Japanese .*pip install sacrebleu\[ja\]$"):
        bleu(["a"], ["a"], language="ja")
    with pytest.raises(ValueError, match=r"1 translations and \[2\] references found"):
        bleu(["a"], ["a", "b"])
