"""How the commands read their command line, and how they end."""

from __future__ import annotations

import inspect
import io
import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
    text = (inspect.getdoc(command) or "") if description is None else description
    # tyro breaks the lines of options only, and keeps those that begin with a space.
    wrap = textwrap.TextWrapper(
        shutil.get_terminal_size().columns - 1, initial_indent=" ", subsequent_indent=" "
    ).wrap
    lines = [line for part in text.split("\n\n") for line in wrap(part)]
    return tyro.cli(
        command,
        prog=prog or program(),
        description="\n".join(lines),
        default=default,
        config=(tyro.conf.FlagCreatePairsOff, tyro.conf.OmitArgPrefixes, tyro.conf.DisallowNone),
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
