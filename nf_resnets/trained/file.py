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
from nf_resnets.trained.settings import from_json, refuse_other_types, to_json
from nf_resnets.trained.tree import (
    DTYPES,
    flatten,
    refuse_not_finite,
    refuse_other_leaves,
    unflatten,
)

FORMAT = 1
"""The version of the manifest; a file of another one is refused."""

ENTRY = "nf_resnets"
INPUTS = "inputs"

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
      model: the Flax module.
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
      notes: what else is to be known about it, such as data set and accuracy: JSON values.
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
        refuse_unfitting(model, inputs)
        leaves = flatten(variables)
        refuse_other_leaves(leaves, expected_leaves(model, inputs))
        data = _packed({**leaves, **_vocabularies(inputs)}, settings, inputs, notes or {})
    except (TypeError, ValueError) as error:
        raise TrainedError(f"{path} cannot be written: {error}") from None
    with as_trained_error():
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
        raise TrainedError(f"{path} cannot be read: its manifest has no {error}.") from None
    except ValueError as error:
        text = str(error)  # which may quote what a file holds at any length
        text = text if len(text) < 600 else f"{text[:300]} ... {text[-200:]}"
        raise TrainedError(f"{path} cannot be read: {text}") from None
    except Exception as error:  # whatever a network of such settings stumbles over
        what = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        raise TrainedError(
            f"{path} cannot be read: its settings make no network ({what})."
        ) from None


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
    tensors: Mapping[str, np.ndarray],
    settings: Mapping[str, Any],
    inputs: Images | Sentences,
    notes: Mapping[str, Any],
) -> bytes:
    kind = next(name for name, each in _KINDS.items() if isinstance(inputs, each))
    plain = {
        field.name: getattr(inputs, field.name)
        for field in dataclasses.fields(inputs)
        if field.name not in _VOCABULARIES
    }
    versions = {"jax": jax.__version__}
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        versions["nf_resnets"] = importlib.metadata.version("nf_resnets")
    try:
        entry = manifests.seal(
            {
                "format": FORMAT,
                "versions": versions,
                "model": settings,
                "inputs": {"kind": kind, **plain},
                "notes": dict(notes),
                "leaves": {name: _digest(array) for name, array in tensors.items()},
            }
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"a note that is no JSON value found ({error}).") from None
    return safetensors.numpy.save(dict(tensors), {ENTRY: entry})


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
    leaves = {n: a for n, a in tensors.items() if not n.startswith(f"{INPUTS}/")}
    for name, array in leaves.items():
        if not array.size:
            raise ValueError(f"leaf {name!r} has shape {list(array.shape)}, and no numbers.")
        refuse_not_finite(name, array)
    refuse_unfitting(model, inputs)
    refuse_other_leaves(leaves, expected_leaves(model, inputs))
    notes, versions = manifest["notes"], manifest["versions"]
    for name, value in (("notes", notes), ("versions", versions)):
        if not isinstance(value, dict):
            raise ValueError(f"{name}={reprlib.repr(value)} found; expected names and values.")
    return Trained(model, unflatten(leaves), inputs, notes, versions)


def _digest(array: np.ndarray) -> str:
    return manifests.digest(f"{array.dtype.name} {list(array.shape)} ", array)


def tensors_of(data: bytes) -> dict[str, np.ndarray]:
    """Reads the tensors of a safetensors file, by their names.

    Raises:
      ValueError: if one has a dtype that no network has; it is named.
      safetensors.SafetensorError: if it is no such file.
    """
    found = {}
    for name, tensor in safetensors.deserialize(data):
        if tensor["dtype"] not in DTYPES:
            raise ValueError(f"leaf {name!r} has dtype {tensor['dtype']}, which no network has.")
        dtype = jnp.dtype(DTYPES[tensor["dtype"]])
        found[name] = np.frombuffer(tensor["data"], dtype).reshape(tensor["shape"])
    return dict(sorted(found.items()))


