"""Sentences of a small part of German with their translations, for where there are no others.

The part is small but of the real language: numbers as one word with the ones before the tens,
participles at the end, time before the subject. A translator has to reorder, and copying gets it
nowhere.
"""

from __future__ import annotations

import numpy as np

_NAMES = ("Anna", "Paul", "Maria", "Jonas", "Lena", "Emil", "Clara", "Felix")
_THINGS = (
    ("Äpfel", "apples"), ("Bücher", "books"), ("Eier", "eggs"), ("Blumen", "flowers"),
    ("Stühle", "chairs"), ("Karten", "cards"), ("Tassen", "cups"), ("Hüte", "hats"),
)  # fmt: skip
_KINDS = (
    ("rote", "red"), ("grüne", "green"), ("neue", "new"), ("alte", "old"), ("große", "large"),
    ("kleine", "small"), ("schöne", "beautiful"), ("billige", "cheap"),
)  # fmt: skip
_DEEDS = (
    ("gekauft", "bought"), ("verkauft", "sold"), ("gefunden", "found"), ("verloren", "lost"),
    ("gezählt", "counted"), ("gesehen", "saw"),
)  # fmt: skip
_TIMES = (
    ("heute", "today"), ("gestern", "yesterday"), ("im Mai", "in May"), ("im Winter", "in winter"),
    ("am Montag", "on Monday"), ("am Abend", "in the evening"),
)  # fmt: skip
_ONES = (
    ("", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf",
     "zwölf", "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn"),
    ("", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
     "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)  # fmt: skip
_TENS = (
    ("zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"),
    ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"),
)  # fmt: skip


def numeral(number: int) -> tuple[str, str]:
    """A number from 1 to 999 in German, one word with the ones before the tens, and in English."""
    hundreds, rest = divmod(number, 100)
    german = f"{_ONES[0][hundreds]}hundert" if hundreds else ""
    english = f"{_ONES[1][hundreds]} hundred " if hundreds else ""
    if rest < 20:
        return german + _ONES[0][rest] + "s" * (rest == 1), (english + _ONES[1][rest]).strip()
    tens, ones = divmod(rest, 10)
    german += f"{_ONES[0][ones]}und" * (ones > 0) + _TENS[0][tens - 2]
    return german, english + _TENS[1][tens - 2] + f"-{_ONES[1][ones]}" * (ones > 0)


def made_pairs(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Makes ``(German, English)`` sentences, up to 20,000, no sentence twice."""
    rng = np.random.default_rng(seed)
    pairs: dict[str, str] = {}
    while len(pairs) < count:
        german, english = _sentence(rng)
        pairs[german] = english
    return list(pairs.items())


def _sentence(rng: np.random.Generator) -> tuple[str, str]:
    def one(words: tuple) -> tuple:  # type: ignore[type-arg]
        return words[int(rng.integers(len(words)))]

    name, other = (str(word) for word in rng.permutation(_NAMES)[:2])
    thing, things = one(_THINGS)
    kind, kind_english = one(_KINDS)
    deed, did = one(_DEEDS)
    time, time_english = one(_TIMES)
    # Half of the numbers have two digits: those whose order differs.
    number = int(rng.integers(2, 100) if rng.random() < 0.5 else rng.integers(100, 1000))
    german, english = numeral(number)
    sentences = (
        (f"{time[0].upper()}{time[1:]} hat {name} {german} {kind} {thing} {deed}.",
         f"{name} {did} {english} {kind_english} {things} {time_english}."),
        (f"{name} hat {time} {german} {thing} {deed}.",
         f"{name} {did} {english} {things} {time_english}."),
        (f"{name} und {other} haben zusammen {german} {kind} {thing}.",
         f"{name} and {other} have {english} {kind_english} {things} together."),
        (f"Die {kind}n {thing} kosten {german} Euro.",
         f"The {kind_english} {things} cost {english} euros."),
    )  # fmt: skip
    return sentences[int(rng.integers(4))]
