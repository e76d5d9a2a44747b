"""A published PyTorch checkpoint as a network of this library.

The axes are permuted by the kind of a layer, never by its shape: a kernel with as many channels
before as after it has the same shape either way.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import flax.traverse_util
import jax.numpy as jnp
import numpy as np

from nf_resnets import models, places, schemes
from nf_resnets.trained.file import Trained, TrainedError, as_array, expected_leaves, tensors_of
from nf_resnets.trained.inputs import Images
from nf_resnets.trained.torch_layouts import LAYOUTS, Layout

CALIBRATED = 8
"""The batches after which RescaleNet's published biases stop following the mean."""

WRAPPERS = {"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
"""The parts of names that stand for a wrapped module, whole networks or modules within them."""

Shape = tuple[int, ...]


def from_torch(
    source: Any, network: str, scheme: str, *, inputs: Images | None = None, **options: Any
) -> Trained:
    """Makes a network of this library out of a published PyTorch checkpoint, leaf by leaf.

    Every tensor has to find its leaf, and every leaf its tensors. The known layouts are
    :data:`nf_resnets.trained.torch_layouts.LAYOUTS`. What no name and no shape says, such as the
    epsilon of BatchNorm or where the stride of a bottleneck is, is taken to be as published.

    Args:
      source: a safetensors file (for which no PyTorch is needed), a ``.pt`` file where PyTorch is
        installed (only tensors are read from it), or a state dict of NumPy arrays or PyTorch
        tensors, which may be within others, beside an optimizer's.
      network: the name of a network, such as ``"resnet-50"``.
      scheme: the scheme whose anatomy the published network has.
      inputs: by default colour images as the published training code normalizes them, and classes
        called by their numbers.
      **options: of the network's class. ``num_classes`` is read from the checkpoint.

    Returns:
      The network with its weights, as :func:`nf_resnets.trained.load` returns it; float32 params,
      and with BatchNorm the running statistics in ``batch_stats``.

    Raises:
      TrainedError: if the checkpoint cannot be read, no layout fits, a tensor or a leaf is left
        over, a shape is another one, or the network differs from the published one in what is not
        in its weights (the argument or scheme that makes it the same is named).
      ImportError: if the file needs PyTorch, which is not installed.
    """
    tensors = _read(source)
    model = models.make(network, scheme, **options)
    layout = _recognised(tensors, model)
    _refuse_other_network(model, layout)
    bias = tensors.get(f"{layout.theirs('head')}.bias")
    if "num_classes" not in options and bias is not None:
        model = model.clone(num_classes=len(bias))
    inputs = inputs or Images(
        shape=(layout.side, layout.side, len(layout.mean)),
        mean=tuple(255 * value for value in layout.mean),
        std=tuple(255 * value for value in layout.std),
        max_value=255.0,
        class_names=tuple(map(str, range(model.num_classes))),
        crop=layout.crop,
    )
    try:
        variables = _variables(tensors, layout, expected_leaves(model, inputs))
    except ValueError as error:
        raise TrainedError(
            f"The checkpoint does not fit the {type(model).__name__}: {error}"
        ) from None
    return Trained(model, variables, inputs, {"network": network, "from_torch": layout.name})


# --- The tensors by their names ------------------------------------------------------------------


def _read(source: Any) -> dict[str, np.ndarray]:
    """The tensors of a file or dict, floating-point ones as float32, without :data:`WRAPPERS`."""
    where = "the state dict"
    tensors: dict[str, np.ndarray] = {}
    try:
        if isinstance(source, str | os.PathLike):
            where = str(source)
            source = _read_file(where)
        state_dicts = _state_dicts(source)
        if len(state_dicts) != 1:
            raise ValueError(
                f"it holds {len(state_dicts)} dicts of nothing but tensors; expected a module's "
                "state_dict()."
            )
        for name, value in state_dicts[0].items():
            parts = [part for part in name.split(".") if part not in WRAPPERS]
            if parts[-1:] == ["n_averaged"]:  # AveragedModel counts in it
                continue
            if ".".join(parts) in tensors:
                raise ValueError(f"leaf {name!r} is there a second time; expected one.")
            tensors[".".join(parts)] = _array(name, value)
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


def _state_dicts(content: Any, levels: int = 4) -> list[Mapping[str, Any]]:
    """The dicts of nothing but tensors; no script nests one deeper than four levels."""
    # An optimizer numbers its tensors.
    if not isinstance(content, Mapping) or not all(isinstance(key, str) for key in content):
        return []
    # PyTorch is not imported for its tensors.
    if content and all(hasattr(x, "detach") or hasattr(x, "__array__") for x in content.values()):
        return [content]
    within = content.values() if levels > 1 else ()
    return [each for value in within for each in _state_dicts(value, levels - 1)]


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


# --- The layout, and whether the network is that of the layout ------------------------------------


def _recognised(tensors: Mapping[str, np.ndarray], model: Any) -> Layout:
    """The layout that knows all names, or else, for the network's class, the most of them."""

    def score(layout: Layout) -> tuple[bool, bool, int]:
        known = sum(map(layout.knows, tensors))
        return known == len(tensors), isinstance(model, layout.network), known

    best = max(LAYOUTS.values(), key=score)
    if 2 * score(best)[-1] < len(tensors):
        raise TrainedError(
            f"the checkpoint's tensors are of no known layout: {_listed(list(tensors))}; expected "
            f"one of {', '.join(LAYOUTS)}."
        )
    return best


def _refuse_other_network(model: Any, layout: Layout) -> None:
    """Compares what is in no weight: the class, its arguments, the scheme's anatomy."""
    theirs = f"found for a checkpoint of {layout.title}; expected"
    is_theirs: bool = isinstance(model, layout.network)
    if not is_theirs:
        raise TrainedError(f"a {type(model).__name__} {theirs} a {layout.network.__name__}.")
    for name, value in layout.arguments.items():
        if getattr(model, name) != value:
            raise TrainedError(f"{name}={getattr(model, name)!r} {theirs} {name}={value!r}.")
    scheme, published = schemes.get(model.scheme), schemes.get(layout.scheme)
    if other := _other_parts(scheme.anatomy, published.anatomy, model.num_branches):
        raise TrainedError(
            f"scheme={scheme.name!r} {theirs} scheme={published.name!r}, or one with the same "
            f"{', '.join(other)} in its anatomy."
        )


def _other_parts(one: schemes.Anatomy, other: schemes.Anatomy, depth: int) -> list[str]:
    """The fields in which two anatomies compute different logits in a network of that depth."""
    constants = ("residual", "identity", "beta")
    # Dropout is in no logits of a trained network.
    names = [x.name for x in dataclasses.fields(one) if x.name not in (*constants, "dropout")]
    differing = [name for name in names if getattr(one, name) != getattr(other, name)]
    transitions = tuple(k % 3 == 0 for k in range(depth))  # any will do
    pairs = zip(one.constants(transitions), other.constants(transitions), strict=True)
    for name, pair in zip(constants, pairs, strict=True):
        a, b = (1.0 if value is None else value for value in pair)
        if not np.allclose(a, b, rtol=1e-6, atol=0):
            differing.append(name)
    return differing


# --- The leaves -----------------------------------------------------------------------------------

# The names of a leaf's tensors, after that of its layer. RescaleNet's channel bias is kept as what
# was learnt and, apart, the mean of first batches.
_ENDINGS = {
    "kernel": (".weight",), "bias": (".bias",), "scale": (".weight",), "mean": (".running_mean",),
    "var": (".running_var",), "gain": (".gain",), "vector": ("._bias", ".init_mean", ".count"),
}  # fmt: skip

# Where the axes of our kernels are in theirs: of a convolution, of a dense layer.
_AXES = {4: (2, 3, 1, 0), 2: (1, 0)}


def _variables(
    tensors: Mapping[str, np.ndarray], layout: Layout, expected: Mapping[str, Any]
) -> dict[str, Any]:
    """The leaves, each of its tensors; what is left over on either side is refused."""
    sources = {
        (name, path): (_names(layout, path), shape)
        for name, leaf in expected.items()
        for path, shape in _blocks(name.split("/", 1)[1], leaf.shape)
    }
    used = {each for names, _ in sources.values() for each in names}
    left = [n for n in tensors if n not in used and not n.endswith("num_batches_tracked")]
    missing = [
        f"{path} ({', '.join(names) or 'unknown to the layout'})"
        for (_, path), (names, _) in sources.items()
        if not names or any(each not in tensors for each in names)
    ]
    faults = [f"{len(left)} tensors without a leaf, {_listed(left)}"] if left else []
    faults += [f"{len(missing)} leaves without a tensor, {_listed(missing)}"] if missing else []
    if faults:
        raise ValueError(f"{'; '.join(faults)}. Expected what {layout.title} have.")
    leaves: dict[str, list[np.ndarray]] = {}
    for (name, path), (names, shape) in sources.items():
        leaves.setdefault(name, []).append(_value(path, shape, names, tensors))
    stacked = {name: np.stack(x) if "/rest/" in name else x[0] for name, x in leaves.items()}
    return flax.traverse_util.unflatten_dict(stacked, sep="/")


def _blocks(path: str, shape: Shape) -> Iterator[tuple[str, Shape]]:
    """The names and the shape of a leaf in each of the blocks for which it is stacked."""
    before, rest, after = path.partition("/rest/")
    if rest:
        yield from ((f"{before}/{1 + block}/{after}", shape[1:]) for block in range(shape[0]))
    else:
        yield path.replace("/first/", "/0/"), shape


def _names(layout: Layout, path: str) -> tuple[str, ...]:
    """The tensors of a leaf; none if the layout lacks it."""
    layer, _, last = path.rpartition("/")
    if (scalar := layout.theirs(path)) is not None:
        return (scalar,)
    theirs = layout.theirs(layer)
    return () if theirs is None else tuple(theirs + end for end in _ENDINGS[last])


def _value(
    path: str, shape: Shape, names: Sequence[str], tensors: Mapping[str, np.ndarray]
) -> np.ndarray:
    kind, arrays = path.rpartition("/")[2], [tensors[name] for name in names]
    axes = _AXES[len(shape)] if kind == "kernel" else tuple(range(len(shape)))
    theirs = tuple(shape[axes.index(axis)] for axis in range(len(shape)))
    theirs = {"gain": (*shape, 1, 1, 1), "vector": (1, *shape, 1, 1)}.get(kind, theirs)
    # A count is a scalar, and what is a scalar here is a vector of one number in most modules.
    for name, array, expected in zip(names, arrays, (theirs, theirs, ()), strict=False):
        if array.shape != expected and not (expected == () and array.size == 1):
            raise ValueError(
                f"{name!r} has shape {list(array.shape)}; expected {list(expected)}, for the leaf "
                f"{path!r} {list(shape)}."
            )
        if not name.endswith(".count") and not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(f"{name!r} has dtype {array.dtype}; expected floating-point numbers.")
    value = arrays[0]
    if kind == "vector":
        _, mean, count = arrays
        if int(count) < CALIBRATED:
            raise ValueError(
                f"{names[2]}={int(count)} found, of a bias that still follows its batches; "
                f"expected {CALIBRATED}, as after {CALIBRATED} batches in PyTorch."
            )
        value = value - mean
    # A copy: the leaf outlives the checkpoint's arrays.
    value = value.transpose(axes) if kind == "kernel" else value.reshape(shape)
    return np.array(value, np.float32, order="C")


def _listed(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
