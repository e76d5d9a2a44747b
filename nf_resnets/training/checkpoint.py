"""Checkpoints that are whole or not there.

A folder of checkpoints holds::

    step_9/  step_10/            whole checkpoints, see :mod:`nf_resnets.training.checkpoint_files`
    bad-step_8/                  in quarantine: found damaged, kept for a look, never read again
    unfinished-*, removed-*, replaced-*    left over from a save that was cut; removed by the next
    lock                         locked by the process that holds the folder
    used                         a checkpoint has been saved here
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nf_resnets import places
from nf_resnets.data.order import check_whole
from nf_resnets.training import checkpoint_files as files
from nf_resnets.training import folder_lock
from nf_resnets.training.folder_lock import LOCK, READ_ONLY

USED = "used"
UNFINISHED, REMOVED, REPLACED = LEFTOVERS = ("unfinished-", "removed-", "replaced-")


class CheckpointError(Exception):
    """A checkpoint that cannot be saved, or must not be restored; one sentence says why."""


class CheckpointHeldError(CheckpointError):
    """Another process holds the checkpoints; when it ends, they can be had."""


class CheckpointWarning(UserWarning):
    """A checkpoint was found damaged, and an earlier one serves in its place."""


class Checkpoints:
    """The checkpoints of one run, in a folder of their own.

    One process at a time holds the folder, from its first ``save`` or ``restore`` until ``close``,
    the end of this object, or its own end, however that comes. Where several processes make up one
    run, process 0 alone saves and restores.

    Args:
      folder: the folder; made at the first save.
      identity: what the checkpoints belong to (model, settings): JSON values. Those of another
        identity are refused.
      keep: how many checkpoints to keep; the older ones go when a newer one is in place.

    Raises:
      ValueError: if ``keep`` is less than 1, or ``identity`` holds what JSON does not.
      TypeError: if ``keep`` is no whole number.

    Example:
      >>> import tempfile
      >>> checkpoints = Checkpoints(Path(tempfile.mkdtemp(), "run"), {"model": "wide_resnet"})
      >>> checkpoints.restore({"w": np.zeros(2)}) is None
      True
      >>> checkpoints.save(10, {"w": np.array([1.0, 2.0])}).name
      'step_10'
      >>> checkpoints.restore({"w": np.zeros(2)})
      (10, {'w': array([1., 2.])})
      >>> checkpoints.delete()
    """

    def __init__(self, folder: str | Path, identity: Mapping[str, Any], *, keep: int = 2) -> None:
        check_whole(keep=keep)
        if keep < 1:
            raise ValueError(f"keep={keep} found; expected at least 1 checkpoint.")
        self.folder = places.expanded(folder)
        self.keep = keep
        self.identity = _json_values(identity)
        self._lock: folder_lock.FolderLock | None = None
        self._release: Callable[[], Any] = lambda: None
        self._checked = False

    def save(self, step: int, tree: Any) -> Path:
        """Saves a tree, whole or not at all, and then drops the oldest beyond ``keep``.

        A checkpoint of the same step is replaced.

        Args:
          step: updates made so far; not less than that of the newest checkpoint in the folder.
          tree: any pytree of NumPy arrays and JAX arrays, on a device or not.

        Returns:
          The folder of the checkpoint.

        Raises:
          ValueError: if ``step`` is no integer of at least 0.
          TypeError: if a leaf is no array of numbers; it is named.
          CheckpointError: if it cannot be written (the earlier ones are still whole), if another
            process holds the folder, if what is there is newer or belongs to another run, or if
            this is not process 0.
        """
        if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or step < 0:
            raise ValueError(f"step={step!r} found; expected an integer of at least 0.")
        if jax.process_index() != 0:
            raise CheckpointError(
                f"save was called in process {jax.process_index()} of {jax.process_count()}; "
                "expected process 0, to which the others send what they hold."
            )
        leaves, data = files.pack(tree)
        with self._hold(f"step {step} cannot be saved", make=True):
            self._check_before_save(step)
            part = self.folder / f"{UNFINISHED}step_{step}"
            try:
                _remove(part)
                part.mkdir()
                files.write(part, int(step), self.identity, leaves, data)
                _put_in_place(part, self._step_folder(step))
            except BaseException:
                # A full disk needs the space; a failure to clear it up would hide the first one.
                with contextlib.suppress(OSError):
                    _remove_leftovers(self.folder)
                raise
            places.open_own(self.folder / USED).close()
            # What cannot be removed now is tried again after the next save.
            with contextlib.suppress(OSError):
                for old in self.steps()[: -self.keep]:
                    _remove_whole(self._step_folder(old))
        return self._step_folder(step)

    def restore(self, like: Any) -> tuple[int, Any] | None:
        """Gives the newest checkpoint that is whole; moves damaged ones out of the way.

        Args:
          like: a tree of arrays or ``jax.ShapeDtypeStruct`` of the same structure.

        Returns:
          The step, and a tree as ``like`` with new NumPy arrays for leaves; None only if nothing
          was ever saved in the folder.

        Raises:
          TypeError: if a leaf of ``like`` is no array; it is named.
          CheckpointError: if all checkpoints are damaged or gone, if the newest whole one has
            another format, identity, path, shape or dtype (the first is named), or if another
            process holds the folder.

        Warns:
          CheckpointWarning: for each damaged checkpoint, with the file and what is wrong with it;
            it is renamed to ``bad-...``, never deleted.
        """
        expected = files.leaves_of(like, abstract=True)
        if not os.path.lexists(self.folder) and self._lock is None:
            return None
        with self._hold("no checkpoint can be restored"):
            names = sorted(os.listdir(self.folder))
            bad = [name for name in names if name.startswith("bad-")]
            for name in names:
                if name.startswith("step_") and _step_of(name) is None:
                    reason = f"{self.folder / name} is not named step_<number>"
                    bad.append(self._quarantine(name, reason))
            for step in reversed(self.steps()):
                try:
                    manifest = files.verify(self._step_folder(step), step)
                    self._check_manifest(manifest, step, expected)
                    leaves = files.read_leaves(self._step_folder(step), manifest)
                except files.DamageError as damage:
                    bad.append(self._quarantine(f"step_{step}", str(damage)))
                    continue
                self._checked = True
                return step, jax.tree.unflatten(jax.tree.structure(like), leaves)
            if bad:
                raise CheckpointError(
                    f"none of the checkpoints in {self.folder} is whole ({', '.join(bad)}); "
                    "delete the folder to start this run anew."
                )
            if (self.folder / USED).exists():
                raise CheckpointError(
                    f"checkpoints were saved in {self.folder}, and none is there any more; delete "
                    "the folder to start this run anew."
                )
        return None

    def steps(self) -> list[int]:
        """The steps of the checkpoints in the folder, sorted as numbers; they are not verified."""
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        return sorted(step for name in names if (step := _step_of(name)) is not None)

    def delete(self) -> None:
        """Removes the checkpoints of a run that is done, and the folder if nothing else is in it.

        Raises:
          CheckpointError: if another process holds the folder, or it cannot be removed.
        """
        if not os.path.lexists(self.folder):
            self.close()
            return
        with self._hold("the checkpoints cannot be deleted"):
            # First the mark: a run that finds half of this done may begin anew.
            for name in (USED, *sorted(os.listdir(self.folder))):
                if name == USED or name.startswith(("step_", "bad-", *LEFTOVERS)):
                    _remove_whole(self.folder / name)
            _remove(self.folder / LOCK)
            with contextlib.suppress(OSError):
                self.folder.rmdir()
        self.close()

    def close(self) -> None:
        """Releases the folder, which another process may then hold."""
        self._release()
        self._lock = None
        self._checked = False

    def _step_folder(self, step: int) -> Path:
        return self.folder / f"step_{step}"

    @contextlib.contextmanager
    def _hold(self, failure: str, *, make: bool = False) -> Iterator[None]:
        """Holds the folder for this process; makes one sentence of what goes wrong in it."""
        try:
            lock, clean = self._lock, True
            if lock is None or not lock.holds(self.folder):
                lock = self._lock = self._acquire(failure, make)
                clean = not lock.writable
            with lock.thread:
                if not clean:
                    _remove_leftovers(self.folder)
                yield
        except folder_lock.HeldError as error:
            raise CheckpointHeldError(str(error)) from None
        except (files.UnreadableError, places.PlaceError) as error:
            raise CheckpointError(str(error)) from error.__cause__
        except OSError as error:
            raise CheckpointError(
                f"{failure} in {self.folder}: {error.strerror or error} ({_what_to_do(error)}); "
                f"the earlier checkpoints there are untouched."
            ) from error

    def _acquire(self, failure: str, make: bool) -> folder_lock.FolderLock:
        if self._lock is not None and not os.path.lexists(self.folder):
            raise CheckpointError(
                f"{failure}: the folder {self.folder} is gone, and with it the earlier "
                "checkpoints; is its disk mounted? Make the folder again to go on there."
            )
        if make and not self.folder.is_dir():
            self.folder.mkdir(parents=True, exist_ok=True)
            files.sync(self.folder.parent)
        self.close()
        lock = folder_lock.acquire(self.folder)
        # Also without close, when this object ends.
        self._release = weakref.finalize(self, folder_lock.release, lock)
        return lock

    def _check_before_save(self, step: int) -> None:
        """Refuses to mix the checkpoints of two runs, or to lose the newer ones of one."""
        steps = self.steps()
        if steps and steps[-1] > step:
            raise CheckpointError(
                f"step={step} found, but {self.folder} holds a checkpoint of step {steps[-1]}; "
                "restore it and go on from there, or delete the folder."
            )
        if steps and not self._checked:
            # A damaged one says nothing about the run; restore reports it.
            with contextlib.suppress(files.DamageError):
                manifest = files.read_manifest(self._step_folder(steps[-1]))
                self._check_manifest(manifest, steps[-1])
        self._checked = True

    def _check_manifest(
        self, manifest: dict[str, Any], step: int, expected: Sequence[files.Leaf] | None = None
    ) -> None:
        """Compares what is there with what this run is: its identity, and its leaves."""
        where = f"the checkpoint {self._step_folder(step)}"
        difference = _first_difference(manifest["identity"], self.identity)
        if difference is not None:
            name, there, here = difference
            raise CheckpointError(
                f"{where} belongs to another run: identity {name!r} is {there} there; expected "
                f"{here}."
            )
        if expected is None:
            return
        found: list[files.Leaf] = manifest["leaves"]
        for saved, leaf in zip(found, expected, strict=False):
            if saved[:3] != leaf[:3]:
                raise CheckpointError(f"{where} has {saved.text()}; expected {leaf.text()}.")
        if len(found) != len(expected):
            extra = (found[len(expected) :] or expected[len(found) :])[0]
            raise CheckpointError(
                f"{where} has {len(found)} leaves; expected {len(expected)}, and the first that "
                f"only one of them has is {extra.text()}."
            )
        if found != list(expected):
            raise files.DamageError(f"{self._step_folder(step)} has its leaves in other places")

    def _quarantine(self, name: str, reason: str) -> str:
        """Renames what is damaged, warns, and gives the name under which it is kept."""
        target, count = self.folder / f"bad-{name}", 1
        while os.path.lexists(target):
            count += 1
            target = self.folder / f"bad-{name}-{count}"
        try:
            os.rename(self.folder / name, target)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            kept, text = name, f"it stays where it is ({error.strerror})"
        else:
            kept, text = target.name, f"it is kept as {target.name}"
        warnings.warn(
            f"a damaged checkpoint is left out: {reason}; {text}.", CheckpointWarning, stacklevel=3
        )
        return kept


# --- The folder --------------------------------------------------------------------------------


def _put_in_place(part: Path, final: Path) -> None:
    replaced = final.with_name(REPLACED + final.name)
    if os.path.lexists(final):
        # After a cut between the two renames, the next save puts the replaced one back.
        _remove(replaced)
        os.rename(final, replaced)
    os.rename(part, final)
    files.sync(final.parent)
    _remove(replaced)


def _remove_leftovers(folder: Path) -> None:
    """Clears up after a save that was cut."""
    for name in sorted(os.listdir(folder)):
        if name.startswith(REPLACED):
            final = folder / name.removeprefix(REPLACED)
            if not os.path.lexists(final):
                os.rename(folder / name, final)
                continue
        if name.startswith(LEFTOVERS):
            _remove(folder / name)


def _remove_whole(path: Path) -> None:
    """Removes a checkpoint under another name, so that a half of it never looks like one."""
    if path.is_dir() and not path.is_symlink():
        away = path.with_name(REMOVED + path.name)
        _remove(away)
        os.rename(path, away)
        path = away
    _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _step_of(name: str) -> int | None:
    match = re.fullmatch(r"step_(0|[1-9][0-9]*)", name)
    return int(match[1]) if match else None


def _what_to_do(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space"
    if error.errno in READ_ONLY:
        return "allow writing there, or choose another folder"
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EEXIST):
        return "a folder must be there, or nothing"
    return "is the disk there and not full?"


# --- Identity ----------------------------------------------------------------------------------


def _json_values(identity: Mapping[str, Any]) -> Any:
    def number(value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        raise TypeError(f"a {type(value).__name__}")

    try:
        return json.loads(json.dumps(dict(identity), default=number, sort_keys=True))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"identity={identity!r} found; expected a mapping of JSON values ({error})."
        ) from error


def _first_difference(found: Any, expected: Any, name: str = "") -> tuple[str, str, str] | None:
    """The name of the first value that differs, as text (so 1 is not 1.0), or is not there."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in sorted(found.keys() | expected.keys()):
            inner = f"{name}.{key}" if name else key
            if key not in found or key not in expected:
                there, here = (repr(m[key]) if key in m else "missing" for m in (found, expected))
                return inner, there, here
            difference = _first_difference(found[key], expected[key], inner)
            if difference is not None:
                return difference
        return None
    if json.dumps(found, sort_keys=True) == json.dumps(expected, sort_keys=True):
        return None
    return name, repr(found), repr(expected)


__all__ = ["CheckpointError", "CheckpointHeldError", "CheckpointWarning", "Checkpoints"]
