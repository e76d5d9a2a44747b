"""The tensors of a PyTorch checkpoint, from a safetensors file without PyTorch, or from a dict."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from nf_resnets import places
from nf_resnets.trained.file import TrainedError, as_array, tensors_of

WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""The parts of names that stand for a wrapped module: of ``DataParallel`` and ``AveragedModel``, of
``torch.compile``, of sharding and of checkpointing, whole networks or modules within them."""


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
      TrainedError: if the file cannot be read, it holds several dicts of tensors, or a value is no
        array of finite numbers; the sentence names the file and the tensor.
      ImportError: if the file needs PyTorch, which is not installed.
      OSError: if there is no such file.
    """
    where = "the state dict"
    tensors: dict[str, np.ndarray] = {}
    try:
        if isinstance(source, str | os.PathLike):
            where = str(source)
            source = _read_file(where)
        for name, value in _state_dict(source).items():
            parts = [part for part in str(name).split(".") if part not in WRAPPERS]
            if parts[-1:] == ["n_averaged"]:  # AveragedModel counts in it
                continue
            if ".".join(parts) in tensors:
                raise ValueError(f"leaf {name!r} is there a second time; expected one.")
            tensors[".".join(parts)] = _array(str(name), value)
    except (ImportError, OSError):
        raise
    except Exception as error:  # the readers of files raise whatever they stumble over
        reason = " ".join(str(error).split())[:300]
        raise TrainedError(f"{where} cannot be read: {reason}") from None
    return tensors


def _read_file(path: str) -> Any:
    data = places.read_file(path)
    # The first bytes of what today's and older versions of PyTorch write.
    if not data.startswith((b"PK\x03\x04", b"\x80")):
        return tensors_of(data)
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise ImportError(
            f"{path} was written by torch.save, and PyTorch is not installed here; convert it "
            "where it is: safetensors.torch.save_file(torch.load(path, weights_only=True), "
            "'net.safetensors')."
        ) from None
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whose text advises to execute what the file holds
        raise ValueError(
            f"it holds more than tensors, or is damaged ({type(error).__name__}); expected what "
            "torch.save(module.state_dict(), path) writes."
        ) from None


def _state_dict(content: Any) -> Mapping[Any, Any]:
    """The one dict of tensors in the content of a training script's file."""
    state_dicts, level = [], [content]
    for _ in range(4):  # no script nests a state dict deeper
        # An optimizer numbers its tensors.
        dicts = [each for each in level if _is_named(each)]
        state_dicts += [each for each in dicts if each and all(map(_is_tensor, each.values()))]
        level = [value for each in dicts if each not in state_dicts for value in each.values()]
    if len(state_dicts) != 1:
        raise ValueError(
            f"it holds {len(state_dicts)} dicts of nothing but tensors; expected a module's "
            "state_dict()."
        )
    return state_dicts[0]


def _is_named(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _is_tensor(value: Any) -> bool:
    # PyTorch is not imported for its tensors.
    return hasattr(value, "detach") or hasattr(value, "__array__")


def _array(name: str, value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        # NumPy has no bfloat16; as float32 it is the same number.
        value = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    array = as_array(name, value)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return array
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused
        return as_array(name, array.astype(np.float32))


__all__ = ["WRAPPERS", "read_checkpoint"]
