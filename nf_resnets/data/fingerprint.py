"""The fingerprint of data, which is part of the key of every run that trains on it."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


def fingerprint(value: Any) -> str:
    """The SHA-256 of data: of arrays, texts and numbers, in dataclasses, mappings and sequences.

    Names of data sets are left out: a run's settings have them. A set that stays on disk is known
    by its ``identity``, its name and version.

    Raises:
      TypeError: if there is something else in it.

    Example:
      >>> fingerprint(np.zeros(2))[:8], fingerprint({"a": np.zeros(2), "b": "x"})[:8]
      ('57b9c6ee', '94a95e3e')
    """
    digest = hashlib.sha256()
    for part in _parts(value):
        digest.update(part)
    return digest.hexdigest()


def _parts(value: Any) -> Iterator[Any]:
    if hasattr(value, "identity"):
        value = value.identity
    if hasattr(value, "__array__"):
        value = np.asarray(value)
        yield f"{value.dtype}{value.shape}".encode()
        yield np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    elif dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.name != "name"]
        yield from _parts({name: getattr(value, name) for name in names})
    elif isinstance(value, Mapping):
        yield f"{{{len(value)}".encode()
        for name, each in value.items():
            yield f"{name}=".encode()
            yield from _parts(each)
    elif isinstance(value, list | tuple):
        yield f"[{len(value)}".encode()
        for each in value:
            yield from _parts(each)
    elif isinstance(value, str | bytes | int | float | None):
        yield f"{value!r};".encode()
    else:
        raise TypeError(f"a {type(value).__name__} found in data; expected arrays and texts.")


__all__ = ["fingerprint"]
