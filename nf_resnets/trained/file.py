"""A trained network in one safetensors file: weights, settings, and its inputs; no pickle.

The tensors are the leaves of the variables, by their keys joined by ``/``, and for a translation
network the SentencePiece models under ``inputs/``, as bytes. The header's metadata has one entry,
``nf_resnets``: a manifest, JSON with all settings.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from nf_resnets import machine, places, schemes
from nf_resnets.models.architectures import CLASSES, architecture_of
from nf_resnets.roles import path_name
from nf_resnets.trained.inputs import Images, Sentences

FORMAT = 1
"""The version of the manifest; a file of another one is refused."""

# The dtypes that a leaf may have, by their names in safetensors files.
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64",
    "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32",
    "U16": "uint16", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_KINDS: dict[str, Any] = {"images": Images, "sentences": Sentences}
_VOCABULARIES = ("source_vocabulary", "target_vocabulary")

GONE = {"survival": None, "unroll": None, "shared": "none", "positions": "paper"}
"""Fields that networks had once, and with what value each changes nothing; None for any."""


class TrainedError(ValueError):
    """A network that cannot be loaded, used or trained; one sentence says why."""


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """A network with its weights and its inputs.

    Attributes:
      model: the Flax module; of another library's network the function that calls it
        (:class:`nf_resnets.training.Functions`).
      variables: ``{"params": ...}``, of a network with BatchNorm with ``"batch_stats"`` too; nested
        dicts of NumPy arrays (``jax.device_put`` puts them on a device).
      inputs: the images or sentences that it takes.
      notes: such as data set and accuracy, JSON values.
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
      path: the file, which is returned; folders that are missing are made.
      model: a network of :mod:`nf_resnets.models`.
      variables: ``{"params": ...}`` and ``"batch_stats"`` where there are any: nested dicts of
        arrays, of every dtype that they have.
      inputs: :class:`Images` or :class:`Sentences`.
      notes: such as data set and accuracy: JSON values. Tuples in them come back as lists.
      overwrite: whether a file that is there may be replaced.

    Raises:
      OSError: if the file is there, or cannot be written.
    """
    path = Path(path).expanduser()
    settings = to_json(model)
    leaves = {name: as_array(name, leaf) for name, leaf in sorted(named(variables).items())}
    refuse_other_leaves(leaves, expected_leaves(model, inputs))
    kind = next(name for name, each in _KINDS.items() if isinstance(inputs, each))
    plain = {name: value for name, value in vars(inputs).items() if name not in _VOCABULARIES}
    tensors, versions = {**leaves, **_vocabularies(inputs)}, machine.versions()
    manifest = {
        "format": FORMAT,
        "versions": {name: versions[name] for name in ("jax", "nf_resnets")},
        "model": settings,
        "inputs": {"kind": kind, **plain},
        "notes": dict(notes or {}),
    }
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    data = safetensors.numpy.save(tensors, {"nf_resnets": text})
    places.write_whole(path, data, overwrite=overwrite)
    return path


def load(path: str | os.PathLike[str]) -> Trained:
    """Reads a network that :func:`save` wrote.

    Raises:
      TrainedError: if the file was not written by :func:`save`, is damaged, or is of a version
        that this one does not know; the sentence names the file.
      OSError: if there is no such file.
    """
    data = places.read_file(path)
    try:
        return _unpacked(data)
    except Exception as error:  # whatever a network of such settings stumbles over
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        reason = " ".join(str(error).split())  # it may quote the file at any length
        reason = reason if len(reason) < 600 else f"{reason[:300]} ... {reason[-200:]}"
        raise TrainedError(f"{path} cannot be read: {kind}{reason}") from None


def _unpacked(data: bytes) -> Trained:
    tensors, manifest = tensors_of(data), _manifest(data)
    model, values = from_json(manifest["model"]), dict(manifest["inputs"])
    kind = _KINDS[values.pop("kind")]
    if kind is Sentences:
        source = tensors["inputs/source_vocabulary"]
        target = tensors.get("inputs/target_vocabulary", source)
        values |= {"source_vocabulary": source.tobytes(), "target_vocabulary": target.tobytes()}
    inputs = kind(**values)
    leaves = {n: as_array(n, a) for n, a in tensors.items() if not n.startswith("inputs/")}
    refuse_other_leaves(leaves, expected_leaves(model, inputs))
    variables = flax.traverse_util.unflatten_dict(leaves, sep="/")
    return Trained(model, variables, inputs, dict(manifest["notes"]), dict(manifest["versions"]))


def _manifest(data: bytes) -> dict[str, Any]:
    """The manifest in the header, which safetensors has read as a whole."""
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length]).get("__metadata__", {})
    if "nf_resnets" not in metadata:
        raise ValueError(
            "its metadata 'nf_resnets' is missing; expected a file that trained.save wrote."
        )
    manifest: dict[str, Any] = json.loads(metadata["nf_resnets"])
    manifest = manifest.get("manifest", manifest)  # beside which a digest stood until 0.2
    if manifest["format"] != FORMAT:
        raise ValueError(f"its format is {manifest['format']!r}; this version reads {FORMAT}.")
    return manifest


def _vocabularies(inputs: Images | Sentences) -> dict[str, np.ndarray]:
    if not isinstance(inputs, Sentences):
        return {}
    models = {name: getattr(inputs, name) for name in _VOCABULARIES}
    if inputs.source_vocabulary == inputs.target_vocabulary:
        del models["target_vocabulary"]
    return {f"inputs/{name}": np.frombuffer(model, np.uint8) for name, model in models.items()}


# --- Settings -------------------------------------------------------------------------------------


def to_json(model: Any) -> dict[str, Any]:
    """Writes down the fields that a network of this library is made from; a scheme by its name.

    Example:
      >>> from nf_resnets import models
      >>> to_json(models.WideResNet(depth=10, scheme="skipinit"))["fields"]["scheme"]
      'skipinit'
    """
    kind = architecture_of(model).network.__name__
    fields = {}
    for name in (field.name for field in dataclasses.fields(model)):
        value = getattr(model, name)
        if isinstance(value, schemes.Scheme):
            if value.name not in schemes.names() or schemes.get(value.name) != value:
                raise ValueError(
                    f"{kind}.{name}={value.name!r} is no registered scheme; expected one that "
                    "nf_resnets.schemes.register knows."
                )
            value = value.name
        if name not in ("parent", "name"):  # Flax's own
            fields[name] = jnp.dtype(value).name if name == "dtype" else value
    return {"class": kind, "fields": fields}


def from_json(settings: Mapping[str, Any]) -> Any:
    """Makes the network again."""
    name, values = str(settings["class"]), dict(settings["fields"])
    if name not in CLASSES:
        raise ValueError(f"class {name!r} found; expected one of {', '.join(CLASSES)}.")
    for field, neutral in GONE.items():
        if neutral is None or values.get(field) == neutral:
            values.pop(field, None)
    if "dtype" in values:
        values["dtype"] = getattr(jnp, values["dtype"])
    values = {n: tuple(x) if isinstance(x, list) else x for n, x in values.items()}
    return CLASSES[name](**values)


# --- Leaves by name -------------------------------------------------------------------------------


def expected_leaves(model: Any, inputs: Images | Sentences) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of a network's leaves by their names; inputs of another kind are refused."""
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
    return named(jax.eval_shape(model.init, jax.random.key(0), *arguments))


