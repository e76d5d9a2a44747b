"""The convolution of all our networks, with a backward pass that stays fast inside a scan on CPU.

XLA brings convolutions into the form that its CPU library is fast at (batch first, features last,
no dilation) only outside loops. The two convolutions of a backward pass are in another form, and
inside a scan over blocks run 10 to 50 times slower than they could. So on a CPU the backward pass
is written in the fast form, and 1x1 kernels and tiny images as matrix products; where oneDNN can be
called, it is faster yet. Elsewhere the plain convolution is best. A program is given its form where
it is lowered, for the platform that it is lowered for.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nf_resnets.models import onednn

_DIMENSIONS = ("NHWC", "HWIO", "NHWC")
_TINY_IMAGE = 4  # pixels; measured: up to 2 x 2 the matrix form is several times faster
_NEVER_STORED = contextvars.ContextVar("never_stored", default=False)


@contextlib.contextmanager
def never_stored() -> Iterator[None]:
    """In here oneDNN is called without differentiation, too: for programs that nobody stores."""
    token = _NEVER_STORED.set(True)
    try:
        yield
    finally:
        _NEVER_STORED.reset(token)


def conv(x: jax.Array, kernel: jax.Array, stride: int = 1) -> jax.Array:
    """Convolves images with a kernel of odd size, padded alike on all sides, as PyTorch pads.

    Forward-mode derivatives (``jax.jvp``) cannot be taken, unless it is a matrix product. On a CPU
    what is differentiated calls oneDNN's kernels, if they are available, in float32 with stride 1
    or 2, and if ``jax_compilation_cache_dir`` does not ask for programs to be stored, which these
    cannot be.

    Args:
      x: images ``[B, H, W, C_in]``.
      kernel: ``[K, K, C_in, C_out]``, ``K`` odd; ``(K - 1) / 2`` pixels of padding on every side.
      stride: of the output positions, in both directions.

    Returns:
      ``[B, ceil(H / stride), ceil(W / stride), C_out]``.

    Raises:
      ValueError: if the kernel is of even size.

    Example:
      >>> conv(jnp.ones((1, 4, 4, 1)), jnp.ones((3, 3, 1, 1)), 2)[0, :, :, 0].tolist()
      [[4.0, 6.0], [6.0, 9.0]]
    """
    if kernel.shape[0] % 2 == 0 or kernel.shape[0] != kernel.shape[1]:
        raise ValueError(
            f"kernel of shape {kernel.shape} found; expected [K, K, C_in, C_out], K odd."
        )
    if kernel.shape[0] == 1:
        return jnp.einsum("bhwi,io->bhwo", x[:, ::stride, ::stride], kernel[0, 0])
    if stride == 1 and x.shape[1] * x.shape[2] <= _TINY_IMAGE:
        return _as_matrix(x, kernel)
    x, kernel = _equally_varying(x, kernel)
    called = onednn.available() and not _are_stored() and onednn.fits(x, kernel, stride)
    return _by_platform(x, kernel, stride, called, called and _NEVER_STORED.get())


def _are_stored() -> bool:
    """Whether compiled programs are stored: XLA cannot store one that calls oneDNN."""
    names = ("jax_enable_compilation_cache", "jax_compilation_cache_dir")
    return all(getattr(jax.config, name, None) for name in names)


def _equally_varying(*arrays: jax.Array) -> list[jax.Array]:
    """Casts arrays inside ``jax.shard_map`` to vary over all axes that one of them varies over.

    JAX does this by itself everywhere but at a custom_vjp, whose backward pass would otherwise
    return a gradient for a kernel that the devices share which is not summed over them.
    """
    varying = [jax.typeof(array).manual_axis_type.varying for array in arrays]
    every = frozenset().union(*varying)
    return [
        lax.pcast(array, tuple(every - axes), to="varying") if every - axes else array
        for array, axes in zip(arrays, varying, strict=True)
    ]


def _plain(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    padding = (kernel.shape[0] - 1) // 2
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), [(padding, padding)] * 2, dimension_numbers=_DIMENSIONS
    )


def _as_matrix(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Multiplies the whole image by the matrix of the convolution; every pixel sees every other."""
    size, _, c_in, c_out = kernel.shape
    batch, height, width, _ = x.shape
    centre = max(height, width, (size + 1) // 2) - 1
    margin = centre - (size - 1) // 2
    padded = jnp.pad(kernel, ((margin, margin), (margin, margin), (0, 0), (0, 0)))
    rows = [
        padded[centre - i : centre - i + height, centre - j : centre - j + width]
        for i in range(height)
        for j in range(width)
    ]
    matrix = jnp.stack(rows, axis=3).reshape(height * width * c_in, height * width * c_out)
    return (x.reshape(batch, -1) @ matrix).reshape(batch, height, width, c_out)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _by_platform(
    x: jax.Array, kernel: jax.Array, stride: int, called: bool, alone: bool
) -> jax.Array:
    """The convolution; on a CPU, if ``called``, oneDNN's where it is differentiated or ``alone``.

    The choice of the platform stands inside the two passes: were it differentiated itself, each of
    its branches would have the other's residuals as zeros, in memory and, inside a scan, once a
    block.
    """
    plain = partial(_plain, stride=stride)
    if not (called and alone):
        return plain(x, kernel)
    by_onednn = partial(onednn.convolve, stride=stride)
    return lax.platform_dependent(x, kernel, cpu=by_onednn, default=plain)


def _by_platform_fwd(
    x: jax.Array, kernel: jax.Array, stride: int, called: bool, alone: bool
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    # What is differentiated here may be so again, for second derivatives by reverse mode twice.
    return _by_platform(x, kernel, stride, called, True), _as_results(alone, x, kernel)


def _by_platform_bwd(
    stride: int, called: bool, alone: bool, saved: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _gradients(*saved, grad, stride, called)


_by_platform.defvjp(_by_platform_fwd, _by_platform_bwd)


def _as_results(is_nested: bool, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The same arrays, as results where a rule is differentiated itself.

    Where such a rule hands on its arguments, JAX 0.10 may mistake others for them inside a scan.
    """
    return lax.optimization_barrier(arrays) if is_nested else arrays


@partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _gradients(
    x: jax.Array, kernel: jax.Array, grad: jax.Array, stride: int, called: bool
) -> tuple[jax.Array, jax.Array]:
    def plain(x: jax.Array, kernel: jax.Array, grad: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.vjp(partial(_plain, stride=stride), x, kernel)[1](grad)

    def by_onednn(x: jax.Array, kernel: jax.Array, grad: jax.Array) -> tuple[jax.Array, jax.Array]:
        return (
            onednn.grad_x(grad, kernel, x.shape, stride),
            onednn.grad_kernel(x, grad, kernel.shape[0], stride),
        )

    on_cpu = by_onednn if called else partial(_canonical, stride=stride)
    return lax.platform_dependent(x, kernel, grad, cpu=on_cpu, default=plain)


def _gradients_fwd(
    x: jax.Array, kernel: jax.Array, grad: jax.Array, stride: int, called: bool
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, ...]]:
    return _gradients(x, kernel, grad, stride, called), _as_results(True, x, kernel, grad)


def _gradients_bwd(
    stride: int, called: bool, saved: tuple[jax.Array, ...], cotangents: Any
) -> tuple[jax.Array, ...]:
    return jax.vjp(partial(_canonical, stride=stride), *saved)[1](cotangents)


_gradients.defvjp(_gradients_fwd, _gradients_bwd)


def _canonical(
    x: jax.Array, kernel: jax.Array, grad: jax.Array, stride: int
) -> tuple[jax.Array, jax.Array]:
    """Both gradients as convolutions of stride 1, of the dilated gradient of the output."""
    between = (0, 0, stride - 1)
    zero = jnp.zeros((), grad.dtype)
    dilated = lax.pad(grad, zero, [(0, 0, 0), between, between, (0, 0, 0)])
    return _grad_x(dilated, kernel, x.shape), _grad_kernel(x, dilated, kernel.shape[0])


def _grad_x(dilated: jax.Array, kernel: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Convolves the gradient with the kernel turned by 180 degrees, its features swapped."""
    size = kernel.shape[0]
    before = (size - 1) // 2
    padding = [(before, shape[axis] + size - 1 - dilated.shape[axis] - before) for axis in (1, 2)]
    turned = jnp.flip(kernel, (0, 1)).swapaxes(2, 3)
    return lax.conv_general_dilated(dilated, turned, (1, 1), padding, dimension_numbers=_DIMENSIONS)


def _grad_kernel(x: jax.Array, dilated: jax.Array, size: int) -> jax.Array:
    """Convolves the images with the gradient, batch and features having changed places."""
    before = (size - 1) // 2
    padding = [(before, size - 1 + dilated.shape[axis] - x.shape[axis] - before) for axis in (1, 2)]
    x, dilated = x.transpose(3, 1, 2, 0), dilated.transpose(1, 2, 0, 3)
    out = lax.conv_general_dilated(x, dilated, (1, 1), padding, dimension_numbers=_DIMENSIONS)
    return out.transpose(1, 2, 0, 3)
