"""A published PyTorch checkpoint as a network of this library.

The axes are permuted by the kind of a layer, never by its shape: a kernel with as many channels
before as after it has the same shape either way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import models, schemes, training
from nf_resnets.trained.file import Trained, TrainedError, expected_leaves, unflatten
from nf_resnets.trained.inputs import Images
from nf_resnets.trained.torch_checkpoint import read_checkpoint
from nf_resnets.trained.torch_layouts import LAYOUTS, Layout

TOLERANCE = 1e-4
"""The part of the largest logit by which ``check=`` lets two float32 networks differ."""


def from_torch(
    source: Any,
    network: Any,
    scheme: str | schemes.Scheme | None = None,
    *,
    rules: Layout | str | None = None,
    inputs: Images | None = None,
    check: tuple[Any, Any] | None = None,
    **options: Any,
) -> Trained:
    """Makes a network of this library out of a published PyTorch checkpoint, leaf by leaf.

    Every tensor of the checkpoint has to find its leaf, and every leaf its tensors, of the right
    shape before their axes are permuted. The known layouts are
    :data:`nf_resnets.trained.torch_layouts.LAYOUTS`. What no name and no shape says, such as the
    epsilon of BatchNorm or where the stride of a bottleneck is, is taken to be as published; give
    ``check`` if the network is another one.

    Args:
      source: a safetensors file (for which no PyTorch is needed), a ``.pt`` file where PyTorch is
        installed, or a state dict of NumPy arrays or PyTorch tensors.
      network: a network by its name, such as ``"resnet-50"``, or a network of
        :mod:`nf_resnets.models`.
      scheme: the scheme whose anatomy the published network has, where ``network`` is a name.
      rules: the layout, or its name; by default the known one that has the checkpoint's names.
      inputs: by default colour images as the published training code normalises them, and classes
        called by their numbers.
      check: images ``[B, H, W, C]`` as the PyTorch module was given them, but for the order of
        their axes, and its logits ``[B, c]`` in evaluation: ours must be the same.
      **options: of the network's class, where ``network`` is a name. ``num_classes`` is read from
        the checkpoint.

    Returns:
      The network with its weights, as :func:`nf_resnets.trained.load` returns it; float32 params,
      and with BatchNorm the running statistics in ``batch_stats``.

    Raises:
      TrainedError: if the checkpoint cannot be read, no layout fits, a tensor or a leaf is left
        over, a shape is another one, the network differs from the published one in what is not in
        its weights (the argument or scheme that makes it the same is named), or ``check`` fails.

    Example:
      >>> model = models.CifarResNet(depth=8, scheme="fixup", stem_channels=4)
      >>> from_torch({"conv1.weight": np.zeros((4, 3, 3, 3))}, model)
      Traceback (most recent call last):
      nf_resnets.trained.file.TrainedError: The checkpoint does not fit CifarResNet(depth=8, ...
    """
    tensors = read_checkpoint(source)
    model = network
    if isinstance(network, str):
        if scheme is None:
            raise ValueError(f"scheme=None found for network={network!r}; expected its scheme.")
        model = models.make(network, scheme, **options)
    elif options or scheme is not None:
        raise ValueError("a scheme or options found with a network; expected them with a name.")
    layout = _recognised(tensors, model) if rules is None else rules
    layout = LAYOUTS[layout] if isinstance(layout, str) else layout
    _refuse_other_network(model, layout)
    bias = tensors.get(f"{layout.theirs('head')}.bias")
    if isinstance(network, str) and "num_classes" not in options and bias is not None:
        model = model.clone(num_classes=len(bias))
    try:
        inputs = inputs or _default_inputs(layout, model)
        variables = _variables(tensors, layout, expected_leaves(model, inputs))
    except ValueError as error:
        raise TrainedError(f"The checkpoint does not fit {_called(model)}: {error}") from None
    if check is not None:
        _refuse_other_logits(model, variables, *check)
    notes = {"network": network} if isinstance(network, str) else {}
    return Trained(model, variables, inputs, {**notes, "from_torch": layout.name})


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
            f"one of {', '.join(LAYOUTS)}, or rules= of your own."
        )
    return best


def _refuse_other_network(model: Any, layout: Layout) -> None:
    """Compares what is in no weight: the class, its arguments, the scheme's anatomy."""
    is_theirs: bool = isinstance(model, layout.network)
    if not is_theirs:
        raise TrainedError(
            f"a {type(model).__name__} found for a checkpoint of {layout.title}; expected a "
            f"{layout.network.__name__}."
        )
    for name, value in layout.arguments.items():
        if getattr(model, name) != value:
            raise TrainedError(
                f"{name}={getattr(model, name)!r} found for a checkpoint of {layout.title}; "
                f"expected {name}={value!r}."
            )
    scheme, published = schemes.get(model.scheme), schemes.get(layout.scheme or model.scheme)
    other = _other_parts(scheme.anatomy, published.anatomy, model.num_branches)
    if other:
        raise TrainedError(
            f"scheme={scheme.name!r} found for a checkpoint of {layout.title}; expected "
            f"scheme={published.name!r}, or one with the same {', '.join(other)} in its anatomy."
        )


def _other_parts(one: schemes.Anatomy, other: schemes.Anatomy, depth: int) -> list[str]:
    """The fields in which two anatomies compute different logits in a network of that depth."""
    constants = ("residual", "identity", "beta")
    # Dropout is in no logits of a trained network.
    names = [field.name for field in dataclasses.fields(one)]
    differing = [
        name
        for name in names
        if name not in (*constants, "dropout") and getattr(one, name) != getattr(other, name)
    ]
    transitions = tuple(k % 3 == 0 for k in range(depth))  # any will do
    pairs = zip(one.constants(transitions), other.constants(transitions), strict=True)
    for name, pair in zip(constants, pairs, strict=True):
        a, b = (1.0 if value is None else value for value in pair)
        if not np.allclose(a, b, rtol=1e-6, atol=0):
            differing.append(name)
    return differing


def _called(model: Any) -> str:
    """A network by what its shapes follow from: ``ResNet(depth=50, version=1, ...)``."""
    names = ["depth", "version", "width", "stem_channels", "num_classes"]
    fields = [f"{name}={getattr(model, name)!r}" for name in names if hasattr(model, name)]
    return f"{type(model).__name__}({', '.join(fields)})"


def _default_inputs(layout: Layout, model: Any) -> Images:
    if isinstance(model, models.CifarResNet | models.WideResNet) and layout.side == Layout.side:
        raise ValueError(f"{layout.title} has ImageNet's side, mean and std; expected inputs=.")
    return Images(
        shape=(layout.side, layout.side, len(layout.mean)),
        mean=tuple(255 * value for value in layout.mean),
        std=tuple(255 * value for value in layout.std),
        max_value=255.0,
        class_names=tuple(map(str, range(model.num_classes))),
        crop=layout.crop,
    )


# --- The leaves -----------------------------------------------------------------------------------

CALIBRATED = 8
"""The batches after which RescaleNet's published biases stop following the mean."""

Shape = tuple[int, ...]


class Kind(NamedTuple):
    """How a leaf is made of tensors whose names end so, and that have these shapes."""

    tensors: tuple[str, ...]
    shapes: Callable[[Shape], tuple[Shape, ...]]
    value: Callable[..., np.ndarray]


def _calibrated(bias: np.ndarray, mean: np.ndarray, count: np.ndarray) -> np.ndarray:
    if int(count) < CALIBRATED:
        raise ValueError(
            f"count={int(count)} found at a bias that still follows the mean of its batches; "
            f"expected {CALIBRATED}, as after {CALIBRATED} batches in PyTorch."
        )
    return bias - mean


CONV = Kind(
    (".weight",),
    lambda shape: ((shape[3], shape[2], shape[0], shape[1]),),
    lambda weight: weight.transpose(2, 3, 1, 0),
)
DENSE = Kind((".weight",), lambda shape: (shape[::-1],), lambda weight: weight.T)
SCALAR = Kind(("",), lambda shape: ((),), lambda value: value)
KINDS = {
    # RescaleNet's channel bias is kept as what was learnt and, apart, the mean of first batches.
    "vector": Kind(
        ("._bias", ".init_mean", ".count"), lambda shape: ((1, *shape, 1, 1),) * 2 + ((),),
        _calibrated,
    ),
    "gain": Kind((".gain",), lambda shape: ((*shape, 1, 1, 1),), lambda value: value),
} | {
    name: Kind((end,), lambda shape: (shape,), lambda value: value)
    for name, end in {
        "bias": ".bias", "scale": ".weight", "mean": ".running_mean", "var": ".running_var"
    }.items()
}  # fmt: skip


def _kind(path: str, shape: Shape) -> Kind:
    last = path.rpartition("/")[2]
    if last == "kernel":
        return CONV if len(shape) == 4 else DENSE
    if not shape:
        return SCALAR
    if last not in KINDS:
        raise ValueError(f"leaf {path!r} found; expected one that PyTorch's layers have, too.")
    return KINDS[last]


def _variables(
    tensors: Mapping[str, np.ndarray], layout: Layout, expected: Mapping[str, Any]
) -> dict[str, Any]:
    """The leaves, each of its tensors; what is left over on either side is refused."""
    sources = {
        (name, path): (_names(layout, path, shape), shape)
        for name, leaf in expected.items()
        for path, shape in _places(name.split("/", 1)[1], leaf.shape)
    }
    used = {each for names, _ in sources.values() for each in names}
    left = [n for n in tensors if n not in used and not n.endswith("num_batches_tracked")]
    missing = [
        f"{path} ({', '.join(names) or 'unknown to the layout'})"
        for (_, path), (names, _) in sources.items()
        if not names or any(each not in tensors for each in names)
    ]
    faults = [f"{len(left)} tensors found no leaf, {_listed(left)}"] if left else []
    faults += [f"{len(missing)} leaves found no tensor, {_listed(missing)}"] if missing else []
    if faults:
        raise ValueError(f"{'; '.join(faults)}. Expected what {layout.title} have.")
    leaves: dict[str, list[np.ndarray]] = {}
    for (name, path), (names, shape) in sources.items():
        leaves.setdefault(name, []).append(_value(path, shape, names, tensors))
    return unflatten(
        {name: np.stack(each) if "/rest/" in name else each[0] for name, each in leaves.items()}
    )


def _places(path: str, shape: Shape) -> Iterator[tuple[str, Shape]]:
    """The names and the shape of a leaf in each of the blocks for which it is stacked."""
    before, rest, after = path.partition("/rest/")
    if rest:
        yield from ((f"{before}/{1 + block}/{after}", shape[1:]) for block in range(shape[0]))
    else:
        yield path.replace("/first/", "/0/"), shape


def _names(layout: Layout, path: str, shape: Shape) -> tuple[str, ...]:
    """The tensors of a leaf; none if the layout lacks it."""
    endings = _kind(path, shape).tensors
    whole, layer = layout.theirs(path), layout.theirs(path.rpartition("/")[0])
    if whole is not None:
        return tuple(whole + end for end in endings) if len(endings) > 1 else (whole,)
    return () if layer is None else tuple(layer + end for end in endings)


def _value(
    path: str, shape: Shape, names: Sequence[str], tensors: Mapping[str, np.ndarray]
) -> np.ndarray:
    kind, arrays = _kind(path, shape), [tensors[name] for name in names]
    for name, array, theirs in zip(names, arrays, kind.shapes(shape), strict=True):
        # What is a scalar here is a vector of one number in most modules.
        if array.shape != theirs and not (theirs == () and array.size == 1):
            raise ValueError(
                f"{name!r} has shape {list(array.shape)}; expected {list(theirs)}, for the leaf "
                f"{path!r} {list(shape)}."
            )
        counter = array.dtype == np.int64 and not array.shape  # as RescaleNet's modules keep
        if not counter and not jnp.issubdtype(array.dtype, jnp.floating):
            raise ValueError(f"{name!r} has dtype {array.dtype}; expected floating-point numbers.")
    # A copy: the leaf outlives the checkpoint's arrays.
    return np.array(kind.value(*arrays).reshape(shape), np.float32, order="C")


def _listed(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _refuse_other_logits(model: Any, variables: Any, images: Any, expected: Any) -> None:
    apply = jax.jit(training.eval_apply(model))
    images, expected = jnp.asarray(images, jnp.float32), np.asarray(expected, np.float64)
    logits, _ = apply(variables["params"], variables.get("batch_stats"), images, None)
    if logits.shape != expected.shape:
        raise TrainedError(f"logits {expected.shape} found in check=; expected {logits.shape}.")
    error = np.abs(np.asarray(logits, np.float64) - expected).max()
    scale = np.abs(expected).max()
    if not error <= TOLERANCE * scale:
        raise TrainedError(
            f"the logits differ from those of check= by {error:.2g}, where the largest is "
            f"{scale:.2g}; expected {TOLERANCE:g} of it. Names and shapes fit: the network "
            "is another one in what they do not say (epsilon of the norms, activations, padding, "
            "pools, strides), or the images are not the same."
        )


__all__ = ["from_torch"]
