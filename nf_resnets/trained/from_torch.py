"""A published PyTorch checkpoint as a network of this library.

The axes are permuted by the kind of a layer, never by its shape: a kernel with as many channels
before as after it has the same shape either way.
"""

from __future__ import annotations

import dataclasses
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
      source: a safetensors file, or a state dict of NumPy arrays or PyTorch tensors, such as
        ``torch.load(path, weights_only=True)["state_dict"]``.
      network: the name of a network, such as ``"resnet-50"``.
      scheme: the scheme whose anatomy the published network has.
      inputs: by default colour images as the published training code normalizes them, and classes
        called by their numbers.
      **options: of the network's class. ``num_classes`` is read from the checkpoint.

    Returns:
      The network with its weights, as :func:`nf_resnets.trained.load` returns it; float32 params,
      and with BatchNorm the running statistics in ``batch_stats``.

    Raises:
      TrainedError: if the checkpoint cannot be read, a tensor or a leaf is left over, a shape is
        another one, or the network differs from all published ones in what is in no weight.
    """
    tensors = _read(source)
    model = models.make(network, scheme, **options)
    layout = _layout_of(model)
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
        for name, value in source.items():
            plain = ".".join(part for part in name.split(".") if part not in WRAPPERS)
            if plain in tensors:
                raise ValueError(f"leaf {name!r} is there a second time; expected one.")
            if plain != "n_averaged":  # AveragedModel counts in it
                tensors[plain] = _array(name, value)
    except OSError:
        raise
    except Exception as error:  # the readers of files raise whatever they stumble over
        reason = " ".join(str(error).split())[:300]
        raise TrainedError(f"{where} cannot be read: {reason}") from None
    return tensors


def _read_file(path: str) -> dict[str, np.ndarray]:
    data = places.read_file(path)
    # The first bytes of what today's and older versions of PyTorch write.
    if data.startswith((b"PK\x03\x04", b"\x80")):
        raise ValueError(
            "it was written by torch.save; expected a safetensors file, as "
            "safetensors.torch.save_file(torch.load(path, weights_only=True), 'net.safetensors') "
            "writes it."
        )
    return tensors_of(data)


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


# --- The layout of the network --------------------------------------------------------------------


def _layout_of(model: Any) -> Layout:
    """The layout of a class, its arguments and a scheme's anatomy, which are in no weight."""
    scheme = schemes.get(model.scheme)
    # Dropout is in no logits of a trained network.
    anatomy = dataclasses.replace(scheme.anatomy, dropout=False)
    for layout in LAYOUTS.values():
        is_theirs: bool = isinstance(model, layout.network)
        if (
            is_theirs
            and all(getattr(model, name) == value for name, value in layout.arguments.items())
            and anatomy == schemes.get(layout.scheme).anatomy
        ):
            return layout
    version = f"(version={model.version})" if isinstance(model, models.ResNet) else ""
    known = ", ".join(f"{layout.scheme} ({layout.name})" for layout in LAYOUTS.values())
    raise TrainedError(
        f"a {type(model).__name__}{version} with scheme={scheme.name!r} found, which computes what "
        f"no published network does; expected the network and the scheme of one: {known}."
    )


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
        raise ValueError(f"{'; '.join(faults)}. Expected what {layout.name} has.")
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