def named(tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their keys, joined by ``/``."""
    return {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def as_array(name: str, value: Any) -> np.ndarray:
    """A leaf of finite real numbers as a contiguous array; safetensors writes memory as it is."""
    dtype = getattr(value, "dtype", type(value).__name__)
    is_array = isinstance(value, jax.Array | np.ndarray | np.generic)
    if not is_array or getattr(dtype, "name", "") not in _DTYPES.values():
        raise ValueError(f"leaf {name!r} is of {dtype}; expected an array of real numbers.")
    array = np.asarray(value, order="C")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if not np.isfinite(array).all():
        raise ValueError(f"leaf {name!r} has NaN or infinite numbers; expected finite ones.")
    return array


def refuse_other_leaves(leaves: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Compares names and shapes with those of the network; dtypes may differ."""
    for name in sorted(expected.keys() | leaves.keys()):
        shapes = [list(each[name].shape) if name in each else None for each in (leaves, expected)]
        if shapes[0] != shapes[1]:
            raise ValueError(f"leaf {name!r} has shape {shapes[0]}; expected {shapes[1]}.")


def tensors_of(data: bytes) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file; safetensors' own function does not read bfloat16."""
    tensors = {}
    for name, tensor in sorted(safetensors.deserialize(data), key=lambda each: each[0]):
        dtype = jnp.dtype(_DTYPES[tensor["dtype"]])
        tensors[name] = np.frombuffer(tensor["data"], dtype).reshape(tensor["shape"])
    return tensors
