"""A network's settings as JSON values, and the network again from them."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from nf_resnets import schemes
from nf_resnets.models.architectures import CLASSES, architecture_of

LARGEST = 1 << 20
"""Layers, channels, tokens, classes: beyond it a file is taken for a forged one."""

MOST_VALUES = 16
"""Of a field, such as the widths of a classifier: each may be a layer that is traced by itself."""

_OF_FLAX = ("parent", "name")


def to_json(model: Any) -> dict[str, Any]:
    """Writes down the fields that a network of this library is made from.

    A scheme is written by its name.

    Raises:
      ValueError: if it is a network of another class, or its scheme is not registered.

    Example:
      >>> from nf_resnets import models
      >>> to_json(models.WideResNet(depth=10, scheme="skipinit"))["fields"]["scheme"]
      'skipinit'
    """
    kind = architecture_of(model).network.__name__
    names = [field.name for field in dataclasses.fields(model) if field.name not in _OF_FLAX]
    fields = {name: _value_to_json(f"{kind}.{name}", getattr(model, name)) for name in names}
    return {"class": kind, "fields": fields}


def _value_to_json(name: str, value: Any) -> Any:
    if isinstance(value, schemes.Scheme):
        if value.name not in schemes.names() or schemes.get(value.name) != value:
            raise ValueError(
                f"{name}={value.name!r} is no registered scheme; expected one that "
                "nf_resnets.schemes.register knows."
            )
        return value.name
    if name.endswith(".dtype"):
        return jnp.dtype(value).name
    if isinstance(value, tuple):
        return [_value_to_json(name, each) for each in value]
    return value


def from_json(settings: Mapping[str, Any]) -> Any:
    """Makes the network again; the settings may be anybody's.

    Raises:
      ValueError: if there is no such class or scheme, or a size is one that no network has.
      TypeError: if there is no such field; a newer version may have written it.
    """
    name, values = str(settings["class"]), dict(settings["fields"])
    if name not in CLASSES:
        raise ValueError(f"class {reprlib.repr(name)} found; expected one of {', '.join(CLASSES)}.")
    if "dtype" in values:
        if values["dtype"] not in ("float32", "bfloat16", "float16", "float64"):
            raise ValueError(f"dtype={reprlib.repr(values['dtype'])} found; expected a float's.")
        values["dtype"] = getattr(jnp, values["dtype"])
    for field, value in values.items():
        sizes = value if isinstance(value, list) else [value]
        if len(sizes) > MOST_VALUES:
            raise ValueError(
                f"{name}.{field} has {len(sizes):,} values; expected at most {MOST_VALUES}."
            )
        least = 0 if field == "padding_id" else 1
        if not all(least <= size <= LARGEST for size in sizes if type(size) is int) or not all(
            abs(size) <= LARGEST for size in sizes if type(size) is float
        ):
            raise ValueError(
                f"{name}.{field}={reprlib.repr(value)} found; expected {least} to {LARGEST:,}."
            )
        values[field] = tuple(value) if isinstance(value, list) else value
    return CLASSES[name](**values)


__all__ = ["from_json", "to_json"]
