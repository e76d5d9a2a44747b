"""From sentences to sentences: whatever they are, in order, and not by their neighbours."""

import pytest

from nf_resnets import translation
from nf_resnets.translation import LONGER, beam_search, translate
from tests.translation.small import random_params, transformer, vocabulary

VOCABULARY = vocabulary()
MODEL = transformer(vocab_size=120, max_length=40)
PARAMS = random_params(MODEL, scale=1.5)
SENTENCES = [german for german, _ in translation.made_pairs(8, seed=9)]


def test_the_order_and_the_neighbours_do_not_matter():
    found = translate(MODEL, PARAMS, VOCABULARY, SENTENCES, beam=2)
    assert len(set(found)) == len(SENTENCES) and all(found)
    turned = translate(MODEL, PARAMS, VOCABULARY, SENTENCES[::-1], beam=2, max_tokens=300)
    assert turned[::-1] == found
    assert translate(MODEL, PARAMS, VOCABULARY, SENTENCES[3:4], beam=2) == found[3:4]


def test_it_is_the_best_of_the_search():
    tokens = VOCABULARY.encode_source(SENTENCES[:1])[0]
    best, _ = beam_search(
        MODEL, PARAMS, [tokens], [min(len(tokens) + LONGER, 40)], length=40, beam=2
    )
    (found,) = translate(MODEL, PARAMS, VOCABULARY, SENTENCES[:1], beam=2)
    assert found == VOCABULARY.decode(best[0, 0].tolist())


def test_sentences_without_words_and_with_unknown_characters():
    found = translate(MODEL, PARAMS, VOCABULARY, ["", "買った", "  \n", SENTENCES[0]], beam=2)
    assert found[0] == found[2] == "" and found[1] and found[3]
    assert translate(MODEL, PARAMS, VOCABULARY, []) == []


def test_a_sentence_of_ten_thousand_words():
    long = " ".join(["Anna"] * 10_000)
    with pytest.raises(ValueError) as error:
        translate(MODEL, PARAMS, VOCABULARY, ["Anna.", long])
    assert str(error.value).startswith("sentence 2 ('Anna Anna Anna Anna Anna Anna '...) has ")
    assert (
        str(error.value).endswith("expected at most max_length=40.") and len(str(error.value)) < 120
    )
    (found,) = translate(MODEL, PARAMS, VOCABULARY, [long], beam=2, too_long="cut")
    cut = VOCABULARY.encode_source([long])[0][:39]
    short = VOCABULARY.decode(cut)
    assert VOCABULARY.encode_source([short])[0][:39] == cut
    assert found == translate(MODEL, PARAMS, VOCABULARY, [short], beam=2)[0]


def test_what_does_not_belong_together_is_refused():
    with pytest.raises(ValueError, match="120 source and 120 target tokens found; expected 40 and"):
        translate(transformer(), PARAMS, VOCABULARY, SENTENCES)
    with pytest.raises(ValueError, match="one string found"):
        translate(MODEL, PARAMS, VOCABULARY, "Anna.")
    for name in ("beam", "max_tokens"):
        with pytest.raises(ValueError, match=f"^{name}=0 found; expected at least 1"):
            translate(MODEL, PARAMS, VOCABULARY, ["Anna."], **{name: 0})
    with pytest.raises(ValueError, match="^too_long='Refuse' found; expected refuse or cut"):
        translate(MODEL, PARAMS, VOCABULARY, ["Anna."], too_long="Refuse")
