"""A trained network in one safetensors file: weights, settings, and what it takes; no pickle.

The tensors are the leaves of the variables, by their keys joined by ``/``, and for a translation
network the SentencePiece models under ``inputs/``, as bytes. The header's metadata has one entry,
``nf_resnets``: a manifest (:mod:`nf_resnets.manifest`) with all settings and the SHA-256 of every
tensor.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import os
import reprlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from nf_resnets import manifest as manifests
from nf_resnets import places
from nf_resnets.models.architectures import architecture_of
from nf_resnets.roles import path_name
from nf_resnets.trained.inputs import Images, Sentences
from nf_resnets.trained.settings import build, from_json, to_json
from nf_resnets.trained.tree import (
    as_array,
    flatten,
    refuse_no_variables,
    refuse_other_leaves,
    tensors_of,
    unflatten,
)

FORMAT = 1
"""The version of the manifest; a file of another one is refused."""

ENTRY = "nf_resnets"
INPUTS = "inputs/"

_KINDS: dict[str, Any] = {"images": Images, "sentences": Sentences}
_VOCABULARIES = ("source_vocabulary", "target_vocabulary")


class TrainedError(Exception):
    """A network that cannot be saved, loaded or used; one sentence says why."""


@contextlib.contextmanager
def as_trained_error() -> Iterator[None]:
    """Raises what is wrong with a path as a :class:`TrainedError`."""
    try:
        yield
    except places.PlaceError as error:
        raise TrainedError(str(error)) from None


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """A network with its weights, and what it takes.

    Attributes:
      model: the Flax module; of another library's network the function that calls it
        (:class:`nf_resnets.training.Functions`).
      variables: ``{"params": ...}``, of a network with BatchNorm with ``"batch_stats"`` too; nested
        dicts of NumPy arrays (``jax.device_put`` puts them on a device).
      inputs: what it takes.
      notes: whatever was noted about it, JSON values.
      versions: of the packages that wrote the file, by name.
    """

    model: Any
    variables: dict[str, Any] = dataclasses.field(repr=False)
    inputs: Images | Sentences
    notes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Writes it into one file; as :func:`save`."""
        return save(path, self.model, self.variables, inputs=self.inputs, notes=self.notes,
                    overwrite=overwrite)  # fmt: skip


