"""The files of one checkpoint: Orbax writes the arrays, a manifest holds their SHA-256.

A checkpoint is a folder::

    arrays/          all leaves, one after another, as one Orbax array of bytes
    manifest.json    written last: step, identity, leaves, SHA-256 of every file

Orbax survives a kill at every moment, but loads a flipped bit without a word. So every file is
hashed once it is written, and checked before anything that is read from it is used.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import manifest as manifests
from nf_resnets import places

FORMAT = 1
"""The version of the layout above; a checkpoint of another one is refused."""

MANIFEST = "manifest.json"
ARRAYS = "arrays"

# One array takes a third of the time of one for each leaf, and as bytes every dtype comes back bit
# for bit. Leaves start at multiples of 64 bytes, as XLA aligns its buffers.
BYTES = "leaves"
ALIGNMENT = 64
# Bytes of a file, at most: Orbax cuts a larger array into equal parts of no more.
CHUNK = 1 << 26

# What a damaged disk or tree of folders answers. Anything else, such as a missing permission, says
# nothing about the checkpoint, which is left where it is.
DAMAGE = {errno.EIO, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EBADMSG}


class DamageError(Exception):
    """A checkpoint is not what was written; the text names the file and what is wrong with it."""


class UnreadableError(Exception):
    """A whole checkpoint that this version cannot read; one sentence says why."""


class Leaf(NamedTuple):
    """A leaf in the manifest; its bytes begin at ``offset``."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    offset: int

    @property
    def end(self) -> int:
        """Where the bytes of the leaf end."""
        return self.offset + np.dtype(self.dtype).itemsize * math.prod(self.shape)

    def text(self) -> str:
        """Path, dtype and shape, for errors."""
        return f"{self.path or 'the one leaf'} {self.dtype}{list(self.shape)}"


# --- The leaves of a tree ----------------------------------------------------------------------


