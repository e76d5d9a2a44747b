"""The vocabulary: the same from the same sentences, there and back, and what it refuses."""

import sys

import numpy as np
import pytest

from nf_resnets import translation
from nf_resnets.translation import BEGIN, END, PADDING, UNKNOWN, Vocabulary, train_vocabulary
from tests.translation.small import vocabulary

GERMAN, ENGLISH = zip(*translation.made_pairs(300), strict=True)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_same_sentences_give_the_same_bytes(kind):
    one, other = (train_vocabulary(GERMAN, ENGLISH, size=100, kind=kind) for _ in range(2))
    assert one == other and one.source_size == one.target_size == 100
    assert one != train_vocabulary(GERMAN[:150], ENGLISH[:150], size=100, kind=kind)


def test_sentences_come_back():
    found = vocabulary()
    for sentence, tokens in zip(ENGLISH, found.encode_target(ENGLISH), strict=True):
        assert tokens[-1] == END and not {PADDING, BEGIN, END, UNKNOWN} & set(tokens[:-1])
        assert found.decode(tokens) == sentence
        # What a search writes after the end is no part of the sentence.
        assert found.decode([*tokens, 7, 8, PADDING]) == sentence


def test_languages_share_their_tokens_or_do_not():
    joint, apart = vocabulary(), vocabulary(joint=False)
    assert joint.joint and joint.source == joint.target
    assert not apart.joint and apart.source != apart.target
    assert joint.encode_source(ENGLISH[:3]) == joint.encode_target(ENGLISH[:3])
    assert apart.encode_source(ENGLISH[:3]) != apart.encode_target(ENGLISH[:3])
    assert [apart.decode(tokens) for tokens in apart.encode_target(ENGLISH)] == list(ENGLISH)


def test_a_character_that_was_not_there_is_unknown_or_bytes():
    sentence = "Anna 買った"
    assert UNKNOWN in vocabulary().encode_source([sentence])[0]
    with_bytes = vocabulary(size=400, byte_fallback=True)
    tokens = with_bytes.encode_target([sentence])[0]
    assert UNKNOWN not in tokens and with_bytes.decode(tokens) == sentence


def test_an_empty_sentence_is_its_end():
    assert vocabulary().encode_source(["", "  "]) == [[END], [END]]


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (["", " "], {"size": 100}, "2 sentences without a word found"),
        (["ab"], {"size": 4}, "size=4 found; expected at least 5"),
        (["ab"], {"size": 200, "byte_fallback": True}, "expected at least 261"),
        (["ab"], {"size": 5000}, "no vocabulary of size=5000 can be made of 1 sentences (V"),
        (["ab"], {"size": 50, "kind": "words"}, "kind='words' found"),
    ],
)
def test_what_cannot_be_trained_is_refused(source, options, message):
    with pytest.raises(ValueError) as error:
        train_vocabulary(source, [], **options)
    assert message in str(error.value) and "\n" not in str(error.value)


TAKE_SENTENCES = {
    "train source": lambda wrong: train_vocabulary(wrong, ["a house"], size=20),
    "train target": lambda wrong: train_vocabulary(["ein Haus"], wrong, size=20),
    "source": lambda wrong: vocabulary().encode_source(wrong),
    "target": lambda wrong: vocabulary().encode_target(wrong),
    "pairs": lambda wrong: translation.encode(wrong, wrong, vocabulary(), max_length=8),
    "bleu": lambda wrong: translation.bleu(wrong, ["a"]),
    "references": lambda wrong: translation.bleu(["a"], ["a"], wrong),
}


@pytest.mark.parametrize("call", TAKE_SENTENCES.values(), ids=TAKE_SENTENCES)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("a house", " is one str; expected a list of sentences.$"),
        (b"a house", " is one bytes; expected a list of sentences.$"),
        (None, " is one NoneType; expected a list of sentences.$"),
        (["a", None], r"\[1\] is of type NoneType; expected a sentence, a str.$"),
        ([b"a"], r"\[0\] is of type bytes; expected a sentence, a str.$"),
        ([["a"]], r"\[0\] is of type list; expected a sentence, a str.$"),
        (["a", "\udcfc"], r"\[1\] is '\\udcfc'; expected text that UTF-8 can encode.$"),
    ],
    ids=["string", "bytes", "none", "none_in", "bytes_in", "list_in", "surrogate_in"],
)
def test_what_is_no_list_of_sentences_is_refused(call, wrong, message):
    with pytest.raises(
        ValueError, match="^(source|target|sentences|translations|references)" + message
    ):
        call(wrong)


@pytest.mark.parametrize("made", [tuple, iter, np.array], ids=["tuple", "iterator", "array"])
def test_sentences_of_any_iterable_are_taken(made):
    found = train_vocabulary(made(GERMAN), made(ENGLISH), size=100)
    assert found == train_vocabulary(GERMAN, ENGLISH, size=100)
    assert found.encode_source(made(GERMAN)) == found.encode_source(GERMAN)
    assert len(translation.encode(made(GERMAN), made(ENGLISH), found, max_length=99).source) == 300
    assert translation.bleu(made(GERMAN), made(ENGLISH)) == translation.bleu(GERMAN, ENGLISH)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@pytest.mark.parametrize(
    "sentence",
    ["xyz qqq " * 900, "qqxyz" * 1000, "xyz \u2585 qqq", "xyz\0qqq", "xyz\nqqq", "xyz\tqqq"],
    ids=["long", "without_spaces", "reserved", "null", "newline", "tab"],
)
def test_no_letter_of_a_training_sentence_is_unknown(sentence, kind):
    found = train_vocabulary([sentence, *GERMAN], ENGLISH, size=110, kind=kind)
    assert UNKNOWN not in found.encode_source(["xyz qqq"])[0]


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x00" * 100])
def test_bytes_that_are_no_model_are_refused(content):
    with pytest.raises(ValueError, match="is no SentencePiece model"):
        Vocabulary(vocabulary().source, content)


def test_a_model_with_other_special_tokens_is_refused(tmp_path):
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(GERMAN), model_writer=model, vocab_size=100, minloglevel=2
    )
    with pytest.raises(ValueError, match=r"at \(-1, 1, 2, 0\); expected \(0, 1, 2, 3\)"):
        Vocabulary(model.getvalue(), model.getvalue())


def test_without_sentencepiece_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'nf_resnets\[translation\]'"):
        train_vocabulary(["ab"], ["cd"], size=10)
