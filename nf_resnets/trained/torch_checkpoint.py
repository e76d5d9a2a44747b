"""The tensors of a PyTorch checkpoint, from a safetensors file without PyTorch, or from a dict."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors

from nf_resnets.trained.file import TrainedError, read
from nf_resnets.trained.tree import as_array, tensors_of

WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""The parts of names that stand for a wrapped module: of ``DataParallel`` and ``AveragedModel``, of
``torch.compile``, of sharding and of checkpointing, whole networks or modules within them."""

LISTED = 8
"""How many names an error lists."""

_LEVELS = 4  # of dicts within dicts; no script nests a state dict deeper

_OF_TORCH = (b"PK\x03\x04", b"\x80")  # of today and of older versions
_CONVERT = (
    "convert it where PyTorch is installed: safetensors.torch.save_file("
    "torch.load(path, weights_only=True), 'net.safetensors')"
)


def read_checkpoint(source: Any) -> dict[str, np.ndarray]:
    """Reads a state dict.

    Args:
      source: a safetensors file, a ``.pt`` file where PyTorch is installed (nothing but tensors is
        read from it), or a dict of NumPy arrays or PyTorch tensors by their names. The dict may be
        within others, as training scripts keep it beside epoch and optimizer.

    Returns:
      The tensors by their names, floating-point ones as float32; no name has a part of
      :data:`WRAPPERS`.

    Raises:
      TrainedError: if there is no such file, it cannot be read, it holds several dicts of tensors,
        or something in it is no array of finite numbers; the sentence names the file and the
        tensor.
    """
    if isinstance(source, Mapping):
        found, where = source, "the state dict"
    elif isinstance(source, str | os.PathLike):
        found, where = _of_file(Path(source)), str(source)
    else:
        hint = "; give it module.state_dict()" if hasattr(source, "state_dict") else ""
        raise TrainedError(
            f"a {type(source).__name__} found; expected a state dict, or the path of a "
            f"safetensors file{hint}."
        )
    tensors: dict[str, np.ndarray] = {}
    try:
        for name, value in _state_dict(found).items():
            bare = ".".join(part for part in str(name).split(".") if part not in WRAPPERS)
            if bare in tensors:
                raise ValueError(f"leaf {name!r} is there a second time; expected one {bare!r}.")
            tensors[bare] = _array(str(name), value)
    except ValueError as error:
        raise TrainedError(f"{where} cannot be read: {error}") from None
    # AveragedModel counts in it how many networks it has averaged.
    tensors = {name: a for name, a in tensors.items() if name.split(".")[-1] != "n_averaged"}
    if not tensors:
        raise TrainedError(f"{where} holds no tensors; expected a network's state dict.")
    return tensors


def _of_file(path: Path) -> Any:
    path, data = read(path, "a checkpoint")
    if data.startswith(_OF_TORCH):
        return _of_torch(path)
    try:
        return dict(tensors_of(data))
    except safetensors.SafetensorError:
        raise TrainedError(
            f"{path} ({len(data):,} bytes) is no safetensors file, or it is cut off."
        ) from None
    except ValueError as error:
        raise TrainedError(f"{path} cannot be read: {error}") from None


def _of_torch(path: Path) -> Any:
    """What ``torch.save`` wrote, without executing anything in it."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise TrainedError(
            f"{path} was written by torch.save, and PyTorch is not installed here; {_CONVERT}."
        ) from None
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # its reader raises whatever it stumbles over
        raise TrainedError(
            f"{path} holds more than tensors, or is damaged ({type(error).__name__}); expected "
            "what torch.save(module.state_dict(), path) writes."
        ) from None


def _state_dict(found: Any) -> Mapping[Any, Any]:
    """The one dict of tensors in what a training script has kept."""
    inner = _dicts_of_tensors("", found, _LEVELS)
    if len(inner) > 1:
        raise ValueError(
            f"it holds several dicts of tensors, {listed(inner)}; expected one: give from_torch "
            "the one that is meant."
        )
    if not inner and not isinstance(found, Mapping):
        raise ValueError(f"it holds a {type(found).__name__}; expected a module's state_dict().")
    # Without one, the first value that is no tensor is refused by its name.
    return next(iter(inner.values()), found)


def _dicts_of_tensors(name: str, found: Any, levels: int) -> dict[str, Mapping[Any, Any]]:
    """Dicts of nothing but tensors by their keys; an optimizer keeps its own by numbers."""
    if not isinstance(found, Mapping) or not levels or not all(isinstance(k, str) for k in found):
        return {}
    if found and all(map(_is_tensor, found.values())):
        return {name: found}
    inner = (
        _dicts_of_tensors(f"{name}.{key}".lstrip("."), value, levels - 1)
        for key, value in found.items()
    )
    return {name: each for part in inner for name, each in part.items()}


def listed(names: Iterable[str]) -> str:
    """The first names, and how many more there are, for an error."""
    names = list(names)
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")


def _is_tensor(value: Any) -> bool:
    # PyTorch is not imported for its tensors.
    return hasattr(value, "detach") or isinstance(value, jax.Array | np.ndarray | np.generic)


def _array(name: str, value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        try:
            tensor = value.detach().cpu()
            # NumPy has no bfloat16; as float32 it is the same number.
            value = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        except (TypeError, RuntimeError):  # quantised, sparse, without data
            raise ValueError(
                f"leaf {name!r} is of {value.dtype} ({value.layout}, on {value.device}); expected "
                "a dense tensor of numbers."
            ) from None
    array = as_array(name, value)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return array
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused
        return as_array(name, array.astype(np.float32))


__all__ = ["LISTED", "WRAPPERS", "listed", "read_checkpoint"]
