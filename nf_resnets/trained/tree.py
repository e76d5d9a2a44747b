"""A network's variables as arrays by name, and safetensors files of such arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.core
import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import safetensors

DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32",
    "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
"""The dtypes that a leaf may have, by their names in safetensors files."""


def flatten(variables: Any) -> dict[str, np.ndarray]:
    """Names every leaf by its keys, joined by ``/``.

    The leaves are NumPy arrays, in the order of their names; two of one name are refused.

    Example:
      >>> list(flatten({"params": {"head": {"kernel": np.zeros((2, 2)), "bias": np.zeros(2)}}}))
      ['params/head/bias', 'params/head/kernel']
    """
    flat = flax.traverse_util.flatten_dict(flax.core.unfreeze(variables))
    named: dict[str, Any] = {}
    for path, value in flat.items():
        name = "/".join(map(str, path))
        if name in named:
            raise ValueError(f"two leaves have the name {name!r}; expected one.")
        named[name] = value
    return {name: as_array(name, named[name]) for name in sorted(named)}


def unflatten(leaves: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Makes nested dicts of leaves that are named by their keys.

    Example:
      >>> unflatten({"params/bias": np.array(1.0)})
      {'params': {'bias': array(1.)}}
    """
    tree: dict[str, Any] = flax.traverse_util.unflatten_dict(dict(leaves), sep="/")
    return tree


def as_array(name: str, value: Any) -> np.ndarray:
    """A leaf of finite real numbers as a contiguous array; safetensors writes memory as it is."""
    dtype = getattr(value, "dtype", type(value).__name__)
    is_array = isinstance(value, jax.Array | np.ndarray | np.generic)
    if not is_array or getattr(dtype, "name", "") not in DTYPES.values():
        raise ValueError(f"leaf {name!r} is of {dtype}; expected an array of real numbers.")
    array = np.asarray(value, order="C")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        index = tuple(map(int, bad[0]))
        raise ValueError(
            f"leaf {name!r} has {array[index]} at {index}; expected finite numbers, as a network "
            "has that did not diverge."
        )
    return array


def refuse_no_variables(variables: Any) -> None:
    """Refuses what is no dict of collections, as the parameters alone."""
    if not isinstance(variables, Mapping) or "params" not in variables:
        is_dict = isinstance(variables, Mapping)
        keys = f" with the keys {', '.join(map(str, variables))}" if is_dict else ""
        raise ValueError(
            f"variables is a {type(variables).__name__}{keys}; expected {{'params': params}}."
        )


def refuse_other_leaves(found: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Compares names and shapes with those of the network; dtypes may differ.

    Raises:
      ValueError: that names the first leaf in which they differ.
    """
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            raise ValueError(f"leaf {name!r} {list(expected[name].shape)} is missing.")
        if name not in expected:
            raise ValueError(f"leaf {name!r} found, which the network does not have.")
        shapes = [list(each[name].shape) for each in (found, expected)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"leaf {name!r} has shape {shapes[0]}; expected {shapes[1]}.")


def tensors_of(data: bytes) -> dict[str, np.ndarray]:
    """Reads the tensors of a safetensors file, by their names.

    (safetensors' own function for NumPy does not read bfloat16.)

    Raises:
      ValueError: if one has a dtype that no network has; it is named.
      safetensors.SafetensorError: if it is no such file.
    """
    found = {}
    for name, tensor in sorted(safetensors.deserialize(data), key=lambda each: each[0]):
        if tensor["dtype"] not in DTYPES:
            raise ValueError(f"leaf {name!r} has dtype {tensor['dtype']}, which no network has.")
        dtype = jnp.dtype(DTYPES[tensor["dtype"]])
        found[name] = np.frombuffer(tensor["data"], dtype).reshape(tensor["shape"])
    return found


__all__ = [
    "DTYPES", "as_array", "flatten", "refuse_no_variables", "refuse_other_leaves", "tensors_of",
    "unflatten",
]  # fmt: skip
