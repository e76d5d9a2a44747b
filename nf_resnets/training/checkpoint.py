"""Checkpoints that are whole or not there: Orbax writes the arrays, a manifest vouches for them.

A folder of checkpoints holds::

    step_9/  step_10/            whole checkpoints
        arrays/                  all leaves, one after another, as one Orbax array of bytes
        manifest.json            written last: identity, leaves, SHA-256 of every file
    bad-step_8/                  in quarantine: found damaged, kept for a look, never read again
    unfinished-*, removed-*      left over from a save that was cut; swept by the next one
    lock                         names the process that holds the folder; the lock dies with it
    used                         a checkpoint has been saved here

Orbax survives a kill at every moment, but loads a flipped bit without a word; so every file is
hashed when it has been written, and checked before anything read from it is believed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import math
import os
import re
import shutil
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import IO, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import places

FORMAT = 1
"""The version of the layout above; a checkpoint of another one is refused."""

MANIFEST = "manifest.json"
ARRAYS = "arrays"
LOCK = "lock"
USED = "used"

# One array costs a third of the time of one for each leaf, and as bytes every dtype comes back bit
# for bit. Leaves start at multiples of 64 bytes, as XLA likes its buffers.
BYTES = "leaves"
ALIGNMENT = 64
# Bytes of a file, at most: Orbax cuts a larger array into equal parts of no more.
CHUNK = 1 << 26

# What a damaged disk or tree of folders answers. Anything else, such as a missing permission or too
# many open files, says nothing about the checkpoint, which then is left where it is.
DAMAGE = {errno.EIO, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EBADMSG}
READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


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
    run, the leader alone saves and restores.

    Args:
      folder: the folder; made at the first save.
      identity: what the checkpoints belong to (model, settings): JSON values. Those of another
        identity are refused.
      keep: how many checkpoints to keep; the older ones go when a newer one is in place.

    Raises:
      ValueError: if ``keep`` is less than 1, or ``identity`` holds what JSON does not.

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
        if keep < 1:
            raise ValueError(f"keep={keep} found; expected at least 1 checkpoint.")
        self.folder = Path(folder)
        self.keep = keep
        self.identity = _json_values(identity)
        self._lock: _Lock | None = None
        self._let_go: Callable[[], Any] = lambda: None
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
          TypeError: if a leaf is no array of numbers; it is named.
          CheckpointError: if it cannot be written (the earlier ones are still whole), if another
            process holds the folder, or if what is there is newer or belongs to another run.
        """
        if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or step < 0:
            raise ValueError(f"step={step!r} found; expected an integer of at least 0.")
        if jax.process_index() != 0:
            raise CheckpointError(
                f"save was called in process {jax.process_index()} of {jax.process_count()}; "
                "expected process 0, to which the others send what they hold."
            )
        packed = _pack(tree)
        with self._hold(f"step {step} cannot be saved", make=True):
            self._check_before_save(step)
            part = self.folder / f"{UNFINISHED}step_{step}"
            try:
                _remove(part)
                part.mkdir()
                _write_arrays(part / ARRAYS, packed.data)
                _write_manifest(part, int(step), self.identity, packed)
                _put_in_place(part, self._step_folder(step))
            except BaseException:
                # A full disk needs the space; a failure to clear it up would hide the first one.
                with contextlib.suppress(OSError):
                    _sweep(self.folder)
                raise
            (self.folder / USED).touch()
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
        wanted = _describe(like, abstract=True)
        if not os.path.lexists(self.folder) and self._lock is None:
            return None
        with self._hold("no checkpoint can be restored"):
            bad = [name for name in _names(self.folder) if name.startswith("bad-")]
            for name in _names(self.folder):
                if name.startswith("step_") and _step_of(name) is None:
                    reason = f"{self.folder / name} is not named step_<number>"
                    bad.append(self._quarantine(name, reason))
            for step in reversed(self.steps()):
                try:
                    manifest = _verify(self._step_folder(step), step)
                    self._check_manifest(manifest, step, wanted)
                    leaves = _read_leaves(self._step_folder(step), manifest)
                except _DamageError as damage:
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
        names = _names(self.folder) if self.folder.is_dir() else []
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
            for name in (USED, *_names(self.folder)):
                if name == USED or name.startswith(("step_", "bad-", *LEFTOVERS)):
                    _remove_whole(self.folder / name)
            _remove(self.folder / LOCK)
            with contextlib.suppress(OSError):
                self.folder.rmdir()
        self.close()

    def close(self) -> None:
        """Lets go of the folder, which another process may then hold."""
        self._let_go()
        self._lock = None
        self._checked = False

    def _step_folder(self, step: int) -> Path:
        return self.folder / f"step_{step}"

    @contextlib.contextmanager
    def _hold(self, failure: str, *, make: bool = False) -> Iterator[None]:
        """Holds the folder for this process; makes one sentence of what the disk answers."""
        try:
            lock, swept = self._lock, True
            if lock is None or not lock.holds(self.folder):
                lock = self._lock = self._take(failure, make)
                swept = not lock.writable
            with lock.thread:
                if not swept:
                    _sweep(self.folder)
                yield
        except OSError as error:
            raise CheckpointError(
                f"{failure} in {self.folder}: {error.strerror or error} ({_what_to_do(error)}); "
                f"the earlier checkpoints there are untouched."
            ) from error

    def _take(self, failure: str, make: bool) -> _Lock:
        if self._lock is not None and not os.path.lexists(self.folder):
            raise CheckpointError(
                f"{failure}: the folder {self.folder} is gone, and with it the earlier "
                "checkpoints; is its disk mounted? Make the folder again to go on there."
            )
        if make and not self.folder.is_dir():
            self.folder.mkdir(parents=True, exist_ok=True)
            _sync(self.folder.parent)
        self.close()
        lock = _take(self.folder)
        # Also without close, when this object ends.
        self._let_go = weakref.finalize(self, _let_go, lock)
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
            # A damaged one says nothing; to find that out is the business of restore.
            with contextlib.suppress(_DamageError):
                self._check_manifest(_read_manifest(self._step_folder(steps[-1])), steps[-1])
        self._checked = True

    def _check_manifest(
        self, manifest: dict[str, Any], step: int, wanted: Sequence[_Leaf] | None = None
    ) -> None:
        """Compares what is there with what this run is: its identity, and its leaves."""
        where = f"the checkpoint {self._step_folder(step)}"
        difference = _first_difference(manifest["identity"], self.identity)
        if difference is not None:
            name, found, expected = difference
            raise CheckpointError(
                f"{where} belongs to another run: identity {name!r} is {found} there; expected "
                f"{expected}."
            )
        if wanted is None:
            return
        saved = [_Leaf.of_json(leaf) for leaf in manifest["leaves"]]
        for there, here in zip(saved, wanted, strict=False):
            if there[:3] != here[:3]:
                raise CheckpointError(f"{where} has {there.text()}; expected {here.text()}.")
        if len(saved) != len(wanted):
            extra = (saved[len(wanted) :] or wanted[len(saved) :])[0]
            raise CheckpointError(
                f"{where} has {len(saved)} leaves; expected {len(wanted)}, and the first that only "
                f"one of them has is {extra.text()}."
            )
        if saved != list(wanted):
            raise _DamageError(f"{self._step_folder(step)} has its leaves in other places")

    def _quarantine(self, name: str, reason: str) -> str:
        """Renames what is damaged, warns, and gives the name under which it is kept."""
        place, count = self.folder / f"bad-{name}", 1
        while os.path.lexists(place):
            count += 1
            place = self.folder / f"bad-{name}-{count}"
        try:
            os.rename(self.folder / name, place)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            kept, text = name, f"it stays where it is ({error.strerror})"
        else:
            kept, text = place.name, f"it is kept as {place.name}"
        warnings.warn(
            f"a damaged checkpoint is left out: {reason}; {text}.", CheckpointWarning, stacklevel=3
        )
        return kept


