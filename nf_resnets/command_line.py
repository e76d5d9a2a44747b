"""How the commands read their command line and end: help, names that were replaced, exit codes."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import io
import itertools
import os
import shutil
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

MISTAKE = 2
"""The exit code of what the user can mend."""

REPLACED = {"--network": "--model", "--learning-rate": "--peak-lr"}
"""Options that had another name, and are still read by it."""


def program() -> str:
    """The words that start this command: ``nf-resnets``, or ``python -m`` and a module."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or Path(sys.argv[0]).stem == "nf-resnets":
        return "nf-resnets"
    return f"python -m {spec.name.removesuffix('.__main__')}"


def read(command: type, prog: str = "", description: str | None = None, default: Any = None) -> Any:
    """Reads ``sys.argv`` into a dataclass; help and mistakes end the process as tyro does.

    Args:
      command: a dataclass; what stands under a field is its help.
      prog: what the help calls the command; by default how it was started.
      description: what the help says of it; by default the docstring.
      default: the options that are not given; by default the defaults of the fields.
    """
    text = inspect.getdoc(command) if description is None else description
    return tyro.cli(
        command,
        prog=prog or program(),
        description=_paragraphs(text or ""),
        args=[_renamed(word) for word in sys.argv[1:]],
        default=default,
        config=(tyro.conf.FlagCreatePairsOff,),
        registry=_REGISTRY,
    )


def choose(prog: str, commands: Mapping[str, str], what: str = "COMMAND") -> str:
    """Takes the name of a command out of ``sys.argv``.

    Args:
      prog: what stands before it.
      commands: what each does, in a few words.
      what: the usage line calls the name.

    Raises:
      SystemExit: without a name, after the list of them; for another name.
    """
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        width, indent = shutil.get_terminal_size().columns - 1, max(map(len, commands)) + 4
        print(f"usage: {prog} {what} [OPTIONS]\n")
        for each, about in commands.items():
            first = f"  {each}".ljust(indent)
            print(textwrap.fill(about, width, initial_indent=first, subsequent_indent=" " * indent))
        print(f"\n{prog} {what} --help shows its options.")
        raise SystemExit(0)
    if name not in commands:
        close = difflib.get_close_matches(name, commands, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        known = ", ".join(commands)
        print(f"{what}={name!r} found; expected one of {known}{hint}.", file=sys.stderr)
        raise SystemExit(MISTAKE)
    del sys.argv[1]
    return name


def finish(main: Callable[[], int | None], interrupted: str, unread: int = 0) -> int:
    """Runs a command, and says in one sentence why it cannot go on.

    Args:
      main: returns the exit code; a ``SystemExit`` with a sentence is bad input.
      interrupted: what is said after Ctrl-C.
      unread: the exit code when nobody reads the output any more (``| head``).

    Returns:
      The exit code: 2 for bad input.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # Names of classes and files are escaped where the terminal lacks their letters.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = main() or 0
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print(interrupted, file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return unread
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        print(leaving.code, file=sys.stderr)
        return MISTAKE


def _renamed(word: str) -> str:
    name, equals, value = word.partition("=")
    return REPLACED.get(name.replace("_", "-"), name) + equals + value


def _paragraphs(text: str) -> str:
    """A description that fits the terminal; tyro breaks the lines of options only.

    It keeps the ends of lines before those that begin with a space.
    """
    width = shutil.get_terminal_size().columns - 1
    parts = [" ".join(part.split()) for part in text.split("\n\n")]
    return "\n".join(
        textwrap.fill(part, width, initial_indent=" ", subsequent_indent=" ") for part in parts
    )


_REGISTRY = tyro.constructors.ConstructorRegistry()


@_REGISTRY.struct_rule
def _dataclass(info: tyro.constructors.StructTypeInfo) -> Any:
    """The fields of a dataclass, with helps in one line each and without what goes unsaid."""
    if not dataclasses.is_dataclass(info.type):
        return None
    types_of = typing.get_type_hints(info.type, include_extras=True)
    helps: dict[str, str] = {}
    for each in reversed(info.type.__mro__[:-1]):
        helps |= _helps(each)
    fields = []
    for field in dataclasses.fields(info.type):
        default = tyro.constructors.MISSING_NONPROP
        if isinstance(info.default, info.type):
            default = getattr(info.default, field.name)
        elif field.default is not dataclasses.MISSING:
            default = field.default
        elif field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        of = types_of[field.name]
        bare = typing.get_args(of)[0] if typing.get_origin(of) is Annotated else of
        is_group = dataclasses.is_dataclass(bare)
        how = tyro.conf.arg(
            metavar=_metavar(bare),
            help_behavior_hint=_default,
            prefix_name=False if is_group else None,
        )
        named: Any = Annotated[(of, how)]
        fields.append(
            tyro.constructors.StructFieldSpec(field.name, named, default, helps.get(field.name))
        )
    return tyro.constructors.StructConstructorSpec(info.type, tuple(fields))


def _helps(command: type) -> Mapping[str, str]:
    """What stands under the fields of a dataclass, a line each."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(command))).body
    assert isinstance(tree, ast.ClassDef)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in itertools.pairwise(tree.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }  # fmt: skip


def _metavar(of: Any) -> str | None:
    """What stands for the value of an option; None for what tyro says."""
    origin, within = typing.get_origin(of), typing.get_args(of)
    if origin in (typing.Union, types.UnionType) and type(None) in within:
        (kind,) = (each for each in within if each is not type(None))
        return _metavar(kind) or _word(kind)
    if origin is tuple and within[1:] == (...,):
        return f"{_word(within[0])} ..."
    return f"{{{','.join(within)}}}" if origin is Literal else None


def _word(kind: type) -> str:
    return "PATH" if kind is Path else getattr(kind, "__name__", str(kind)).upper()


def _default(value: str) -> str:
    return "" if value in ("", ".", "None", "False") else f"(default: {value})"


__all__ = ["MISTAKE", "REPLACED", "finish", "program", "read"]
