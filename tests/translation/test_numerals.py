"""Numbers in words, against readers that go the other way, and what a grammar says."""

import pytest

from nf_resnets.translation.numerals import english_numeral, german_numeral

SOME = [*range(0, 1300), *range(1990, 2035), *range(9_990, 1_000_000, 7_919), 999_999]

ENGLISH = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
ENGLISH += "fifteen sixteen seventeen eighteen nineteen"
ENGLISH_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
GERMAN = "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn "
GERMAN += "fünfzehn sechzehn siebzehn achtzehn neunzehn"
GERMAN_TENS = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig"


def read_english(words):
    values = {word: value for value, word in enumerate(ENGLISH.split())}
    values |= {word: 20 + 10 * place for place, word in enumerate(ENGLISH_TENS.split())}
    total = part = 0
    for word in words.replace("-", " ").split():
        if word == "thousand":
            total, part = part * 1000, 0
        else:
            part = part * 100 if word == "hundred" else part + values[word]
    return total + part


def read_german(word):
    """Cuts the word at its largest unit, and reads both sides."""
    values = {name: value for value, name in enumerate(GERMAN.split())} | {"eins": 1, "": 0}
    tens = {name: 20 + 10 * place for place, name in enumerate(GERMAN_TENS.split())}
    for unit, value in (("tausend", 1000), ("hundert", 100)):
        if unit in word:
            before, after = word.split(unit, 1)
            return read_german(before) * value + read_german(after)
    for name, value in tens.items():
        if word.endswith(name):
            return value + values[word.removesuffix(name).removesuffix("und")]
    return values[word]


def test_both_are_read_back():
    assert [read_english(english_numeral(number)) for number in SOME] == SOME
    assert [read_german(german_numeral(number)) for number in SOME] == SOME


@pytest.mark.parametrize(
    ("number", "german", "english"),
    [
        (0, "null", "zero"),
        (1, "eins", "one"),
        (16, "sechzehn", "sixteen"),
        (21, "einundzwanzig", "twenty-one"),
        (101, "einhunderteins", "one hundred one"),
        (777, "siebenhundertsiebenundsiebzig", "seven hundred seventy-seven"),
        (1_000, "eintausend", "one thousand"),
        (101_030, "einhunderteintausenddreißig", "one hundred one thousand thirty"),
    ],
)
def test_the_words(number, german, english):
    assert (german_numeral(number), english_numeral(number)) == (german, english)


@pytest.mark.parametrize("number", [-1, 1_000_000])
def test_other_numbers_are_refused(number):
    for numeral in (german_numeral, english_numeral):
        with pytest.raises(ValueError, match="expected 0 to 999,999"):
            numeral(number)
