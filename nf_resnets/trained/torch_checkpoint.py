"""The tensors of a PyTorch checkpoint, from a safetensors file without PyTorch, or from a dict."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Mapping
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

_LEVELS = 4  # of dicts within dicts; no script nests a state dict deeper
_OF_TORCH = (b"PK\x03\x04", b"\x80")  # the first bytes of today's and of older versions


def read_checkpoint(source: Any) -> dict[str, np.ndarray]:
    """Reads a state dict.

    Args:
      source: a safetensors file, a ``.pt`` file where PyTorch is installed (only tensors are read
        from it), or a dict of NumPy arrays or PyTorch tensors by their names. The dict may be
        within others, as training scripts keep it beside epoch and optimizer.

    Returns:
      The tensors by their names, floating-point ones as float32; no name has a part of
      :data:`WRAPPERS`.

    Raises:
      TrainedError: if there is no such file, it cannot be read, it holds several dicts of tensors,
        or a value is no array of finite numbers; the sentence names the file and the tensor.
    """
    if isinstance(source, Mapping):
        content, where = source, "the state dict"
    elif isinstance(source, str | os.PathLike):
        content, where = _read_file(Path(source)), str(source)
    else:
        hint = "; give it module.state_dict()" if hasattr(source, "state_dict") else ""
        raise TrainedError(
            f"a {type(source).__name__} found; expected a state dict, or the path of a "
            f"safetensors file{hint}."
        )
    tensors: dict[str, np.ndarray] = {}
    try:
        for name, value in _state_dict(content).items():
            parts = [part for part in str(name).split(".") if part not in WRAPPERS]
            if parts[-1:] == ["n_averaged"]:  # AveragedModel counts in it
                continue
            bare = ".".join(parts)
            if bare in tensors:
                raise ValueError(f"leaf {name!r} is there a second time; expected one {bare!r}.")
            tensors[bare] = _array(str(name), value)
    except ValueError as error:
        raise TrainedError(f"{where} cannot be read: {error}") from None
    if not tensors:
        raise TrainedError(f"{where} holds no tensors; expected a network's state dict.")
    return tensors


def _read_file(path: Path) -> Any:
    path, data = read(path, "a checkpoint")
    if data.startswith(_OF_TORCH):
        try:
            torch = importlib.import_module("torch")
        except ImportError:
            raise TrainedError(
                f"{path} was written by torch.save, and PyTorch is not installed here; convert it "
                "where it is: safetensors.torch.save_file(torch.load(path, weights_only=True), "
                "'net.safetensors')."
            ) from None
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # its reader raises whatever it stumbles over
            raise TrainedError(
                f"{path} holds more than tensors, or is damaged ({type(error).__name__}); expected "
                "what torch.save(module.state_dict(), path) writes."
            ) from None
    try:
        return dict(tensors_of(data))
    except safetensors.SafetensorError:
        raise TrainedError(
            f"{path} ({len(data):,} bytes) is no safetensors file, or it is cut off."
        ) from None
    except ValueError as error:
        raise TrainedError(f"{path} cannot be read: {error}") from None


def _state_dict(content: Any) -> Mapping[Any, Any]:
    """The one dict of tensors in what a training script has kept."""
    if not isinstance(content, Mapping):
        raise ValueError(f"it holds a {type(content).__name__}; expected a module's state_dict().")
    inner = dict(_dicts_of_tensors("", content, _LEVELS))
    if len(inner) > 1:
        raise ValueError(
            f"it holds several dicts of tensors, {', '.join(inner)[:200]}; expected one: give "
            "from_torch the one that is meant."
        )
    # Without one, the first value that is no tensor is refused by its name.
    return next(iter(inner.values()), content)


def _dicts_of_tensors(
    name: str, content: Any, levels: int
) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    """Dicts of nothing but tensors by their keys; an optimizer numbers its tensors."""
    if not isinstance(content, Mapping) or not all(isinstance(key, str) for key in content):
        return
    if content and all(map(_is_tensor, content.values())):
        yield name, content
    elif levels > 1:
        for key, value in content.items():
            yield from _dicts_of_tensors(f"{name}.{key}".lstrip("."), value, levels - 1)


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


__all__ = ["WRAPPERS", "read_checkpoint"]
