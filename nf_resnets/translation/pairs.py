"""Sets of sentence pairs: made by the code, or read from what TensorFlow Datasets has prepared."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from typing import Any, NamedTuple

from nf_resnets.data.prepared import (
    has_random_access,
    open_builder,
    prepare_command,
    quiet,
    readable,
    with_tensorflow,
)
from nf_resnets.translation.made import made_pairs

MADE = "made"
"""The name of the set that the code makes, which is there everywhere."""

_MADE_SIZES = (6_000, 200, 200)
_DEFAULT = "~/tensorflow_datasets"


class Pairs(NamedTuple):
    """The sentences of one split.

    Attributes:
      source: sentences.
      target: the translation of each.

    Example:
      >>> Pairs(("ein Haus",), ("a house",)).target
      ('a house',)
    """

    source: tuple[str, ...]
    target: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class PairSet:
    """A set of sentence pairs in three splits.

    Attributes:
      name: what messages call it.
      languages: those of source and target.
      train: what a network is trained on.
      validation: what settings are chosen by.
      test: what BLEU is reported on.

    Raises:
      ValueError: if a split is empty, or has not as many sentences of both languages.
    """

    name: str
    languages: tuple[str, str]
    train: Pairs
    validation: Pairs
    test: Pairs

    def __post_init__(self) -> None:
        for split in ("train", "validation", "test"):
            pairs: Pairs = getattr(self, split)
            if not pairs.source or len(pairs.source) != len(pairs.target):
                raise ValueError(
                    f"{self.name}, {split} split: {len(pairs.source)} source and "
                    f"{len(pairs.target)} target sentences found; expected as many of both, and "
                    "at least one."
                )


def load_pairs(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    source: str | None = None,
    limit: int | None = None,
) -> PairSet:
    """Loads a set of sentence pairs by name.

    ``"made"`` is made by the code (:func:`made_pairs`, German to English: 6,000 pairs to train on,
    200 each to validate and test). Any other name is one that TensorFlow Datasets has, with its
    languages: ``wmt16_translate/de-en``, ``ted_hrlr_translate/pt_to_en``; or that somebody has
    prepared for it with a ``Translation`` feature, such as ``multi30k_translate/de-en``. It is read
    from disk: nothing is ever downloaded here. TensorFlow is needed for a copy in tfrecord format
    only.

    Args:
      name: the set.
      data_dir: the folder that TensorFlow Datasets was given; None is its default.
      source: the language to translate from; by default the one named first, as ``de`` in
        ``de-en`` or ``pt`` in ``pt_to_en``.
      limit: how many training pairs to take at most.

    Raises:
      ValueError: if the set has no such language, or lacks a split.
      FileNotFoundError: if the set is not there; the message says how to prepare it.
      ModuleNotFoundError: if a package that reads it is not installed.
      OSError: if its files are damaged.

    Example:
      >>> load_pairs("made").languages
      ('de', 'en')
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit} found; expected at least 1.")
    if name == MADE:
        return _made(source, limit)
    try:
        builder = open_builder(name, data_dir)
    except FileNotFoundError as error:
        if "pass data_dir" in str(error):
            raise
        where = _DEFAULT if data_dir is None else data_dir
        raise FileNotFoundError(
            f"{name} is not in {where}; with network access and TensorFlow "
            f"(pip install 'nf_resnets[tensorflow]') a set that it knows is prepared by "
            f"{prepare_command(name, where)}, and any other by a builder with a "
            "Translation feature."
        ) from None
    features = builder.info.features
    languages = tuple(features) if hasattr(features, "keys") else ()
    if len(languages) != 2:
        raise ValueError(
            f"{name} has the features {', '.join(languages) or features}; expected two languages."
        )
    first, second = _direction(name, languages, source)
    splits = {}
    for split in ("train", "validation", "test"):
        if split not in builder.info.splits:
            raise ValueError(
                f"{name} has the splits {', '.join(builder.info.splits)}; expected {split} too."
            )
        part, size = split, builder.info.splits[split].num_examples
        if split == "train" and limit is not None and limit < size:
            part = f"{split}[:{limit}]"
        with quiet(), readable(name, builder.data_path):
            splits[split] = _read(builder, part, first, second)
    return PairSet(name, (first, second), **splits)


def _made(source: str | None, limit: int | None) -> PairSet:
    first, second = _direction(MADE, ("de", "en"), source)
    pairs = made_pairs(sum(_MADE_SIZES))
    parts, start = [], 0
    for size in _MADE_SIZES:
        part = pairs[start : start + size]
        german, english = zip(*part, strict=True)
        parts.append(Pairs(german, english) if first == "de" else Pairs(english, german))
        start += size
    train, validation, test = parts
    train = Pairs(train.source[:limit], train.target[:limit])
    return PairSet(MADE, (first, second), train, validation, test)


def _direction(name: str, languages: tuple[str, ...], source: str | None) -> tuple[str, str]:
    if source is not None and source not in languages:
        raise ValueError(
            f"source={source!r} found; {name} has the languages {' and '.join(languages)}."
        )
    # The features are in the order of the alphabet; the name says what is translated to what.
    named = name.split("/")[-1]
    first = source or min(languages, key=lambda language: _position(named, language))
    second = languages[1] if first == languages[0] else languages[0]
    return first, second


def _position(named: str, language: str) -> int:
    position = named.find(language)
    return position if position >= 0 else len(named)


def _read(builder: Any, split: str, first: str, second: str) -> Pairs:
    if has_random_access(builder):
        found = builder.as_data_source(split)
        examples = (found[index] for index in range(len(found)))
    elif importlib.util.find_spec("tensorflow"):
        tfds = with_tensorflow()
        examples = tfds.as_numpy(builder.as_dataset(split, shuffle_files=False))
    else:
        raise ModuleNotFoundError(
            f"{builder.info.full_name} is in {builder.info.file_format.value} format, which only "
            "TensorFlow reads: pip install 'nf_resnets[tensorflow]', or prepare a copy in "
            "array_record format in another folder."
        )
    pairs = [(_text(example[first]), _text(example[second])) for example in examples]
    source, target = zip(*pairs, strict=True) if pairs else ((), ())
    return Pairs(source, target)


def _text(value: Any) -> str:
    return " ".join((value.decode() if isinstance(value, bytes) else str(value)).split())


__all__ = ["MADE", "PairSet", "Pairs", "load_pairs"]
