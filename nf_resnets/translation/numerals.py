"""Whole numbers in words, German and English."""

from __future__ import annotations

_GERMAN_ONES = (
    "null", "eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn",
    "elf", "zwölf", "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn",
    "neunzehn",
)  # fmt: skip
_GERMAN_TENS = (
    "", "", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"
)  # fmt: skip
_ENGLISH_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
    "nineteen",
)  # fmt: skip
_ENGLISH_TENS = (
    "", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"
)  # fmt: skip


def german_numeral(number: int) -> str:
    """A number from 0 to 999,999 in German, one word.

    Raises:
      ValueError: if the number lies outside.

    Example:
      >>> german_numeral(23), german_numeral(201), german_numeral(5_012)
      ('dreiundzwanzig', 'zweihunderteins', 'fünftausendzwölf')
    """
    _check(number)
    thousands, rest = divmod(number, 1000)
    words = f"{_before(_german_below_1000(thousands))}tausend" if thousands else ""
    return words + (_german_below_1000(rest) if rest or not thousands else "")


def english_numeral(number: int) -> str:
    """A number from 0 to 999,999 in English.

    Raises:
      ValueError: if the number lies outside.

    Example:
      >>> english_numeral(23), english_numeral(201), english_numeral(5_012)
      ('twenty-three', 'two hundred one', 'five thousand twelve')
    """
    _check(number)
    thousands, rest = divmod(number, 1000)
    words = [f"{_english_below_1000(thousands)} thousand"] if thousands else []
    return " ".join([*words, *([_english_below_1000(rest)] if rest or not thousands else [])])


def _check(number: int) -> None:
    if not 0 <= number < 1_000_000:
        raise ValueError(f"number={number} found; expected 0 to 999,999.")


def _before(words: str) -> str:
    """*Eins* loses its s before another word: *einhundert*, *einundzwanzig*."""
    return words.removesuffix("s") if words.endswith("eins") else words


def _german_below_1000(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    words = f"{_before(_GERMAN_ONES[hundreds])}hundert" if hundreds else ""
    if rest < 20:
        return words + (_GERMAN_ONES[rest] if rest or not hundreds else "")
    tens, ones = divmod(rest, 10)
    # The ones come first: three and twenty.
    return words + (f"{_before(_GERMAN_ONES[ones])}und" if ones else "") + _GERMAN_TENS[tens]


def _english_below_1000(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    words = [f"{_ENGLISH_ONES[hundreds]} hundred"] if hundreds else []
    if rest >= 20:
        tens, ones = divmod(rest, 10)
        words.append(_ENGLISH_TENS[tens] + (f"-{_ENGLISH_ONES[ones]}" if ones else ""))
    elif rest or not hundreds:
        words.append(_ENGLISH_ONES[rest])
    return " ".join(words)


__all__ = ["english_numeral", "german_numeral"]
