"""Convolutions by oneDNN, the CPU library that jaxlib carries and that JAX does not call by itself.

XLA's compiler never writes its custom call ``__onednn$convolution`` for a backward pass. Here it is
written directly: the convolution, and both of its gradients as convolutions of the form that oneDNN
has its fast kernels for, in float32.

The call is no public interface. So it is used with those versions of jaxlib only with which the
tests have compared it to the plain form, and on processors with AVX2 or AVX-512, for whose kernels
no shape was found to fall back to oneDNN's reference loops, a hundred times slower.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import platform
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax

VERSIONS = ("0.10.2", "0.12.0.1")
"""Of jaxlib, with which the call was compared to the plain convolution."""

_IMAGES, _MOST_PARTS = 16, 8  # of a batch, for the kernel's gradient; measured
_INSTRUCTIONS = {"avx2", "fma"}  # what AVX-512 brings has these, too


@functools.cache
def available() -> bool:
    """Whether this jaxlib, on this processor, has the call."""
    if importlib.metadata.version("jaxlib") not in VERSIONS or platform.system() != "Linux":
        return False
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.startswith("flags")), "")
    return set(flags.split()) >= _INSTRUCTIONS


def fits(x: jax.Array, kernel: jax.Array, stride: int) -> bool:
    """Whether a convolution is of the kind that the functions below are written for."""
    return x.dtype == kernel.dtype == jnp.float32 and stride <= 2 and min(x.shape[1:3]) >= stride


def convolve(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    """``[B, H, W, C_in]`` to ``[B, ceil(H / stride), ceil(W / stride), C_out]``; stride 1 or 2."""
    margin = (kernel.shape[0] - 1) // 2
    sides = tuple(-(-side // stride) for side in x.shape[1:3])
    shape, padding = (x.shape[0], *sides, kernel.shape[3]), [(margin, margin)] * 2
    return _call(x, kernel, shape, weights=(2, 3, (0, 1)), padding=padding, stride=stride)


def grad_x(grad: jax.Array, kernel: jax.Array, like: tuple[int, ...], stride: int) -> jax.Array:
    """The gradient of the images: a convolution with the kernel turned by 180 degrees.

    With stride 2 the pixels of even and of odd coordinates are four images, and to each belong some
    of the kernel's taps: ``x[2 q + a]`` met tap ``t`` of output ``o`` if ``2 o + t - p = 2 q + a``.
    """
    batch, *sides, features = like
    size = kernel.shape[0]
    margin = (size - 1) // 2
    halves = [-(-side // stride) for side in sides]
    rows = []
    for down in range(stride):
        columns = []
        for right in range(stride):
            taps, padding, counts = [], [], []
            for axis, start in enumerate((down, right)):
                first = (start + margin) % stride
                length = len(range(first, size, stride))
                ahead = (start + margin - first) // stride
                count = len(range(start, sides[axis], stride))
                taps.append(slice(first, None, stride))
                padding.append((length - 1 - ahead, count + ahead - grad.shape[1 + axis]))
                counts.append(count)
            turned = jnp.flip(kernel[taps[0], taps[1]], (0, 1))
            shape = (batch, *counts, features)
            part = _call(grad, turned, shape, weights=(3, 2, (0, 1)), padding=padding)
            short = [half - count for half, count in zip(halves, counts, strict=True)]
            columns.append(jnp.pad(part, ((0, 0), (0, short[0]), (0, short[1]), (0, 0))))
        rows.append(jnp.stack(columns, axis=3))
    whole = jnp.stack(rows, axis=2)
    whole = whole.reshape(batch, halves[0] * stride, halves[1] * stride, features)
    return whole[:, : sides[0], : sides[1]]


def grad_kernel(x: jax.Array, grad: jax.Array, size: int, stride: int) -> jax.Array:
    """The gradient of the kernel, ``[K, K, C_in, C_out]``.

    Convolves one three-dimensional image ``[H, W, C_in]``, whose channels are the batch, with the
    output's gradient, which has one tap along ``C_in``. In this form the rows of the matrix
    products inside are the ``C_in``, and not the ``K`` columns of an output so small.
    """
    batch, *sides, c_in = x.shape
    margin = (size - 1) // 2
    padding = [
        (margin, size + stride * (outputs - 1) - side - margin)
        for outputs, side in zip(grad.shape[1:3], sides, strict=True)
    ]
    # Each of the K x K outputs passes over all of the arrays: part by part they stay in the cache.
    parts = max(1, min(_MOST_PARTS, batch // _IMAGES))
    ends = [batch * part // parts for part in range(parts + 1)]
    outs = [
        _call(
            x[start:end].transpose(1, 2, 3, 0)[None],
            grad[start:end, :, :, None],
            (1, size, size, c_in, grad.shape[3]),
            weights=(0, 4, (1, 2, 3)),
            padding=[*padding, (0, 0)],
            dilation=(stride, stride, 1),
        )
        for start, end in zip(ends, ends[1:], strict=False)
    ]
    return functools.reduce(jnp.add, outs)[0]


def _call(
    x: jax.Array,
    kernel: jax.Array,
    shape: tuple[int, ...],
    *,
    weights: tuple[int, int, tuple[int, ...]],
    padding: Sequence[tuple[int, int]],
    stride: int = 1,
    dilation: Sequence[int] | None = None,
) -> jax.Array:
    """Calls oneDNN's convolution of ``[N, *spatial, C_in]``, to ``shape``.

    ``weights`` are the kernel's dimensions of ``C_in`` and of ``C_out``, and the spatial ones.
    Padding and dilation are given for each spatial dimension, the stride for all.
    """
    spatial = range(1, x.ndim - 1)

    def texts(numbers: Sequence[int]) -> list[str]:  # as protocol buffers write 64-bit integers
        return [str(number) for number in numbers]

    channels_last = {
        "data": {"batch_dim": "0", "feature_dim": str(x.ndim - 1), "spatial_dims": texts(spatial)}
    }
    into, out_of, taps = weights
    config = {
        "dims": str(x.ndim),
        "feature_groups": "1",
        "input": channels_last,
        "kernel": {
            "filter": {
                "input_feature_dim": str(into),
                "output_feature_dim": str(out_of),
                "spatial_dims": texts(taps),
                "shape": texts(kernel.shape),
            }
        },
        "output": channels_last,
        "window": {
            "pad_left": texts([before for before, _ in padding]),
            "pad_right": texts([behind for _, behind in padding]),
            "strides": texts([stride] * len(spatial)),
            "window_dilations": texts(dilation or [1] * len(spatial)),
        },
    }
    call = jax.ffi.ffi_call(
        "__onednn$convolution",
        jax.ShapeDtypeStruct(shape, x.dtype),
        vmap_method="sequential",
        custom_call_api_version=1,
        legacy_backend_config=json.dumps({"onednn_conv_config": config}),
    )
    out = call(x, kernel)
    # Inside shard_map JAX takes what a call returns for the same on all devices.
    every = frozenset().union(*(jax.typeof(a).manual_axis_type.varying for a in (x, kernel)))
    return lax.pcast(out, tuple(every), to="varying") if every else out
