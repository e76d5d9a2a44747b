"""A file that takes its name when it is whole: a reader sees the old one or the new one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A file to write to, of the path's name, which replaces what is there at the end of the block.

    What is written beside it, such as a figure's SVG, replaces the file of that name. A link is
    replaced and not followed. An exception leaves what was there as it was.

    Raises:
      OSError: if it cannot be written; the path is what is named.
    """
    path = Path(path)
    try:
        # In a folder of its own, where no link can lie under a name that is written to.
        with tempfile.TemporaryDirectory(
            prefix=".new-", dir=path.parent, ignore_cleanup_errors=True
        ) as folder:
            yield Path(folder, path.name)
            for each in Path(folder).iterdir():
                os.replace(each, path.with_name(each.name))
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


__all__ = ["whole_file"]
