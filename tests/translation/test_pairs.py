"""Sentence pairs: the made ones, and real TFDS folders that the tests write."""

import hashlib

import pytest

from nf_resnets.translation import Pairs, load_pairs, made_pairs
from tests.photographs import prepare

SIZES = {"train": 12, "validation": 3, "test": 4}


def write(data_dir, name, languages, sizes):
    """Writes made sentences as TFDS does, and returns them by split."""
    import tensorflow_datasets as tfds

    pairs = iter(made_pairs(sum(sizes.values())))
    written = {split: [next(pairs) for _ in range(size)] for split, size in sizes.items()}

    def examples(split):
        for index, pair in enumerate(written[split]):
            yield index, dict(zip(languages, pair, strict=True))

    name, config = name.split("/")
    builder = tfds.dataset_builders.AdhocBuilder(
        name=name,
        version="1.0.0",
        data_dir=data_dir,
        config=config,
        features=tfds.features.Translation(languages),
        split_datasets={},
    )
    prepare(builder, {split: [*examples(split)] for split in sizes})
    return written


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("tfds")
    written = write(data_dir, "wmt16_translate/de-en", ("de", "en"), SIZES)
    hrlr = write(data_dir, "ted_hrlr_translate/pt_to_en", ("pt", "en"), SIZES)
    return data_dir, written, hrlr


def test_what_tfds_has_written_is_read(folder):
    data_dir, written, hrlr = folder
    found = load_pairs("wmt16_translate/de-en", data_dir)
    assert found.languages == ("de", "en")
    for split, pairs in written.items():
        # TFDS shuffles what it writes.
        assert sorted(zip(*getattr(found, split), strict=True)) == sorted(pairs)
    other = load_pairs("ted_hrlr_translate/pt_to_en", data_dir)
    assert other.languages == ("pt", "en")
    assert sorted(zip(*other.test, strict=True)) == sorted(hrlr["test"])


def test_what_is_not_there_is_said(folder, tmp_path):
    data_dir, _, _ = folder
    with pytest.raises(FileNotFoundError, match="wmt16_translate/de-en is not in .*prepare"):
        load_pairs("wmt16_translate/de-en", tmp_path)
    with pytest.raises(ValueError, match="source='fr' found for wmt16_translate/de-en with de, en"):
        load_pairs("wmt16_translate/de-en", data_dir, source="fr")


def test_the_made_set_is_one_language_to_the_other_with_no_sentence_in_two_splits():
    found, back = load_pairs("made"), load_pairs("made", source="en", limit=10)
    assert found.languages == ("de", "en") and back.languages == ("en", "de")
    assert back.test == Pairs(found.test.target, found.test.source)
    assert len(back.train.source) == 10
    parts = [set(pairs.source) for pairs in (found.train, found.validation, found.test)]
    assert sum(map(len, parts)) == len(set().union(*parts)) == 6_400
    # The committed results are of these sentences.
    digest = hashlib.sha256("\n".join(map("|".join, made_pairs(6_400))).encode()).hexdigest()
    assert digest[:16] == "7359202245e32952"
