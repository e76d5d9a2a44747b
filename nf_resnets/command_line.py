"""How the commands read their command line, and how they end."""

from __future__ import annotations

import dataclasses
import inspect
import io
import os
import shutil
import signal
import sys
import textwrap
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import docstring_parser
import tyro

MISTAKE = 2
"""The exit code of what the user can mend."""


def program() -> str:
    """The words that start this command: ``nf-resnets``, or ``python -m`` and a module."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or Path(sys.argv[0]).stem == "nf-resnets":
        return "nf-resnets"
    return f"python -m {spec.name.removesuffix('.__main__')}"


def read(command: type, prog: str = "", description: str | None = None, default: Any = None) -> Any:
    """Reads ``sys.argv`` into a dataclass; help and mistakes end the process as tyro does.

    The help has ``prog``, by default how the command was started, and ``description``, by default
    the docstring; ``default`` is in place of the defaults of the fields.
    """
    width = shutil.get_terminal_size().columns - 1
    text = (inspect.getdoc(command) or "") if description is None else description
    # tyro breaks the lines of options only, and keeps those that begin with a space.
    wrap = textwrap.TextWrapper(width, initial_indent=" ", subsequent_indent=" ").wrap
    lines = [line for part in text.split("\n\n") for line in wrap(part)]
    return tyro.cli(
        command,
        prog=prog or program(),
        description="\n".join(lines),
        default=default,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes, tyro.conf.DisallowNone),
        registry=_REGISTRY,
    )


def finish(command: Callable[[], int | None]) -> int:
    """Runs a command, which returns its exit code, and says in one sentence why it cannot go on.

    Returns:
      The exit code: 2 for bad input (a ValueError, OSError or ImportError) or the error's
      ``exit_code``, 130 after Ctrl-C, 141 when nobody reads the output any more (``| head``).
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # Names of classes and files are escaped where the terminal lacks their letters.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = command() or 0
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("Stopped; what was finished is kept.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 0
    except (ValueError, OSError, ImportError) as error:
        print(printable(error), file=sys.stderr)
        return getattr(error, "exit_code", MISTAKE)


def printable(text: Any) -> str:
    r"""A text without what would steer a terminal: what files hold may come from anybody.

    Of the system's errors it is the file and what is wrong with it, without their number.

    Example:
      >>> printable(chr(27) + "[31m")
      '\\x1b[31m'
    """
    if isinstance(text, OSError) and text.filename is not None and text.strerror:
        text = f"{text.filename}: {text.strerror}."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


_REGISTRY = tyro.constructors.ConstructorRegistry()


@_REGISTRY.struct_rule
def _dataclass(info: tyro.constructors.StructTypeInfo) -> Any:
    """The fields of a dataclass, with helps in one paragraph each and without empty defaults."""
    if not dataclasses.is_dataclass(info.type):
        return None
    parsed = docstring_parser.parse_from_object(info.type).params
    helps = {each.arg_name: " ".join((each.description or "").split()) for each in parsed}
    hints = typing.get_type_hints(info.type, include_extras=True)
    fields = []
    for field in dataclasses.fields(info.type):
        is_given = isinstance(info.default, info.type)
        default = getattr(info.default, field.name) if is_given else field.default
        if default is dataclasses.MISSING:
            default = tyro.constructors.MISSING_NONPROP
        option = tyro.conf.arg(help_behavior_hint=_default)
        named: Any = Annotated[(hints[field.name], option)]
        spec = tyro.constructors.StructFieldSpec(field.name, named, default, helps.get(field.name))
        fields.append(spec)
    return tyro.constructors.StructConstructorSpec(info.type, tuple(fields))


def _default(value: str) -> str:
    return "" if value in ("", ".", "None", "False") else f"(default: {value})"