def leaves_of(tree: Any, *, abstract: bool = False) -> list[Leaf]:
    """Lists path, shape and dtype of all leaves, and where each is put among the bytes.

    Args:
      tree: a tree of arrays.
      abstract: whether ``jax.ShapeDtypeStruct`` are allowed, too.

    Raises:
      TypeError: if a leaf is no array of numbers; it is named.
    """
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
        leaves.append(Leaf(name, tuple(map(int, value.shape)), dtype.name, offset))
        offset += -(-(leaves[-1].end - offset) // ALIGNMENT) * ALIGNMENT
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


def pack(tree: Any) -> tuple[list[Leaf], np.ndarray]:
    """Copies the leaves of a tree from the devices into one array of bytes, uint8 ``[N]``.

    Raises:
      TypeError: if a leaf is no array of numbers, or not wholly on this process; it is named.
    """
    leaves, values = leaves_of(tree), jax.tree.leaves(tree)
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
    data = np.zeros(_padded_size(leaves), np.uint8)
    for leaf, array in zip(leaves, arrays, strict=True):
        data[leaf.offset : leaf.end] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return leaves, data


def _padded_size(leaves: Sequence[Leaf]) -> int:
    size = max((leaf.end for leaf in leaves), default=0)
    unit = CHUNK if size > CHUNK else ALIGNMENT
    return -(-max(size, 1) // unit) * unit


# --- Writing -----------------------------------------------------------------------------------


@functools.cache
def _orbax() -> tuple[Any, Any]:
    # Imported at the first use: a run without checkpoints need not spend the time.
    import orbax.checkpoint as ocp

    # OCDBT and Zarr 3 make more files of one array.
    return ocp, ocp.PyTreeCheckpointHandler(use_ocdbt=False)


def write(folder: Path, step: int, identity: Any, leaves: Sequence[Leaf], data: np.ndarray) -> None:
    """Writes a checkpoint into an empty folder, and waits until it is on the disk.

    Raises:
      OSError: if it cannot be written.
    """
    _write_arrays(folder / ARRAYS, data)
    files = sorted(
        os.path.relpath(os.path.join(place, name), folder)
        for place, _, names in os.walk(folder)
        for name in names
    )
    text = manifests.seal(
        {
            "format": FORMAT,
            "step": step,
            "identity": identity,
            "versions": {"jax": jax.__version__, "orbax-checkpoint": _orbax()[0].__version__},
            "files": {name: manifests.size_and_digest(folder / name) for name in files},
            "content": manifests.digest(data),
            "leaves": leaves,
        },
        allow_nan=True,
    )
    with open(folder / MANIFEST, "xb") as file:
        file.write(f"{text}\n".encode())
    paths = [folder / name for name in (MANIFEST, *files)]
    sync(*paths, *{path.parent for path in paths})


def _write_arrays(folder: Path, data: np.ndarray) -> None:
    ocp, handler = _orbax()
    folder.mkdir()
    save_args = {BYTES: ocp.SaveArgs(chunk_byte_size=CHUNK)}
    try:
        handler.save(folder, args=ocp.args.PyTreeSave({BYTES: data}, save_args=save_args))
    except OSError:
        raise
    except Exception as error:
        # TensorStore reports a full disk as a ValueError that ends in the number of the error.
        code = re.search(r"os_error_code='(\d+)'", str(error))
        number = int(code[1]) if code else errno.EIO
        raise OSError(number, os.strerror(number), str(folder)) from error


def sync(*paths: Path) -> None:
    """Waits until the contents of files, and the names in folders, are on the disk."""

    def wait(path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    # All at once: a journal writes down together what waits together, in a tenth of the time.
    with futures.ThreadPoolExecutor(len(paths)) as pool:
        list(pool.map(wait, paths))


# --- Reading -----------------------------------------------------------------------------------


def read_manifest(folder: Path) -> dict[str, Any]:
    """Reads the manifest of a checkpoint; its leaves are :class:`Leaf`.

    Raises:
      DamageError: if it is not the one that was written.
      UnreadableError: if it has a format that this version does not read.
    """
    path = folder / MANIFEST
    with _damage(path):
        data = places.read_file(path)
    try:
        manifest = manifests.unseal(data.removesuffix(b"\n"))
    except manifests.ManifestError as error:
        raise DamageError(f"{path} {error}") from None
    # Every version writes the format, so that an older checkpoint is told from a damaged one.
    if manifest.get("format") != FORMAT:
        raise UnreadableError(
            f"the checkpoint {folder} has format {manifest.get('format')!r}; expected {FORMAT}, "
            "which this version of nf_resnets writes."
        )
    for name, fits in _PARTS.items():
        if not fits(manifest.get(name)):
            raise DamageError(f"{path} has something else in place of {name!r}")
    manifest["leaves"] = [Leaf(n, tuple(s), d, offset) for n, s, d, offset in manifest["leaves"]]
    return manifest


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_list_of(value: Any, *kinds: type) -> bool:
    return isinstance(value, list) and [type(each) for each in value] == [*kinds]


def _is_leaf(value: Any) -> bool:
    is_list = _is_list_of(value, str, list, str, int)
    return is_list and all(map(_is_count, [*value[1], value[3]]))


# What a manifest holds. A forged one has a SHA-256 that fits, so nothing in it is trusted.
_PARTS: dict[str, Callable[[Any], bool]] = {
    "step": _is_count,
    "identity": lambda value: isinstance(value, dict),
    "versions": lambda value: isinstance(value, dict) and "orbax-checkpoint" in value,
    "content": lambda value: isinstance(value, str),
    "files": lambda value: (
        isinstance(value, dict) and all(_is_list_of(each, int, str) for each in value.values())
    ),
    "leaves": lambda value: isinstance(value, list) and all(map(_is_leaf, value)),
}


def verify(folder: Path, step: int) -> dict[str, Any]:
    """Compares every file of a checkpoint with its manifest, which it returns.

    Raises:
      DamageError: if one is not the one that was written.
      UnreadableError: if it has a format that this version does not read.
    """
    manifest = read_manifest(folder)
    if manifest["step"] != step:
        raise DamageError(f"{folder / MANIFEST} is that of step {manifest['step']}")
    for name, expected in manifest["files"].items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise DamageError(f"{folder / MANIFEST} names {name!r}, which is none of its files")
        with _damage(folder / name):
            found = manifests.size_and_digest(folder / name)
        if found[0] != expected[0]:
            raise DamageError(
                f"{folder / name} has {found[0]} bytes, its manifest says {expected[0]}"
            )
        if found != expected:
            raise DamageError(f"{folder / name} does not have the SHA-256 of its manifest")
    return manifest


def read_leaves(folder: Path, manifest: Mapping[str, Any]) -> list[np.ndarray]:
    """Reads the leaves of a checkpoint that :func:`verify` found whole.

    Raises:
      DamageError: if they are not those that were saved.
      UnreadableError: if Orbax cannot read them.
    """
    leaves: list[Leaf] = manifest["leaves"]
    _refuse_size(folder / ARRAYS / BYTES / ".zarray", _padded_size(leaves))
    ocp, handler = _orbax()
    restore_args = {BYTES: ocp.RestoreArgs(restore_type=np.ndarray)}
    try:
        data = handler.restore(
            folder / ARRAYS, args=ocp.args.PyTreeRestore(restore_args=restore_args)
        )[BYTES]
    except Exception as error:
        raise UnreadableError(
            f"the files of {folder} are whole, but Orbax {ocp.__version__} cannot read them "
            f"(written by {manifest['versions']['orbax-checkpoint']}): "
            f"{' '.join(str(error).split())}"
        ) from error
    if manifests.digest(data) != manifest["content"]:
        raise DamageError(f"{folder / ARRAYS} does not give the bytes that were saved")
    # Copies, so that no leaf keeps the bytes of all alive.
    return [
        data[leaf.offset : leaf.end].view(np.dtype(leaf.dtype)).reshape(leaf.shape).copy()
        for leaf in leaves
    ]


def _refuse_size(path: Path, size: int) -> None:
    """Refuses an array of another size than the leaves', for which there may be no memory."""
    with _damage(path):
        data = places.read_file(path)
    try:
        array = json.loads(data)
        found = array["shape"], array["dtype"], array["chunks"]
        fits = found[:2] == ([size], "|u1") and found[2][0] <= size
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        fits = False
    if not fits:
        raise DamageError(f"{path} is not that of the {size:,} bytes of its leaves")


@contextlib.contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in DAMAGE:
            raise
        raise DamageError(f"{path} cannot be read ({error.strerror})") from error
    except places.PlaceError as error:
        raise DamageError(str(error).removesuffix(".")) from error


__all__ = [
    "FORMAT", "DamageError", "Leaf", "UnreadableError", "leaves_of", "pack", "read_leaves",
    "read_manifest", "sync", "verify", "write",
]  # fmt: skip