def _manifest(data: bytes) -> dict[str, Any]:
    """The manifest in the header, of which safetensors has found that it is whole."""
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    if ENTRY not in metadata:
        raise ValueError(
            f"it has no metadata {ENTRY!r}; expected a network written by nf_resnets.trained.save."
        )
    try:
        read = manifests.unseal(metadata[ENTRY])
    except manifests.ManifestError as error:
        raise ValueError(f"its manifest {error}.") from None
    if read["format"] != FORMAT:
        raise ValueError(
            f"its format is {reprlib.repr(read['format'])}; this version reads {FORMAT}, and the "
            f"file was written with {reprlib.repr(read.get('versions'))}."
        )
    for name in ("leaves", "model", "inputs"):
        if not isinstance(read[name], dict):
            raise ValueError(
                f"its {name} is {reprlib.repr(read[name])}; expected names and values."
            )
    return read


def _vocabularies(inputs: Images | Sentences) -> dict[str, np.ndarray]:
    if not isinstance(inputs, Sentences):
        return {}
    models_of = {name: getattr(inputs, name) for name in _VOCABULARIES}
    if models_of["source_vocabulary"] == models_of["target_vocabulary"]:
        del models_of["target_vocabulary"]
    return {f"{INPUTS}/{name}": np.frombuffer(model, np.uint8) for name, model in models_of.items()}


def _inputs(settings: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Images | Sentences:
    values = {n: tuple(v) if isinstance(v, list) else v for n, v in settings.items()}
    kind = values.pop("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(
            f"inputs of kind {reprlib.repr(kind)} found; expected {' or '.join(_KINDS)}."
        )
    if kind == "sentences":
        source = tensors[f"{INPUTS}/source_vocabulary"]
        target = tensors.get(f"{INPUTS}/target_vocabulary", source)
        values |= {"source_vocabulary": source.tobytes(), "target_vocabulary": target.tobytes()}
    refuse_other_types(_KINDS[kind], values)
    found: Images | Sentences = _KINDS[kind](**values)
    return found


def refuse_unfitting(model: Any, inputs: Images | Sentences) -> None:
    """Refuses inputs of another kind, or of more or fewer classes, than the network has.

    Raises:
      ValueError: that says which.
    """
    translates = architecture_of(model).inputs == "tokens"
    if not isinstance(inputs, Sentences if translates else Images):
        raise ValueError(
            f"inputs={type(inputs).__name__} found for a {type(model).__name__}; expected "
            f"{'Sentences' if translates else 'Images'}."
        )
    if isinstance(inputs, Images) and len(inputs.class_names) != model.num_classes:
        raise ValueError(
            f"{len(inputs.class_names)} class_names found for num_classes={model.num_classes}; "
            "expected as many."
        )


def expected_leaves(model: Any, inputs: Images | Sentences) -> dict[str, jax.ShapeDtypeStruct]:
    """The leaves that a network has, as shapes, by their names."""
    return _leaves_of(model, inputs.shape if isinstance(inputs, Images) else None)


@functools.lru_cache(maxsize=32)
def _leaves_of(model: Any, image: tuple[int, ...] | None) -> dict[str, jax.ShapeDtypeStruct]:
    shape, dtype, count = ((1, 2), jnp.int32, 2) if image is None else ((1, *image), jnp.float32, 1)
    arguments = (jax.ShapeDtypeStruct(shape, dtype),) * count
    shapes = jax.eval_shape(model.init, jax.random.key(0), *arguments)
    flat = jax.tree_util.tree_flatten_with_path(shapes)[0]
    return {path_name(path): leaf for path, leaf in flat}


__all__ = [
    "FORMAT", "Trained", "TrainedError", "as_trained_error", "expected_leaves", "load", "read",
    "refuse_unfitting", "save", "tensors_of",
]  # fmt: skip
