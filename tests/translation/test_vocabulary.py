"""The vocabulary: the same from the same sentences, there and back, and what it refuses."""

import pytest

from nf_resnets import translation
from nf_resnets.translation import BEGIN, END, PADDING, UNKNOWN, Vocabulary, train_vocabulary
from tests.translation.small import vocabulary

GERMAN, ENGLISH = zip(*translation.made_pairs(300), strict=True)


def test_the_same_sentences_give_the_same_bytes():
    one, other = (train_vocabulary(GERMAN, ENGLISH, size=100) for _ in range(2))
    assert one == other and one.source_size == one.target_size == 100
    assert one != train_vocabulary(GERMAN[:150], ENGLISH[:150], size=100)


def test_sentences_come_back():
    found = vocabulary()
    for sentence, tokens in zip(ENGLISH, found.encode_target(ENGLISH), strict=True):
        assert tokens[-1] == END and not {PADDING, BEGIN, END, UNKNOWN} & set(tokens[:-1])
        assert found.decode(tokens) == sentence
        # What a search writes after the end is no part of the sentence.
        assert found.decode([*tokens, 7, 8, PADDING]) == sentence


def test_a_character_that_was_not_there_is_unknown():
    assert UNKNOWN in vocabulary().encode_source(["Anna 買った"])[0]


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (["", " "], {"size": 100}, "2 sentences without a word found"),
        (["ab"], {"size": 5000}, "no vocabulary of size=5000 can be made of 1 sentences ("),
    ],
)
def test_what_cannot_be_trained_is_refused(source, options, message):
    with pytest.raises(ValueError) as error:
        train_vocabulary(source, [], **options)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "sentence",
    ["xyz qqq " * 900, "qqxyz" * 1000, "xyz \u2585 qqq", "xyz\0qqq", "xyz\nqqq", "xyz\tqqq"],
    ids=["long", "without_spaces", "reserved", "null", "newline", "tab"],
)
def test_no_letter_of_a_training_sentence_is_unknown(sentence):
    found = train_vocabulary([sentence, *GERMAN], ENGLISH, size=110)
    assert UNKNOWN not in found.encode_source(["xyz qqq"])[0]


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x00" * 100])
def test_bytes_that_are_no_model_are_refused(content):
    with pytest.raises(ValueError, match="no SentencePiece model"):
        Vocabulary(vocabulary().source, content)


def test_a_model_with_other_special_tokens_is_refused():
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(GERMAN), model_writer=model, vocab_size=100, minloglevel=2
    )
    with pytest.raises(ValueError, match=r"at \(-1, 1, 2, 0\); expected \(0, 1, 2, 3\)"):
        Vocabulary(model.getvalue(), model.getvalue())


@pytest.mark.parametrize("wrong", ["a house", b"a house", ["a", None], ["a", "\udcfc"]])
def test_what_is_no_list_of_sentences_is_refused(wrong):
    with pytest.raises(ValueError, match="^sentences.*; expected"):
        vocabulary().encode_source(wrong)
