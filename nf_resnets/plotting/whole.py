"""A file that takes its name when it is whole: a reader sees the old one or the new one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A file beside the path to write to, which replaces what is there at the end of the block.

    What is written beside it under its name and another suffix, such as a figure's SVG, replaces
    the file of that suffix. An exception leaves what was there as it was.

    Raises:
      OSError: if it cannot be written; the path is what is named.
    """
    path = Path(path)
    new = path.with_name(f".{path.stem}-{os.getpid()}{path.suffix}")

    def written() -> list[Path]:
        return [new, *(other for other in new.parent.glob(f"{new.stem}.*") if other != new)]

    try:
        yield new
        for each in written():
            os.replace(each, path.with_suffix(each.suffix))
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            for each in written():
                each.unlink(missing_ok=True)


__all__ = ["whole_file"]
