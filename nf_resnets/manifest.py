"""Manifests: JSON that states what a file holds, and its own SHA-256.

The file of a trained network has one. It names every part with its SHA-256,
so that a flipped bit anywhere is noticed before anything that was read is used.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

DEEPEST = 50
"""Levels of values inside of values, at most; Python's own functions recurse over them."""


class ManifestError(ValueError):
    """A manifest that is not the one that was written; the text says what is wrong with it."""


def seal(manifest: Mapping[str, Any]) -> str:
    """Writes a manifest together with its SHA-256.

    Args:
      manifest: JSON values.

    Raises:
      TypeError, ValueError: if it holds what JSON does not.

    Example:
      >>> unseal(seal({"format": 1}))
      {'format': 1}
    """
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return _sealed(text)


def unseal(text: str | bytes) -> dict[str, Any]:
    """Reads what :func:`seal` wrote, byte for byte.

    Raises:
      ManifestError: if a bit of it is another one, or it holds no names with values.
    """
    try:
        text = text.decode() if isinstance(text, bytes) else text
        _, _, inner = text.partition('"manifest":')
        whole = bool(inner) and _sealed(inner[:-1]) == text
        manifest = json.loads(inner[:-1]) if whole else None
    except (UnicodeError, json.JSONDecodeError):
        whole, manifest = False, None
    except RecursionError:
        raise ManifestError("is nested too deeply") from None
    if not whole:
        raise ManifestError("does not have the SHA-256 that it states")
    if not isinstance(manifest, dict):
        raise ManifestError("holds no names with values")
    if _is_deep(manifest):
        raise ManifestError(f"is nested more than {DEEPEST} deep")
    return manifest


def digest(*parts: Any) -> str:
    """The SHA-256 of texts, bytes and arrays, one after another.

    Example:
      >>> digest("ab", b"c") == digest("abc")
      True
    """
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, str | bytes):
            found.update(part.encode() if isinstance(part, str) else part)
        else:
            found.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _sealed(text: str) -> str:
    return f'{{"sha256":"{digest(text)}","manifest":{text}}}'


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEEPEST):
        level = [
            child
            for each in level
            for child in (each.values() if isinstance(each, dict) else each)
            if isinstance(child, dict | list)
        ]
    return bool(level)


__all__ = ["DEEPEST", "ManifestError", "digest", "seal", "unseal"]
