"""A network's settings as JSON values, and the network again from them."""

from __future__ import annotations

import dataclasses
import difflib
import reprlib
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from nf_resnets import schemes
from nf_resnets.models.architectures import CLASSES, architecture_of

DTYPES = ("float32", "bfloat16", "float16", "float64")
"""What a network may compute in."""

LARGEST = 1 << 20
"""Layers, channels, tokens, classes: beyond it a file is taken for a forged one."""

_OF_FLAX = ("parent", "name")


def to_json(model: Any) -> dict[str, Any]:
    """Writes down all that a network of this library is made from.

    A registered scheme is written by its name, another one by its anatomy, if that is made of plain
    values.

    Args:
      model: a network of :mod:`nf_resnets.models`.

    Raises:
      ValueError: if it is a network of another class, or a field cannot be written; it is named.

    Example:
      >>> from nf_resnets import models
      >>> to_json(models.WideResNet(depth=10, scheme="skipinit"))["fields"]["scheme"]
      'skipinit'
    """
    kind = architecture_of(model).network.__name__
    fields = {
        field.name: _value_to_json(f"{kind}.{field.name}", getattr(model, field.name))
        for field in dataclasses.fields(model)
        if field.name not in _OF_FLAX
    }
    return {"class": kind, "fields": fields}


def from_json(settings: Mapping[str, Any]) -> Any:
    """Makes the network again.

    Raises:
      ValueError: if there is no such class, field or scheme, or a value is not one for it.
    """
    kind, fields = settings.get("class"), settings.get("fields")
    if not isinstance(kind, str) or kind not in CLASSES:
        close = difflib.get_close_matches(str(kind), CLASSES, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(
            f"a network of class {reprlib.repr(kind)} found; expected one of "
            f"{', '.join(CLASSES)}{hint}."
        )
    if not isinstance(fields, Mapping):
        raise ValueError(
            f"fields={reprlib.repr(fields)} found for class {kind}; expected names and values."
        )
    known = {field.name for field in dataclasses.fields(CLASSES[kind])} - set(_OF_FLAX)
    unknown = sorted(set(fields) - known)
    if unknown:
        raise ValueError(
            f"field {unknown[0]!r} found, which {kind} of this version does not have; a newer one "
            "may have written it."
        )
    values = {name: _value_of_json(name, value) for name, value in fields.items()}
    refuse_other_types(CLASSES[kind], values)
    for name, value in values.items():
        sizes = value if isinstance(value, tuple) else (value,)
        least = 0 if name == "padding_id" else 1
        if any(type(size) is int and not least <= size <= LARGEST for size in sizes):
            raise ValueError(
                f"{kind}.{name}={reprlib.repr(value)} found; expected {least} to {LARGEST:,}."
            )
    try:
        return CLASSES[kind](**values)
    except TypeError as error:
        raise ValueError(f"the fields of {kind} do not make one: {error}.") from None


def refuse_other_types(kind: type, values: Mapping[str, Any]) -> None:
    """Compares the values that a dataclass is to be made of with the types of its fields.

    Raises:
      ValueError: that names the first field in which they differ.
    """
    hints = typing.get_type_hints(kind)
    for name, value in values.items():
        if name in hints and not _is_of(value, hints[name]):
            plain = isinstance(hints[name], type) and typing.get_origin(hints[name]) is None
            expected = hints[name].__name__ if plain else str(hints[name]).replace("typing.", "")
            raise ValueError(
                f"{kind.__name__}.{name}={reprlib.repr(value)} found; expected {expected}."
            )


def _is_of(value: Any, hint: Any) -> bool:
    """Whether a value that was read from JSON is of a type; an integer is a float, too."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return any(type(value) is type(each) and value == each for each in arguments)
    if origin in (typing.Union, types.UnionType):
        return any(_is_of(value, each) for each in arguments)
    if origin is tuple:
        each = arguments[:1] * len(value) if arguments[-1] is ... else arguments
        return type(value) is tuple and len(value) == len(each) and all(map(_is_of, value, each))
    if hint is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    return hint is Any or (isinstance(hint, type) and type(value) is hint)


def _value_to_json(name: str, value: Any) -> Any:
    if isinstance(value, schemes.Scheme):
        return _scheme_to_json(name, value)
    if name.endswith(".dtype"):
        dtype = jnp.dtype(value).name
        if dtype not in DTYPES:
            raise ValueError(f"{name}={dtype} found; expected one of {', '.join(DTYPES)}.")
        return dtype
    if isinstance(value, tuple):
        return [_value_to_json(name, each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(
        f"{name}={value!r} found; expected numbers, text, or tuples of them, which a file can hold."
    )


def _value_of_json(name: str, value: Any) -> Any:
    if name == "dtype":
        if not isinstance(value, str) or value not in DTYPES:
            raise ValueError(
                f"dtype={reprlib.repr(value)} found; expected one of {', '.join(DTYPES)}."
            )
        return getattr(jnp, value)
    if name == "scheme" and isinstance(value, Mapping):
        return _scheme_of_json(value)
    return tuple(value) if isinstance(value, list) else value


def _scheme_to_json(name: str, scheme: schemes.Scheme) -> Any:
    if scheme.name in schemes.names() and schemes.get(scheme.name) == scheme:
        return scheme.name
    anatomy = {
        field.name: getattr(scheme.anatomy, field.name)
        for field in dataclasses.fields(scheme.anatomy)
    }
    for part, value in anatomy.items():
        if callable(value):
            raise ValueError(
                f"{name}={scheme.name!r} is no registered scheme, and {part} of its anatomy is a "
                "function, which a file cannot hold; register it with nf_resnets.schemes.register."
            )
    return {
        "name": scheme.name,
        "title": scheme.title,
        "reference": scheme.reference,
        "fits": sorted(scheme.fits),
        "anatomy": anatomy,
    }


def _scheme_of_json(value: Mapping[str, Any]) -> schemes.Scheme:
    name = value.get("name")

    def init(*arguments: Any, **options: Any) -> Any:
        raise ValueError(
            f"scheme={name!r} was read from a file, which holds its anatomy and not its "
            "initialisation; expected a registered scheme."
        )

    try:
        texts = {part: value[part] for part in ("name", "title", "reference")}
        refuse_other_types(schemes.Scheme, texts)
        refuse_other_types(schemes.Anatomy, value["anatomy"])
        return schemes.Scheme(
            **texts,
            init=init,
            anatomy=schemes.Anatomy(**value["anatomy"]),
            fits=frozenset(value["fits"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"scheme={reprlib.repr(name)} is not whole: {error}.") from None


__all__ = ["DTYPES", "from_json", "to_json"]
