"""Sets of sentence pairs: made by the code, or read from a prepared set of TensorFlow Datasets."""

from __future__ import annotations

import dataclasses
import os
from typing import Any, NamedTuple

from nf_resnets.data.prepared import open_builder, quiet, read_examples, readable
from nf_resnets.translation.made import made_pairs

MADE = "made"
"""The name of the set that the code makes, which is there everywhere."""


class Pairs(NamedTuple):
    """The sentences of one split, and the translation of each."""

    source: tuple[str, ...]
    target: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class PairSet:
    """A set of sentence pairs in three splits, with the languages of source and target."""

    name: str
    languages: tuple[str, str]
    train: Pairs
    validation: Pairs
    test: Pairs


def load_pairs(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    source: str | None = None,
    limit: int | None = None,
) -> PairSet:
    """Loads a set of sentence pairs by name.

    ``"made"`` is made by the code (:func:`made_pairs`, German to English: 6,000 pairs to train on,
    200 each to validate and test). Any other name is one that TensorFlow Datasets has prepared,
    with its languages: ``wmt16_translate/de-en``, ``ted_hrlr_translate/pt_to_en``, or a set with a
    ``Translation`` feature. It is read from disk: nothing is ever downloaded here.

    Args:
      name: the set.
      data_dir: the folder that TensorFlow Datasets was given; None is its default.
      source: the language to translate from; by default the one named first, as ``de`` in
        ``de-en`` or ``pt`` in ``pt_to_en``.
      limit: how many training pairs to take at most.

    Raises:
      ValueError: if the set has no such language.
      FileNotFoundError: if the set is not there; the message says how to prepare it.

    Example:
      >>> load_pairs("made").languages
      ('de', 'en')
    """
    if name == MADE:
        languages: tuple[str, ...] = ("de", "en")
    else:
        builder = open_builder(name, data_dir)
        languages = tuple(builder.info.features)
    if len(languages) != 2 or (source or languages[0]) not in languages:
        raise ValueError(
            f"source={source!r} found for {name} with {', '.join(languages)}; expected one of two "
            "languages."
        )
    # The features are in the order of the alphabet; the name says what is translated to what.
    text = name.split("/")[-1]
    first = source or min(languages, key=lambda each: (text.find(each) < 0, text.find(each)))
    second = languages[1] if first == languages[0] else languages[0]
    if name == MADE:
        made = [dict(zip(languages, pair, strict=True)) for pair in made_pairs(6_400)]
        examples = {"train": made[:6_000], "validation": made[6_000:6_200], "test": made[6_200:]}
        splits = {split: _pairs(each, first, second) for split, each in examples.items()}
    else:
        with quiet(), readable(name, builder.data_path):
            splits = {
                split: _pairs(read_examples(builder, split), first, second)
                for split in ("train", "validation", "test")
            }
    splits["train"] = Pairs(*(each[:limit] for each in splits["train"]))
    return PairSet(name, (first, second), **splits)


def _pairs(examples: Any, first: str, second: str) -> Pairs:
    pairs = [(_text(example[first]), _text(example[second])) for example in examples]
    return Pairs(*zip(*pairs, strict=True))


def _text(value: Any) -> str:
    return " ".join((value.decode() if isinstance(value, bytes) else str(value)).split())
