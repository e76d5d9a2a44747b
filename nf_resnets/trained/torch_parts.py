"""How one leaf of a network is made of a PyTorch checkpoint's tensors.

The axes are permuted by what a layer is, never by what its shape looks like: a kernel with as many
channels before as after it has the same shape either way.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Shape = tuple[int, ...]


class Place(NamedTuple):
    """Where a leaf stands.

    Attributes:
      network: the network it is a part of.
      path: its name with the number of its block, from 0: ``"stage_2/0/conv_1/kernel"``.
      shape: its shape in one block, without the axis that runs over the blocks.
    """

    network: Any
    path: str
    shape: Shape


@dataclasses.dataclass(frozen=True)
class Part:
    """What a leaf is made of, and how.

    Attributes:
      tensors: what stands behind the published layer's name: ``(".weight",)``; ``("",)`` where the
        name is the tensor's own; a name that does not start with a dot stands for itself.
      shapes: the shapes that these tensors must have, from the leaf's place.
      value: the leaf, from its place and the tensors.

    Example:
      >>> dense = Part(
      ...     (".weight",), lambda place: (place.shape[::-1],), lambda place, weight: weight.T)
      >>> dense.value(None, np.ones((2, 3))).shape
      (3, 2)
    """

    tensors: tuple[str, ...]
    shapes: Callable[[Place], tuple[Shape, ...]]
    value: Callable[..., np.ndarray]


def copied(tensor: str, *ones: int) -> Part:
    """The tensor as it is, but for axes of one: PyTorch's modules often keep scalars as ``[1]``."""
    return Part(
        (tensor,),
        lambda place: ((*place.shape, *ones),),
        lambda place, found: found.reshape(place.shape),
    )


def _oihw(place: Place) -> tuple[Shape, ...]:
    height, width, fan_in, fan_out = place.shape
    return ((fan_out, fan_in, height, width),)


CONV = Part((".weight",), _oihw, lambda place, weight: weight.transpose(2, 3, 1, 0))
"""A convolution's ``[C_out, C_in, H, W]``, to ``[H, W, C_in, C_out]``."""

DENSE = Part((".weight",), lambda place: (place.shape[::-1],), lambda place, weight: weight.T)
"""A linear layer's ``[D_out, D_in]``, to ``[D_in, D_out]``."""


CONV_1X1 = Part(
    (".weight",),
    lambda place: ((*place.shape[::-1], 1, 1),),
    lambda place, weight: weight[:, :, 0, 0].T,
)
"""A linear layer written as a convolution ``[D_out, D_in, 1, 1]``, to ``[D_in, D_out]``."""

_TENSORS = {"bias": ".bias", "scale": ".weight", "mean": ".running_mean", "var": ".running_var"}


def default_part(place: Place) -> Part:
    """How a leaf is made of the tensors of PyTorch's own layers.

    Raises:
      ValueError: if PyTorch's layers have nothing like it; the leaf is named.

    Example:
      >>> from nf_resnets import models
      >>> place = Place(models.ResNet(depth=50), "head/kernel", (2048, 1000))
      >>> default_part(place) is DENSE
      True
    """
    *_, last = place.path.split("/")
    if last == "kernel" and len(place.shape) == 4:
        return CONV
    if last == "kernel" and len(place.shape) == 2:
        return DENSE
    if last in _TENSORS and len(place.shape) == 1:
        return copied(_TENSORS[last])
    if not place.shape:
        return copied("")
    raise ValueError(
        f"leaf {place.path!r} {list(place.shape)} found, which PyTorch's layers do not have; "
        "expected a Part for it in the layout."
    )


__all__ = ["CONV", "CONV_1X1", "DENSE", "Part", "Place", "copied", "default_part"]
