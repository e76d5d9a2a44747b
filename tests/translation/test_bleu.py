"""BLEU is sacrebleu's, with the tokenizer of the language and several references."""

import pytest

from nf_resnets.translation import bleu


def test_references_and_the_tokenizer_of_the_language():
    translations = ["今天天气很好我们去公园", "我喜欢吃苹果和香蕉"]
    references = ["今天天气很好我们去学校", "我喜欢吃苹果和橙子"]
    result = bleu(translations, references, language="zh_TW")
    assert result.score == pytest.approx(75.98, abs=0.005)
    assert result.signature.startswith("nrefs:1|case:mixed|eff:no|tok:zh|smooth:exp|version:")
    score, signature = bleu(["a b c d x"], ["a b c d y"], ["a b c d x"])
    assert score == pytest.approx(100) and signature.startswith("nrefs:2|case:mixed|eff:no|tok:13a")


def test_other_counts_are_refused():
    with pytest.raises(ValueError, match=r"1 translations and \[2\] references found"):
        bleu(["a"], ["a", "b"])
