"""The tensors of a PyTorch checkpoint, from a safetensors file without PyTorch, or from a dict."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors

from nf_resnets.trained.file import TrainedError, read
from nf_resnets.trained.tree import as_array, tensors_of

WRAPPERS = ("module.", "_orig_mod.")
"""What ``DataParallel`` and ``torch.compile`` put before every name."""

_OF_TORCH = (b"PK\x03\x04", b"\x80")  # of today and of older versions
_CONVERT = (
    "convert it where PyTorch is installed: safetensors.torch.save_file("
    "torch.load(path, weights_only=True), 'net.safetensors')"
)


def read_checkpoint(source: Any) -> dict[str, np.ndarray]:
    """Reads a state dict.

    Args:
      source: a safetensors file, a ``.pt`` file where PyTorch is installed (nothing but tensors is
        read from it), or a dict of NumPy arrays or PyTorch tensors by their names.

    Returns:
      The tensors by their names, floating-point ones as float32; names do not begin with any of
      :data:`WRAPPERS`.

    Raises:
      TrainedError: if there is no such file, it cannot be read, or something in it is no array of
        finite numbers; the sentence names the file and the tensor.
    """
    if isinstance(source, Mapping):
        found, where = dict(source), "the state dict"
    elif isinstance(source, str | os.PathLike):
        found, where = _of_file(Path(source)), str(source)
    else:
        hint = "; give it module.state_dict()" if hasattr(source, "state_dict") else ""
        raise TrainedError(
            f"a {type(source).__name__} found; expected a state dict, or the path of a "
            f"safetensors file{hint}."
        )
    try:
        tensors = {str(name): _array(str(name), value) for name, value in found.items()}
    except ValueError as error:
        raise TrainedError(f"{where} cannot be read: {error}") from None
    if not tensors:
        raise TrainedError(f"{where} holds no tensors; expected a network's state dict.")
    while any(all(name.startswith(wrapper) for name in tensors) for wrapper in WRAPPERS):
        tensors = {name.partition(".")[2]: array for name, array in tensors.items()}
    return tensors


def _of_file(path: Path) -> dict[str, Any]:
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


def _of_torch(path: Path) -> dict[str, Any]:
    """What ``torch.save`` wrote, without executing anything in it."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise TrainedError(
            f"{path} was written by torch.save, and PyTorch is not installed here; {_CONVERT}."
        ) from None
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # its reader raises whatever it stumbles over
        raise TrainedError(
            f"{path} holds more than tensors, or is damaged ({type(error).__name__}); expected "
            "what torch.save(module.state_dict(), path) writes."
        ) from None
    return _state_dict(path, loaded)


def _state_dict(path: Path, loaded: Any) -> dict[str, Any]:
    """The one dict of tensors in what a training script has saved."""
    if _holds_tensors(loaded):
        return dict(loaded)
    inner = loaded.items() if isinstance(loaded, Mapping) else ()
    found = {name: value for name, value in inner if _holds_tensors(value) and value}
    if len(found) == 1:
        return dict(next(iter(found.values())))
    if found:
        raise TrainedError(
            f"{path} holds several dicts of tensors, {', '.join(map(str, found))}; expected one: "
            "give from_torch the one that is meant."
        )
    raise TrainedError(
        f"{path} holds a {type(loaded).__name__} without a dict of tensors; expected what "
        "torch.save(module.state_dict(), path) writes."
    )


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        hasattr(each, "detach") or isinstance(each, np.ndarray | np.generic)
        for each in value.values()
    )


def _array(name: str, value: Any) -> np.ndarray:
    if hasattr(value, "detach"):  # a tensor of PyTorch, which is not imported for it
        value = value.detach().cpu()
        # NumPy has no bfloat16; as float32 it is the same number.
        value = (value.float() if value.is_floating_point() else value).numpy()
    array = as_array(name, value)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return array
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused
        return as_array(name, array.astype(np.float32))


__all__ = ["WRAPPERS", "read_checkpoint"]
