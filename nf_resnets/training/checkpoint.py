"""Checkpoints: one file of arrays each, whose zip CRCs say whether it is whole."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np


class Checkpoints:
    """The last two checkpoints of a tree of arrays, in a folder; a damaged one is passed over."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def steps(self) -> list[int]:
        """The steps of the checkpoints that were written to their end, in rising order."""
        return sorted(int(path.stem) for path in self.folder.glob("*.npz") if path.stem.isdigit())

    def save(self, step: int, tree: Any, facts: dict[str, Any]) -> None:
        """Writes host arrays and JSON values, whole or not at all; raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / "part"
        part.unlink(missing_ok=True)  # of a process that was killed, or a link
        with open(part, "xb") as file:
            np.savez(file, facts=np.array(json.dumps(facts)), **_named(tree))
            file.flush()
            os.fsync(file.fileno())
        part.rename(self.folder / f"{step}.npz")
        kept = [each for each in self.steps() if each <= step][-2:]
        for other in {*self.steps()} - {*kept}:  # later ones are damaged, or of another run
            (self.folder / f"{other}.npz").unlink()

    def restore(self, like: Any) -> tuple[int, Any, dict[str, Any]] | None:
        """The step, tree and facts of the newest checkpoint that is whole, or None.

        Raises ValueError if its leaves are not those of ``like``.
        """
        wanted = _named(like)
        for step in reversed(self.steps()):
            try:
                arrays = self._read(step)
                facts = json.loads(arrays.pop("facts").item())
            except Exception as error:  # whatever it is, the one before may be whole
                warnings.warn(f"{self.folder}/{step}.npz is passed over: {error!r}", stacklevel=2)
                continue
            shapes = [{name: leaf.shape for name, leaf in of.items()} for of in (arrays, wanted)]
            if shapes[0] != shapes[1]:
                raise ValueError(f"{self.folder}/{step}.npz has other leaves")
            # NumPy gives bfloat16 back as bytes of the same size.
            leaves = [arrays[name].view(leaf.dtype) for name, leaf in wanted.items()]
            return step, jax.tree.unflatten(jax.tree.structure(like), leaves), facts
        return None

    def facts(self) -> dict[str, Any] | None:
        """The JSON values of the newest checkpoint that can be read."""
        for step in reversed(self.steps()):
            with contextlib.suppress(Exception):
                return dict(json.loads(self._read(step, "facts")["facts"].item()))
        return None

    def _read(self, step: int, *names: str) -> dict[str, np.ndarray]:
        """Arrays by name; reading them checks their CRCs."""
        with np.load(self.folder / f"{step}.npz") as file:
            return {name: file[name] for name in names or file.files}

    def delete(self) -> None:
        """Removes them, and their folder unless something else is in it."""
        with contextlib.suppress(OSError):
            for name in (*(f"{step}.npz" for step in self.steps()), "part", "lock"):
                (self.folder / name).unlink(missing_ok=True)
            self.folder.rmdir()


def _named(tree: Any) -> dict[str, Any]:
    """The leaves by path and dtype, so that one of another dtype is another leaf."""
    return {
        f"{jax.tree_util.keystr(path, simple=True, separator='/')} {leaf.dtype}": leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
