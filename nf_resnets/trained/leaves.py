"""A network's variables as arrays with names, and the tree again from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

DTYPES = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint64",
    "uint32", "uint16", "uint8", "bool",
)  # fmt: skip
"""The dtypes that a leaf may have."""


def flatten(variables: Any) -> dict[str, np.ndarray]:
    """Names every leaf by its keys, joined by ``/``.

    Args:
      variables: nested dicts of arrays, such as ``{"params": ..., "batch_stats": ...}``.

    Returns:
      The leaves as NumPy arrays, in the order of their names. Empty dicts leave no trace.

    Raises:
      TypeError: if a key is no text without ``/``, or a leaf no array of numbers; it is named.
      ValueError: if a number is not finite; the leaf is named.

    Example:
      >>> list(flatten({"params": {"head": {"kernel": np.zeros((2, 2)), "bias": np.zeros(2)}}}))
      ['params/head/bias', 'params/head/kernel']
    """
    found: dict[str, np.ndarray] = {}

    def visit(name: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, child in value.items():
                if not isinstance(key, str) or not key or "/" in key:
                    raise TypeError(
                        f"the key {key!r} found in {name or 'variables'!r}; expected text without "
                        "'/'."
                    )
                visit(f"{name}/{key}" if name else key, child)
            return
        if not isinstance(value, jax.Array | np.ndarray | np.generic):
            raise TypeError(
                f"leaf {name!r} is a {type(value).__name__}; expected an array, in nested dicts."
            )
        # What is not contiguous would be written in the order of its memory.
        array = np.asarray(value, order="C")
        if array.dtype.name not in DTYPES:
            raise TypeError(
                f"leaf {name!r} has dtype {array.dtype}; expected one of {', '.join(DTYPES)}."
            )
        refuse_not_finite(name, array)
        found[name] = array

    visit("", variables)
    return dict(sorted(found.items()))


def refuse_not_finite(name: str, array: np.ndarray) -> None:
    """Refuses NaN and infinities.

    Raises:
      ValueError: that names leaf, place and value.
    """
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return
    bad = ~np.isfinite(array.astype(np.float32) if array.dtype.itemsize < 4 else array)
    if bad.any():
        place = tuple(int(i) for i in np.unravel_index(np.argmax(bad), bad.shape))
        raise ValueError(
            f"leaf {name!r} has {array[place]} at {place}; expected finite numbers, as a network "
            "has that did not diverge."
        )


def unflatten(leaves: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Makes nested dicts of leaves that are named by their keys.

    Example:
      >>> unflatten({"params/bias": np.array(1.0)})
      {'params': {'bias': array(1.)}}
    """
    tree: dict[str, Any] = {}
    for name, array in leaves.items():
        *outer, last = name.split("/")
        branch = tree
        for key in outer:
            branch = branch.setdefault(key, {})
        branch[last] = array
    return tree


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
