"""Settings read again from a file that a sweep or a run wrote."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from nf_resnets.sweep.rows import RESULTS
from nf_resnets.sweep.settings import axis_text, checked, typed

Config = Annotated[
    Path | None,
    tyro.conf.arg(
        help="A JSON file of settings, such as a sweep's settings.json or a run's row, in place of "
        "the defaults; options that are given besides win."
    ),
]


def read_config(path: Path) -> tuple[dict[str, Sequence[Any]], dict[str, Any]]:
    """The grid and the settings in a file.

    The file is a JSON object of settings, of which a row's results are passed over; or of ``grid``
    and ``settings``, as a sweep writes it. Errors name it.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, Mapping):
            raise ValueError(f"a {type(record).__name__} found; expected an object of settings.")
        settings = record.get("settings", record)
        values = {n: typed(n, x) for n, x in settings.items() if n not in (*RESULTS, "grid")}
        return checked(record.get("grid", {}), values), values
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"--config {path}: {error}") from None


def with_config(default: Any, words: Sequence[str]) -> Any:
    """A command's options with the settings of its ``--config`` in place of the defaults.

    ``default`` is a dataclass with ``settings`` and, if it is for a sweep, ``grid``; ``words`` are
    those of the command line.

    Example:
      >>> with_config("the defaults", ["--seed", "3"])
      'the defaults'
    """
    names = [word.partition("=")[0] for word in words]
    if "--config" not in names:
        return default
    place = names.index("--config")
    text = words[place].partition("=")[2] or "".join(words[place + 1 : place + 2])
    grid, settings = read_config(Path(text).expanduser())
    for name, other in (("epochs", "steps"), ("steps", "epochs")):
        if f"--{other}" in names:
            settings.pop(name, None)
    changes: dict[str, Any] = {"settings": dataclasses.replace(default.settings, **settings)}
    if hasattr(default, "grid"):
        changes["grid"] = tuple(axis_text(name, values) for name, values in grid.items())
    elif grid:
        raise ValueError(f"--config {text} has a grid; expected the settings of one run.")
    return dataclasses.replace(default, **changes)


__all__ = ["Config", "read_config", "with_config"]
