"""Batches by tokens: every pair once, in few shapes, in an order that only the seed decides."""

import collections

import pytest

from nf_resnets import translation
from nf_resnets.translation import BEGIN, END, PADDING, batch_of, batch_shapes, epoch_batches
from nf_resnets.translation.batches import WIDTHS, fitting_width
from tests.translation.small import corpus, vocabulary


def order_of(places):
    return [place.pairs.tolist() for place in places]


@pytest.mark.parametrize("devices", [1, 8])
def test_every_pair_is_in_one_batch_that_is_no_larger_than_allowed(devices):
    pairs = corpus(count=203)
    shapes = batch_shapes(pairs, max_tokens=500)
    seen = collections.Counter()
    for place in epoch_batches(pairs, 3, 5, shapes):
        batch, rows = batch_of(pairs, place, devices=devices), shapes[place.width]
        shape = (rows + -rows % devices, place.width)
        assert {array.shape for array in batch.values()} == {shape} and rows * place.width <= 500
        assert not any(array[rows:].any() for array in batch.values())
        for row, pair in enumerate(place.pairs):
            if pair < 0:
                assert not any(array[row].any() for array in batch.values())
                continue
            seen[int(pair)] += 1
            source, target = pairs.source[pair], pairs.target[pair]
            for name, expected in (
                ("source", source), ("targets", target), ("inputs", (BEGIN, *target[:-1]))
            ):  # fmt: skip
                found = batch[name][row]
                assert tuple(found[: len(expected)]) == expected
                assert (found[len(expected) :] == PADDING).all()
            # A narrower batch would not have done.
            longest = max(len(source), len(target))
            assert place.width == min(w for w in (*WIDTHS[:4], 32) if w >= longest)
    assert seen == collections.Counter(range(203))


def test_the_order_is_that_of_seed_and_epoch():
    pairs = corpus()
    shapes = batch_shapes(pairs, max_tokens=200)
    first = order_of(epoch_batches(pairs, 0, 0, shapes))
    assert first == order_of(epoch_batches(pairs, 0, 0, shapes))
    others = [order_of(epoch_batches(pairs, *where, shapes)) for where in ((0, 1), (1, 0))]
    assert first not in others and others[0] != others[1]
    # As many batches in every epoch, so that a step knows its epoch.
    assert {len(other) for other in others} == {len(first)}
    # Wide and narrow ones alternate, and who meets whom changes.
    widths = [place.width for place in epoch_batches(pairs, 0, 0, shapes)]
    assert widths != sorted(widths)
    batches = [{frozenset(batch) for batch in order} for order in (first, others[0])]
    assert batches[0] != batches[1]


def test_widths_are_wide_enough_and_at_most_half_as_wide_again_as_the_next():
    assert [fitting_width(length, 1024) for length in range(1, 1025)] == [
        min(width for width in WIDTHS if width >= length) for length in range(1, 1025)
    ]
    assert all(wide <= 1.5 * narrow for narrow, wide in zip(WIDTHS, WIDTHS[1:], strict=False))
    assert fitting_width(40, 40) == 40 and fitting_width(5_000, 5_000) == 5_000


def test_pairs_without_words_or_with_too_many_are_counted():
    source = ["Anna", "", "Anna " * 50, "Paul", "  ", "Emil"]
    target = ["Anna", "Anna", "Anna", "Anna " * 50, "Paul", ""]
    found = translation.encode(source, target, vocabulary(), max_length=20)
    assert len(found.source) == len(found.target) == 1 and found.dropped == 5
    assert found.source[0][-1] == found.target[0][-1] == END


def test_sentences_without_their_translations_are_refused():
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        translation.encode(["a", "b"], ["a"], vocabulary(), max_length=20)