# --- The leaves of a tree ----------------------------------------------------------------------


class _Leaf(NamedTuple):
    """What the manifest says of a leaf; the bytes from ``offset`` on are its own."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    offset: int

    @classmethod
    def of_json(cls, values: Sequence[Any]) -> _Leaf:
        path, shape, dtype, offset = values
        return cls(path, tuple(shape), dtype, offset)

    def text(self) -> str:
        return f"{self.path or 'the one leaf'} {self.dtype}{list(self.shape)}"


class _Packed(NamedTuple):
    leaves: list[_Leaf]
    data: np.ndarray


def _describe(tree: Any, *, abstract: bool = False) -> list[_Leaf]:
    """Lists path, shape and dtype of all leaves, and where each is put among the bytes."""
    kinds: tuple[Any, ...] = (np.ndarray, np.generic, jax.Array)
    if abstract:
        kinds += (jax.ShapeDtypeStruct,)
    leaves, offset = [], 0
    for path, value in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if not isinstance(value, kinds):
            raise TypeError(
                f"the leaf {name!r} is a {type(value).__name__}; expected a NumPy or JAX array."
            )
        dtype = _dtype(name, value.dtype)
        leaves.append(_Leaf(name, tuple(map(int, value.shape)), dtype.name, offset))
        size = dtype.itemsize * math.prod(value.shape)
        offset += -(-size // ALIGNMENT) * ALIGNMENT
    return leaves


def _dtype(name: str, found: Any) -> np.dtype:
    if jnp.issubdtype(found, jax.dtypes.prng_key):
        raise TypeError(f"the leaf {name!r} is a PRNG key; expected its jax.random.key_data.")
    dtype = np.dtype(found)
    if dtype.kind in "OSUMm" or dtype.type is np.void or not dtype.isnative:
        raise TypeError(
            f"the leaf {name!r} has dtype {dtype.str}; expected numbers or booleans in this "
            "machine's byte order."
        )
    return dtype


def _pack(tree: Any) -> _Packed:
    leaves = _describe(tree)
    values = jax.tree.leaves(tree)
    for leaf, value in zip(leaves, values, strict=True):
        if isinstance(value, jax.Array) and not (
            value.is_fully_addressable or value.is_fully_replicated
        ):
            raise TypeError(
                f"the leaf {leaf.path!r} is spread over several processes; expected a whole array, "
                "gathered on this one."
            )
    # All transfers from the devices are under way before the first is waited for.
    arrays = [np.asarray(value) for value in jax.device_get(values)]
    size = max(
        (leaf.offset + array.nbytes for leaf, array in zip(leaves, arrays, strict=True)), default=0
    )
    data = np.zeros(_padded(size), np.uint8)
    for leaf, array in zip(leaves, arrays, strict=True):
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        data[leaf.offset : leaf.offset + flat.size] = flat
    return _Packed(leaves, data)


def _padded(size: int) -> int:
    unit = CHUNK if size > CHUNK else ALIGNMENT
    return -(-max(size, 1) // unit) * unit


def _unpack(leaf: _Leaf, data: np.ndarray) -> np.ndarray:
    dtype = np.dtype(leaf.dtype)
    size = dtype.itemsize * math.prod(leaf.shape)
    # A copy, so that no leaf keeps the bytes of all alive.
    return data[leaf.offset : leaf.offset + size].view(dtype).reshape(leaf.shape).copy()


# --- Writing and reading one checkpoint --------------------------------------------------------


class _DamageError(Exception):
    """A checkpoint is not what was written: which file, and how one sees it."""


@functools.cache
def _orbax() -> tuple[Any, Any]:
    # Imported at the first use: a run without checkpoints need not spend the time.
    import orbax.checkpoint as ocp

    # The handler alone: what Orbax has around it (temporary names, barriers, threads) takes longer
    # than writing, and is done here. OCDBT and Zarr 3 make more files of one array.
    return ocp, ocp.PyTreeCheckpointHandler(use_ocdbt=False)


def _write_arrays(folder: Path, data: np.ndarray) -> None:
    ocp, handler = _orbax()
    folder.mkdir()
    save_args = {BYTES: ocp.SaveArgs(chunk_byte_size=CHUNK)}
    try:
        handler.save(folder, args=ocp.args.PyTreeSave({BYTES: data}, save_args=save_args))
    except OSError:
        raise
    except Exception as error:
        # TensorStore answers a full disk with a ValueError that ends in the number of the error.
        code = re.search(r"os_error_code='(\d+)'", str(error))
        number = int(code[1]) if code else errno.EIO
        raise OSError(number, os.strerror(number), str(folder)) from error


def _write_manifest(folder: Path, step: int, identity: Any, packed: _Packed) -> None:
    ocp, _ = _orbax()
    files = _files(folder)
    manifest = {
        "format": FORMAT,
        "step": step,
        "identity": identity,
        "versions": {"jax": jax.__version__, "orbax-checkpoint": ocp.__version__},
        "files": {name: _size_and_digest(folder / name) for name in files},
        "content": hashlib.sha256(packed.data.data).hexdigest(),
        "leaves": packed.leaves,
    }
    with open(folder / MANIFEST, "xb") as file:
        file.write(_manifest_bytes(manifest))
    paths = [folder / name for name in (MANIFEST, *files)]
    _sync(*paths, *{path.parent for path in paths})


def _manifest_bytes(manifest: Any) -> bytes:
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    return f'{{"sha256":"{digest}","manifest":{text}}}\n'.encode()


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    with _damage(path):
        data = places.read_file(path)
    try:
        manifest = json.loads(data)["manifest"]
        # Byte for byte what would be written, so that no flipped bit is left unseen.
        whole = _manifest_bytes(manifest) == data and isinstance(manifest, dict)
    except (ValueError, KeyError, TypeError, RecursionError):
        whole = False
    if not whole:
        raise _DamageError(f"{path} does not have the SHA-256 that it states")
    # Every format has this file, so that an older one is told from a damaged one.
    if manifest.get("format") != FORMAT:
        raise CheckpointError(
            f"the checkpoint {folder} has format {manifest.get('format')!r}; expected {FORMAT}, "
            "which this version of nf_resnets writes."
        )
    for name, fits in _PARTS.items():
        if not fits(manifest.get(name)):
            raise _DamageError(f"{path} has something else in place of {name!r}")
    return manifest


def _is_whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_list_of(value: Any, *kinds: type) -> bool:
    return isinstance(value, list) and [type(each) for each in value] == [*kinds]


def _is_leaf(value: Any) -> bool:
    is_list = _is_list_of(value, str, list, str, int)
    return is_list and all(map(_is_whole, [*value[1], value[3]]))


# What a manifest holds. One that was forged vouches for itself, so that nothing is taken on trust.
_PARTS: dict[str, Callable[[Any], bool]] = {
    "step": _is_whole,
    "identity": lambda value: isinstance(value, dict),
    "versions": lambda value: isinstance(value, dict) and "orbax-checkpoint" in value,
    "content": lambda value: isinstance(value, str),
    "files": lambda value: (
        isinstance(value, dict) and all(_is_list_of(each, int, str) for each in value.values())
    ),
    "leaves": lambda value: isinstance(value, list) and all(map(_is_leaf, value)),
}


def _verify(folder: Path, step: int) -> dict[str, Any]:
    """Checks every file of a checkpoint against its manifest, which it returns."""
    manifest = _read_manifest(folder)
    if manifest["step"] != step:
        raise _DamageError(f"{folder / MANIFEST} is that of step {manifest['step']}")
    for name, expected in manifest["files"].items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise _DamageError(f"{folder / MANIFEST} names {name!r}, which is none of its files")
        with _damage(folder / name):
            found = _size_and_digest(folder / name)
        if found[0] != expected[0]:
            raise _DamageError(
                f"{folder / name} has {found[0]} bytes, its manifest says {expected[0]}"
            )
        if found != expected:
            raise _DamageError(f"{folder / name} does not have the SHA-256 of its manifest")
    return manifest


def _read_leaves(folder: Path, manifest: dict[str, Any]) -> list[np.ndarray]:
    ocp, handler = _orbax()
    leaves = [_Leaf.of_json(leaf) for leaf in manifest["leaves"]]
    _refuse_size(folder / ARRAYS / BYTES / ".zarray", leaves)
    restore_args = {BYTES: ocp.RestoreArgs(restore_type=np.ndarray)}
    try:
        data = handler.restore(
            folder / ARRAYS, args=ocp.args.PyTreeRestore(restore_args=restore_args)
        )[BYTES]
    except Exception as error:
        raise CheckpointError(
            f"the files of {folder} are whole, but Orbax {ocp.__version__} cannot read them "
            f"(written by {manifest['versions']['orbax-checkpoint']}): "
            f"{' '.join(str(error).split())}"
        ) from error
    if hashlib.sha256(data.data).hexdigest() != manifest["content"]:
        raise _DamageError(f"{folder / ARRAYS} does not give the bytes that were saved")
    return [_unpack(leaf, data) for leaf in leaves]


def _refuse_size(path: Path, leaves: Sequence[_Leaf]) -> None:
    """Refuses an array of another size than the leaves', for which there may be no memory."""
    ends = (leaf.offset + np.dtype(leaf.dtype).itemsize * math.prod(leaf.shape) for leaf in leaves)
    size = _padded(max(ends, default=0))
    with _damage(path):
        data = places.read_file(path)
    try:
        array = json.loads(data)
        found = array["shape"], array["dtype"], array["chunks"]
        fits = found[:2] == ([size], "|u1") and found[2][0] <= size
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        fits = False
    if not fits:
        raise _DamageError(f"{path} is not that of the {size:,} bytes of its leaves")


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in DAMAGE:
            raise
        raise _DamageError(f"{path} cannot be read ({error.strerror})") from error
    except places.PlaceError as error:
        raise _DamageError(str(error).removesuffix(".")) from error


