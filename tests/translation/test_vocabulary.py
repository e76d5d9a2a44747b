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


@pytest.mark.parametrize(("source", "size"), [(["", " "], 100), (["ab"], 5000)])
def test_what_cannot_be_trained_is_refused(source, size):
    with pytest.raises(ValueError, match=f"{len(source)} sentences"):
        train_vocabulary(source, [], size=size)


@pytest.mark.parametrize(
    "sentence",
    ["xyz qqq " * 900, "qqxyz" * 1000, "xyz \u2585 qqq", "xyz\0qqq", "xyz\nqqq", "xyz\tqqq"],
    ids=["long", "without_spaces", "reserved", "null", "newline", "tab"],
)
def test_no_letter_of_a_training_sentence_is_unknown(sentence):
    found = train_vocabulary([sentence, *GERMAN], ENGLISH, size=110)
    assert UNKNOWN not in found.encode_source(["xyz qqq"])[0]


@pytest.mark.parametrize("content", [b"", b"not a model"])
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


def test_one_sentence_is_not_taken_for_a_list_of_letters():
    with pytest.raises(ValueError, match="one string found"):
        vocabulary().encode_source("a house")
