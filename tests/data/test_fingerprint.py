"""The fingerprint of data: the same for the same numbers, another for any other."""

import dataclasses
import itertools
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets.data import fingerprint

ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


@dataclasses.dataclass(frozen=True)
class Part:
    name: str
    values: object


def test_every_number_shape_and_dtype_counts():
    other = ARRAY.copy()
    other[1, 2] = np.nextafter(other[1, 2], 9)
    values = [
        ARRAY, other, ARRAY.reshape(3, 2), ARRAY.T, ARRAY.astype(np.float64), ARRAY.view(np.int32),
        ARRAY[:1], -ARRAY, {"a": ARRAY}, {"b": ARRAY}, [ARRAY], [ARRAY, ARRAY], [[ARRAY], ARRAY],
        [ARRAY, [ARRAY]], ["ab", "c"], ["a", "bc"], ["abc"], "abc", b"abc", 1, 1.0, "1", None, [],
        [1, 23], [12, 3], [{"a": 1}, {"b": 2}], [{"a": 1, "b": 2}, {}],
    ]  # fmt: skip
    for one, two in itertools.combinations(values, 2):
        assert fingerprint(one) != fingerprint(two), (one, two)


def test_where_the_numbers_lie_does_not():
    wide = np.zeros((2, 6), np.float32)
    wide[:, ::2] = ARRAY
    for same in (wide[:, ::2], np.asfortranarray(ARRAY), jnp.asarray(ARRAY), ARRAY.copy()):
        assert fingerprint(same) == fingerprint(ARRAY)
    assert fingerprint((1, ARRAY)) == fingerprint([1, ARRAY])


def test_names_are_settings_and_no_data():
    assert fingerprint(Part("one", ARRAY)) == fingerprint(Part("other", ARRAY))
    assert fingerprint(Part("one", ARRAY)) != fingerprint(Part("one", -ARRAY))
    on_disk = SimpleNamespace(identity=("imagenet2012", "5.1.0"))
    assert fingerprint(on_disk) == fingerprint(("imagenet2012", "5.1.0"))
    with pytest.raises(TypeError, match="found in data; expected arrays and texts"):
        fingerprint({1, 2})