def _files(folder: Path) -> list[str]:
    """All files below a folder, by their names relative to it."""
    return sorted(
        os.path.relpath(os.path.join(place, name), folder)
        for place, _, names in os.walk(folder)
        for name in names
    )


def _size_and_digest(path: Path) -> list[Any]:
    with places.open_file(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return [os.fstat(file.fileno()).st_size, digest]


# --- The folder --------------------------------------------------------------------------------

UNFINISHED, REMOVED, REPLACED = LEFTOVERS = ("unfinished-", "removed-", "replaced-")


def _put_in_place(part: Path, final: Path) -> None:
    replaced = final.with_name(REPLACED + final.name)
    if os.path.lexists(final):
        # Cut between the two renames, the one that was replaced is put back by the next sweep.
        _remove(replaced)
        os.rename(final, replaced)
    os.rename(part, final)
    _sync(final.parent)
    _remove(replaced)


def _sweep(folder: Path) -> None:
    """Clears up after a save that was cut."""
    for name in _names(folder):
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


def _names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def _step_of(name: str) -> int | None:
    match = re.fullmatch(r"step_(0|[1-9][0-9]*)", name)
    return int(match[1]) if match else None


def _sync(*paths: Path) -> None:
    """Waits until the contents of files, and the names in folders, are on the disk."""

    def sync(path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    # At once: a journal writes down what waits together in one go, and one after another takes ten
    # times as long.
    with futures.ThreadPoolExecutor(len(paths)) as pool:
        list(pool.map(sync, paths))


def _what_to_do(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space"
    if error.errno in READ_ONLY:
        return "allow writing there, or choose another folder"
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EEXIST):
        return "a folder must be there, or nothing"
    return "is the disk there and not full?"


# --- One process at a time ---------------------------------------------------------------------


class _Lock:
    """A lock on a folder that the system takes back when the process ends, however it ends.

    It belongs to the process and not to what it forks, and all ``Checkpoints`` of a process that
    name one folder share it.
    """

    def __init__(self, folder: Path, place: tuple[int, int]) -> None:
        self.place = place
        self.process = os.getpid()
        self.thread = threading.RLock()
        self.users = 0
        self.file: IO[bytes] | None = None
        try:
            file = open(folder / LOCK, "a+b", buffering=0)  # noqa: SIM115
        except OSError as error:
            # What cannot be written needs no protection from writers.
            if error.errno not in READ_ONLY:
                raise
            return
        try:
            _lock_file(file, folder)
        except BaseException:
            file.close()
            raise
        self.file = file

    @property
    def writable(self) -> bool:
        return self.file is not None

    def holds(self, folder: Path) -> bool:
        try:
            here = self.place == _place(folder) and self.process == os.getpid()
            return here and self.writable
        except OSError:
            return False


def _lock_file(file: IO[bytes], folder: Path) -> None:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        file.seek(0)
        holder = file.read(100).decode(errors="replace").strip() or "another process"
        raise CheckpointHeldError(
            f"the checkpoints in {folder} are in use by {holder}; wait for it to end, or end it."
        ) from None
    if not os.path.samestat(os.fstat(file.fileno()), os.stat(folder / LOCK)):
        raise CheckpointHeldError(f"the checkpoints in {folder} are just being deleted; try again.")
    # Who holds it is for people to read; a full disk need not hear of it.
    with contextlib.suppress(OSError):
        file.truncate(0)
        file.write(f"process {os.getpid()} on {os.uname().nodename}\n".encode())


# Closing any descriptor of a file gives up what this process has locked of it, so that each folder
# has one; the guard keeps it from being closed while another thread is taking it anew.
_LOCKS: dict[tuple[int, int], _Lock] = {}
_GUARD = threading.RLock()


def _take(folder: Path) -> _Lock:
    with _GUARD:
        place = _place(folder)
        lock = _LOCKS.get(place)
        if lock is None or not lock.holds(folder):
            lock = _LOCKS[place] = _Lock(folder, place)
        lock.users += 1
        return lock


def _let_go(lock: _Lock) -> None:
    with _GUARD:
        lock.users -= 1
        if lock.users == 0:
            if _LOCKS.get(lock.place) is lock:
                del _LOCKS[lock.place]
            if lock.file is not None:
                lock.file.close()


def _place(folder: Path) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


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


__all__ = ["FORMAT", "CheckpointError", "CheckpointHeldError", "CheckpointWarning", "Checkpoints"]