def save(
    path: str | os.PathLike[str],
    model: Any,
    variables: Any,
    *,
    inputs: Images | Sentences,
    notes: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Writes a network with its settings into one file, whole or not at all.

    Args:
      path: the file; folders that are missing are made.
      model: a network of :mod:`nf_resnets.models`.
      variables: ``{"params": ...}`` and ``"batch_stats"`` where there are any: nested dicts of
        arrays, of every dtype that they have.
      inputs: what it takes: :class:`Images` or :class:`Sentences`.
      notes: what else is to be known about it, such as data set and accuracy: JSON values. Tuples
        in them come back as lists, and numbers that are keys of dicts in them as text.
      overwrite: whether a file that is there may be replaced.

    Returns:
      The file.

    Raises:
      TrainedError: if the file is there, cannot be written, or cannot hold what it is given; the
        sentence names the file, and the leaf or field.

    Example:
      >>> import tempfile
      >>> from nf_resnets import models
      >>> model = models.WideResNet(depth=10, scheme="fixup", num_classes=2, stem_channels=4)
      >>> variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 8, 8, 1)))
      >>> inputs = Images((8, 8, 1), (4.9,), (6.0,), 16.0, class_names=("cat", "dog"))
      >>> path = save(Path(tempfile.mkdtemp(), "net.safetensors"), model, variables, inputs=inputs)
      >>> load(path).model == model
      True
    """
    with as_trained_error():
        path = places.expanded(path)
        places.refuse_taken(path, overwrite=overwrite)
        try:
            settings = to_json(model)
            refuse_no_variables(variables)
            leaves = flatten(variables)
            refuse_other_leaves(leaves, expected_leaves(model, inputs))
            data = _packed({**leaves, **_vocabularies(inputs)}, settings, inputs, notes or {})
        except (TypeError, ValueError) as error:
            raise TrainedError(f"{path} cannot be written: {error}") from None
        places.write_whole(path, data, overwrite=overwrite)
    return path


def load(path: str | os.PathLike[str]) -> Trained:
    """Reads a network that :func:`save` wrote.

    Args:
      path: the file.

    Returns:
      The network; structure, dtypes and every bit of the variables are those that were saved.

    Raises:
      TrainedError: if there is no such file, it is no safetensors file, was not written by
        :func:`save`, is damaged, or is of a version that this one does not know; the sentence names
        the file, and the leaf or field.
    """
    path, data = read(path)
    try:
        return _unpacked(data)
    except safetensors.SafetensorError:
        raise TrainedError(
            f"{path} ({len(data):,} bytes) is no safetensors file, or it is cut off; expected a "
            "network written by nf_resnets.trained.save."
        ) from None
    except KeyError as error:
        what = f"its manifest has no {error}."
    except ValueError as error:
        what = str(error)  # which may quote what a file holds at any length
        what = what if len(what) < 600 else f"{what[:300]} ... {what[-200:]}"
    except Exception as error:  # whatever a network of such settings stumbles over
        text = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        what = f"its settings make no network ({text})."
    raise TrainedError(f"{path} cannot be read: {what}")


def read(path: str | os.PathLike[str], what: str = "a network's file") -> tuple[Path, bytes]:
    """Reads a file, and gives its path with the home folder in place of ``~``.

    Raises:
      TrainedError: if it cannot be read; the sentence says what was expected there.
    """
    try:
        with as_trained_error():
            path = places.expanded(path)
            return path, places.read_file(path)
    except FileNotFoundError:
        raise TrainedError(f"{path} is not there; expected {what}.") from None
    except IsADirectoryError:
        raise TrainedError(f"{path} is a folder; expected {what}.") from None
    except OSError as error:
        raise TrainedError(f"{path} cannot be read: {error.strerror or error}.") from None


def _packed(
    tensors: dict[str, np.ndarray],
    settings: Mapping[str, Any],
    inputs: Images | Sentences,
    notes: Mapping[str, Any],
) -> bytes:
    kind = next(name for name, each in _KINDS.items() if isinstance(inputs, each))
    plain = {name: value for name, value in vars(inputs).items() if name not in _VOCABULARIES}
    versions = {"jax": jax.__version__}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        versions["nf_resnets"] = importlib.metadata.version("nf_resnets")
    manifest = {
        "format": FORMAT,
        "versions": versions,
        "model": settings,
        "inputs": {"kind": kind, **plain},
        "notes": _json(notes),
        "leaves": {name: _digest(array) for name, array in tensors.items()},
    }
    return safetensors.numpy.save(tensors, {ENTRY: manifests.seal(manifest)})


def _json(notes: Mapping[str, Any]) -> dict[str, Any]:
    """The notes, if a file can hold them."""
    if not isinstance(notes, Mapping) or not all(isinstance(name, str) for name in notes):
        raise ValueError(f"notes={reprlib.repr(notes)} found; expected names and JSON values.")
    for name, value in notes.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"notes[{name!r}] is no JSON value ({error}).") from None
    return dict(notes)


def _unpacked(data: bytes) -> Trained:
    tensors = tensors_of(data)
    manifest = _manifest(data)
    digests = manifest["leaves"]
    for name in sorted(tensors.keys() | digests.keys()):
        if name not in tensors or name not in digests:
            where = "manifest" if name in digests else "tensors"
            raise ValueError(f"leaf {name!r} is in its {where} only.")
        if _digest(tensors[name]) != digests[name]:
            raise ValueError(f"leaf {name!r} does not have the SHA-256 that was written with it.")
    model = from_json(manifest["model"])
    inputs = _inputs(manifest["inputs"], tensors)
    leaves = {n: as_array(n, a) for n, a in tensors.items() if not n.startswith(INPUTS)}
    for name, array in leaves.items():
        if not array.size:
            raise ValueError(f"leaf {name!r} has shape {list(array.shape)}, and no numbers.")
    refuse_other_leaves(leaves, expected_leaves(model, inputs))
    return Trained(model, unflatten(leaves), inputs, manifest["notes"], manifest["versions"])


def _digest(array: np.ndarray) -> str:
    return manifests.digest(f"{array.dtype.name} {list(array.shape)} ", array)


def _manifest(data: bytes) -> dict[str, Any]:
    """The manifest in the header, of which safetensors has found that it is whole."""
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    if ENTRY not in metadata:
        raise ValueError(
            f"it has no metadata {ENTRY!r}; expected a network written by nf_resnets.trained.save."
        )
    try:
        found = manifests.unseal(metadata[ENTRY])
    except manifests.ManifestError as error:
        raise ValueError(f"its manifest {error}.") from None
    if found["format"] != FORMAT:
        raise ValueError(
            f"its format is {reprlib.repr(found['format'])}; this version reads {FORMAT}, and the "
            f"file was written with {reprlib.repr(found.get('versions'))}."
        )
    for name in ("leaves", "model", "inputs", "notes", "versions"):
        if not isinstance(found[name], dict):
            raise ValueError(
                f"its {name} is {reprlib.repr(found[name])}; expected names and values."
            )
    return found


def _vocabularies(inputs: Images | Sentences) -> dict[str, np.ndarray]:
    if not isinstance(inputs, Sentences):
        return {}
    found = {name: getattr(inputs, name) for name in _VOCABULARIES}
    if inputs.source_vocabulary == inputs.target_vocabulary:
        del found["target_vocabulary"]
    return {f"{INPUTS}{name}": np.frombuffer(model, np.uint8) for name, model in found.items()}


def _inputs(settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Images | Sentences:
    values = dict(settings)
    kind = values.pop("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(
            f"inputs of kind {reprlib.repr(kind)} found; expected {' or '.join(_KINDS)}."
        )
    if kind == "sentences":
        source = tensors[f"{INPUTS}source_vocabulary"]
        target = tensors.get(f"{INPUTS}target_vocabulary", source)
        values |= {"source_vocabulary": source.tobytes(), "target_vocabulary": target.tobytes()}
    found: Images | Sentences = build(_KINDS[kind], values)
    return found


def expected_leaves(model: Any, inputs: Images | Sentences) -> dict[str, jax.ShapeDtypeStruct]:
    """The leaves that a network has, as shapes, by their names.

    Raises:
      ValueError: if it takes inputs of another kind, or has more or fewer classes.
    """
    expected = Sentences if architecture_of(model).inputs == "tokens" else Images
    if not isinstance(inputs, expected):
        raise ValueError(
            f"inputs={type(inputs).__name__} found for a {type(model).__name__}; expected "
            f"{expected.__name__}."
        )
    if isinstance(inputs, Sentences):
        return _leaves_of(model, (jax.ShapeDtypeStruct((1, 2), jnp.int32),) * 2)
    if len(inputs.class_names) != model.num_classes:
        raise ValueError(
            f"{len(inputs.class_names)} class_names found for num_classes={model.num_classes}; "
            "expected as many."
        )
    return _leaves_of(model, (jax.ShapeDtypeStruct((1, *inputs.shape), jnp.float32),))


@functools.lru_cache(maxsize=32)
def _leaves_of(model: Any, arguments: tuple[Any, ...]) -> dict[str, jax.ShapeDtypeStruct]:
    shapes = jax.eval_shape(model.init, jax.random.key(0), *arguments)
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(shapes)}


__all__ = [
    "FORMAT", "Trained", "TrainedError", "as_trained_error", "expected_leaves", "load", "read",
    "save",
]  # fmt: skip
