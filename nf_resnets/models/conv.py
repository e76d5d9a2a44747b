"""The convolution of all our networks, with a backward pass that stays fast inside a scan on CPU.

XLA brings convolutions into the form that its CPU library is fast at (batch first, features last,
no dilation) only outside loops. The two convolutions of a backward pass are in another form, and
inside a scan over blocks they run 10 to 50 times slower than they could. So on a CPU we write the
backward pass in the fast form ourselves, and 1x1 kernels and tiny images as matrix products. Where
oneDNN can be called, it is faster yet. Elsewhere than on a CPU the plain convolution is best. Which
of them a program holds is decided where it is lowered, for the platform that it is lowered for: a
program that is compiled on a CPU for a TPU has the TPU's form.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nf_resnets.models import onednn

FORMS = ("auto", "plain", "canonical", "onednn")

_DIMENSIONS = ("NHWC", "HWIO", "NHWC")
_TINY_IMAGE = 4  # pixels; measured: up to 2 x 2 the matrix form is several times faster
_NEVER_STORED = contextvars.ContextVar("never_stored", default=False)


@contextlib.contextmanager
def never_stored() -> Iterator[None]:
    """In here ``form="auto"`` calls oneDNN in convolutions that are not differentiated, too.

    For programs that are neither exported nor stored, such as the test of a run.
    """
    token = _NEVER_STORED.set(True)
    try:
        yield
    finally:
        _NEVER_STORED.reset(token)


def conv(
    x: jax.Array,
    kernel: jax.Array,
    stride: int = 1,
    *,
    same_padding: bool = False,
    form: str = "auto",
) -> jax.Array:
    """Convolves images with a kernel of odd size, padded alike on all sides, as PyTorch pads.

    Args:
      x: images ``[B, H, W, C_in]``.
      kernel: ``[K, K, C_in, C_out]``, ``K`` odd; ``(K - 1) / 2`` pixels of padding on every side.
      stride: of the output positions, in both directions.
      same_padding: whether the image is padded as TensorFlow's and JAX's ``"SAME"`` pads instead:
        no more than the last window needs, the larger half behind. With stride 1, and with stride
        2 and sides of an odd length, nothing differs; with stride 2 and sides of an even length
        every window begins one pixel later.
      form: ``"plain"`` is XLA's convolution; ``"canonical"`` the form for CPUs, of which
        forward-mode derivatives (``jax.jvp``) cannot be taken unless it is a matrix product;
        ``"onednn"`` the same with oneDNN's kernels in forward and backward pass of what is
        differentiated, in float32 with stride 1 or 2; ``"auto"`` is plain in programs for other
        platforms than CPUs, and in those for CPUs oneDNN's (inside :func:`never_stored` also where
        nothing is differentiated), or canonical where it is not available or where
        ``jax_compilation_cache_dir`` asks for programs to be stored, which these cannot be. Of
        ``"auto"``, too, forward-mode derivatives cannot be taken, on any platform.

    Returns:
      ``[B, ceil(H / stride), ceil(W / stride), C_out]``.

    Raises:
      ValueError: if the kernel is of even size, ``form`` is none of the four, or oneDNN is asked
        for and not available.

    Example:
      >>> conv(jnp.ones((1, 4, 4, 1)), jnp.ones((3, 3, 1, 1)), 2)[0, :, :, 0].tolist()
      [[4.0, 6.0], [6.0, 9.0]]
    """
    if kernel.shape[0] % 2 == 0 or kernel.shape[0] != kernel.shape[1]:
        raise ValueError(
            f"kernel of shape {kernel.shape} found; expected [K, K, C_in, C_out], K odd."
        )
    if form not in FORMS:
        *others, last = map(repr, FORMS)
        raise ValueError(f"form={form!r} found; expected {', '.join(others)} or {last}.")
    if form == "onednn" and not onednn.available():
        raise ValueError(
            "form='onednn' found; it needs a processor with AVX2, Linux, and jaxlib "
            f"{' or '.join(onednn.VERSIONS)}."
        )
    if same_padding:
        pads = lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], (stride, stride), "SAME")
        margin = (kernel.shape[0] - 1) // 2
        if any(pad != (margin, margin) for pad in pads):
            # The plain form is slow inside loops only, and the first block of a stage, which alone
            # has a stride, stands outside.
            return _convolve(x, kernel, stride, pads)
    if form == "plain":
        return _convolve(x, kernel, stride)
    if kernel.shape[0] == 1:
        return _pointwise(x, kernel, stride)
    if stride == 1 and x.shape[1] * x.shape[2] <= _TINY_IMAGE:
        return _as_matrix(x, kernel)
    x, kernel = _equally_varying(x, kernel)
    called = form == "onednn" or (form == "auto" and onednn.available() and not _are_stored())
    called = called and onednn.fits(x, kernel, stride)
    if form == "auto":
        return _by_platform(x, kernel, stride, called, called and _NEVER_STORED.get())
    return (_by_onednn if called else _canonical)(x, kernel, stride)


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
        lax.pcast(array, tuple(every - own), to="varying") if every - own else array
        for array, own in zip(arrays, varying, strict=True)
    ]


def _convolve(x: jax.Array, kernel: jax.Array, stride: int, pads: Any = None) -> jax.Array:
    padding = (kernel.shape[0] - 1) // 2
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), pads or [(padding, padding)] * 2, dimension_numbers=_DIMENSIONS
    )


def _pointwise(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    return jnp.einsum("bhwi,io->bhwo", x[:, ::stride, ::stride], kernel[0, 0])


def _as_matrix(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Multiplies the whole image by the matrix of the convolution.

    In an image of at most 2 x 2 pixels every pixel sees every other one, so that hardly any
    multiplication is by a padded zero.
    """
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


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _canonical(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    return _convolve(x, kernel, stride)


def _canonical_fwd(
    x: jax.Array, kernel: jax.Array, stride: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _convolve(x, kernel, stride), (x, kernel)


def _canonical_bwd(
    stride: int, saved: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    dilated = _dilated(grad, stride)
    return _grad_x(dilated, kernel, x.shape), _grad_kernel(x, dilated, kernel.shape[0])


def _dilated(grad: jax.Array, stride: int) -> jax.Array:
    """The output's gradient dilated by the stride: with it both gradients have stride 1."""
    between = (0, 0, stride - 1)
    zero = jnp.zeros((), grad.dtype)
    return lax.pad(grad, zero, [(0, 0, 0), between, between, (0, 0, 0)])


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
    out = lax.conv_general_dilated(
        x.transpose(3, 1, 2, 0),
        dilated.transpose(1, 2, 0, 3),
        (1, 1),
        padding,
        dimension_numbers=_DIMENSIONS,
    )
    return out.transpose(1, 2, 0, 3)


_canonical.defvjp(_canonical_fwd, _canonical_bwd)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _by_onednn(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    # What is not differentiated stays a program that can be exported and stored.
    return _convolve(x, kernel, stride)


def _by_onednn_fwd(
    x: jax.Array, kernel: jax.Array, stride: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _called(x, kernel, stride), (x, kernel)


def _by_onednn_bwd(
    stride: int, saved: tuple[jax.Array, jax.Array], grad: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, kernel = saved
    return (
        _called_grad_x(grad, kernel, x.shape, stride),
        _called_grad_kernel(x, grad, kernel.shape[0], stride),
    )


_by_onednn.defvjp(_by_onednn_fwd, _by_onednn_bwd)


# For second derivatives, by reverse mode twice, the calls themselves need derivatives: those of the
# canonical form.


def _own(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The same arrays, as results.

    Where a rule below hands on its arguments, JAX 0.10 may mistake others for them when the rule is
    differentiated inside a scan.
    """
    return lax.optimization_barrier(arrays)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _called(x: jax.Array, kernel: jax.Array, stride: int) -> jax.Array:
    return onednn.convolve(x, kernel, stride)


def _called_fwd(x: jax.Array, kernel: jax.Array, stride: int) -> Any:
    return _called(x, kernel, stride), _own(x, kernel)


_called.defvjp(_called_fwd, _by_onednn_bwd)


def _with_derivatives_of(
    canonical: Callable[..., jax.Array], call: Callable[..., jax.Array]
) -> Callable[..., jax.Array]:
    """``call(a, b, *static)`` with the derivatives by ``a`` and ``b`` of another function."""
    called = jax.custom_vjp(call, nondiff_argnums=(2, 3))

    def forward(a: jax.Array, b: jax.Array, *static: Any) -> Any:
        return called(a, b, *static), _own(a, b)

    def backward(one: Any, two: Any, saved: Any, cotangent: jax.Array) -> Any:
        return jax.vjp(lambda a, b: canonical(a, b, one, two), *saved)[1](cotangent)

    called.defvjp(forward, backward)
    return called


_called_grad_x = _with_derivatives_of(
    lambda grad, kernel, shape, stride: _grad_x(_dilated(grad, stride), kernel, shape),
    onednn.grad_x,
)
_called_grad_kernel = _with_derivatives_of(
    lambda x, grad, size, stride: _grad_kernel(x, _dilated(grad, stride), size),
    onednn.grad_kernel,
)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _by_platform(
    x: jax.Array, kernel: jax.Array, stride: int, called: bool, called_alone: bool
) -> jax.Array:
    """On a CPU the canonical form or, if ``called``, oneDNN's; elsewhere the plain one.

    If ``called_alone``, also where it is not differentiated.

    The choice stands inside the two passes: were it differentiated itself, each of its branches
    would have the other's residuals as zeros, in memory and, inside a scan, once a block.
    """
    return _forward(x, kernel, stride, called_alone)


def _forward(x: jax.Array, kernel: jax.Array, stride: int, called: bool) -> jax.Array:
    plain = partial(_convolve, stride=stride)
    if not called:
        return plain(x, kernel)
    return lax.platform_dependent(x, kernel, cpu=partial(_called, stride=stride), default=plain)


def _by_platform_fwd(
    x: jax.Array, kernel: jax.Array, stride: int, called: bool, called_alone: bool
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _forward(x, kernel, stride, called), (x, kernel)


def _by_platform_bwd(
    stride: int,
    called: bool,
    called_alone: bool,
    saved: tuple[jax.Array, jax.Array],
    grad: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    def on_cpu(x: jax.Array, kernel: jax.Array, grad: jax.Array) -> tuple[jax.Array, jax.Array]:
        return (_by_onednn_bwd if called else _canonical_bwd)(stride, (x, kernel), grad)

    def plain(x: jax.Array, kernel: jax.Array, grad: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.vjp(partial(_convolve, stride=stride), x, kernel)[1](grad)

    return lax.platform_dependent(*saved, grad, cpu=on_cpu, default=plain)


_by_platform.defvjp(_by_platform_fwd, _by_platform_bwd)

__all__ = ["FORMS", "conv", "never_stored"]
