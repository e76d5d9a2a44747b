"""A network's variables as arrays by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.core
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32",
    "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
"""The dtypes that a leaf may have, by their names in safetensors files."""


def flatten(variables: Any) -> dict[str, np.ndarray]:
    """Names every leaf by its keys, joined by ``/``.

    Args:
      variables: nested dicts of arrays, such as ``{"params": ..., "batch_stats": ...}``.

    Returns:
      The leaves as NumPy arrays, in the order of their names; empty dicts are left out.

    Raises:
      TypeError: if a key is no text without ``/``, or a leaf no array of numbers; it is named.
      ValueError: if a number is not finite; the leaf is named.

    Example:
      >>> list(flatten({"params": {"head": {"kernel": np.zeros((2, 2)), "bias": np.zeros(2)}}}))
      ['params/head/bias', 'params/head/kernel']
    """
    found: dict[str, np.ndarray] = {}
    for path, value in flax.traverse_util.flatten_dict(flax.core.unfreeze(variables)).items():
        for depth, key in enumerate(path):
            if not isinstance(key, str) or not key or "/" in key:
                raise TypeError(
                    f"the key {key!r} found in {'/'.join(path[:depth]) or 'variables'!r}; expected "
                    "text without '/'."
                )
        name = "/".join(path)
        if not isinstance(value, jax.Array | np.ndarray | np.generic):
            raise TypeError(
                f"leaf {name!r} is a {type(value).__name__}; expected an array, in nested dicts."
            )
        # What is not contiguous would be written in the order of its memory.
        array = np.asarray(value, order="C")
        if array.dtype.name not in DTYPES.values():
            raise TypeError(
                f"leaf {name!r} has dtype {array.dtype}; expected one of "
                f"{', '.join(DTYPES.values())}."
            )
        refuse_not_finite(name, array)
        found[name] = array
    return dict(sorted(found.items()))


def unflatten(leaves: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Makes nested dicts of leaves that are named by their keys.

    Example:
      >>> unflatten({"params/bias": np.array(1.0)})
      {'params': {'bias': array(1.)}}
    """
    tree: dict[str, Any] = flax.traverse_util.unflatten_dict(dict(leaves), sep="/")
    return tree


def refuse_not_finite(name: str, array: np.ndarray) -> None:
    """Refuses NaN and infinities.

    Raises:
      ValueError: that names leaf, index and value.
    """
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return
    bad = ~np.isfinite(array.astype(np.float32) if array.dtype.itemsize < 4 else array)
    if bad.any():
        index = tuple(int(i) for i in np.unravel_index(np.argmax(bad), bad.shape))
        raise ValueError(
            f"leaf {name!r} has {array[index]} at {index}; expected finite numbers, as a network "
            "has that did not diverge."
        )


def refuse_other_leaves(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Compares names and shapes with those of the network; dtypes may differ.

    Args:
      found: leaves by their names.
      expected: arrays or ``jax.ShapeDtypeStruct`` by their names.

    Raises:
      ValueError: that names the first leaf in which they differ.
    """
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            raise ValueError(f"leaf {name!r} {list(expected[name].shape)} is missing.")
        if name not in expected:
            raise ValueError(f"leaf {name!r} found, which the network does not have.")
        if tuple(found[name].shape) != tuple(expected[name].shape):
            raise ValueError(
                f"leaf {name!r} has shape {list(found[name].shape)}; expected "
                f"{list(expected[name].shape)}."
            )


__all__ = ["DTYPES", "flatten", "refuse_not_finite", "refuse_other_leaves", "unflatten"]
