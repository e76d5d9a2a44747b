"""The convolution and its CPU form: values, derivatives, transformations, and what it refuses.

Values are compared with sums in NumPy in float64. A float32 sum of n = K K C_in terms is off by
6e-8 sqrt(n) of its terms' size: 1e-6 for the sizes here, and the kernel's gradient sums B H W of
them; so 1e-5 of an array's largest entry, where a pixel left out gives 1e-1.
"""

import itertools
import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from nf_resnets.models import CifarResNet, WideResNet, conv, onednn
from nf_resnets.models.conv import never_stored
from tests.models.trees import assert_close, images, quick_jit, random_variables

FLOAT32 = 1e-5
BFLOAT16 = 2e-2  # 2**-9 a rounding, of inputs that are exact; the sums' rounding errors add up


def naive(x, kernel, stride):
    """The sum written out, over output pixels and kernel entries; float64."""
    size, c_out = kernel.shape[0], kernel.shape[3]
    batch, height, width, _ = x.shape
    rows, columns = -(-height // stride), -(-width // stride)
    y = np.zeros((batch, rows, columns, c_out))
    for i, j, a, b in itertools.product(range(rows), range(columns), range(size), range(size)):
        row, column = i * stride + a - size // 2, j * stride + b - size // 2
        if 0 <= row < height and 0 <= column < width:
            y[:, i, j] += x[:, row, column].astype(float) @ kernel[a, b].astype(float)
    return y


def naive_gradients(x, kernel, stride, cotangent):
    """The transposed sums, written out likewise."""
    size = kernel.shape[0]
    grad_x, grad_kernel = np.zeros(x.shape), np.zeros(kernel.shape)
    rows, columns = cotangent.shape[1:3]
    for i, j, a, b in itertools.product(range(rows), range(columns), range(size), range(size)):
        row, column = i * stride + a - size // 2, j * stride + b - size // 2
        if 0 <= row < x.shape[1] and 0 <= column < x.shape[2]:
            grad_x[:, row, column] += cotangent[:, i, j] @ kernel[a, b].T.astype(float)
            grad_kernel[a, b] += x[:, row, column].T.astype(float) @ cotangent[:, i, j]
    return grad_x, grad_kernel


# Those with a backward pass of our own, each against the sums in NumPy.
WRITTEN_OUT = [
    "canonical",
    pytest.param(
        "onednn",
        marks=pytest.mark.skipif(
            not onednn.available(), reason="needs AVX2, Linux, and a jaxlib that was compared"
        ),
    ),
]


def pull_back(x, kernel, cotangent, stride, form):
    value, vjp = jax.vjp(lambda x, kernel: conv(x, kernel, stride, form=form), x, kernel)
    return value, *vjp(cotangent)


SIDES = (1, 2, 5, 8, 15, 16)

quick_pull_back = quick_jit(pull_back, static_argnames=("stride", "form"))


def random_case(rng, height, width, size):
    batch = int(rng.choice([1, 3]))
    c_in, c_out = rng.permutation(np.arange(1, 7))[:2]
    x = rng.standard_normal((batch, height, width, c_in), dtype=np.float32)
    return x, rng.standard_normal((size, size, c_in, c_out), dtype=np.float32)


SIZES = [(1, 1), (1, 4), (2, 2), (7, 4), (9, 8)]


@pytest.mark.every(3)
@pytest.mark.parametrize("stride", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("size", [1, 3, pytest.param(5, marks=pytest.mark.slow), 7])
@pytest.mark.parametrize("form", WRITTEN_OUT)
def test_forms_agree_with_sums_in_numpy(form, size, stride):
    """Images down to one pixel are smaller than the kernel, and than the stride."""
    rng = np.random.default_rng(10 * size + stride)
    for height, width in SIZES:
        x, kernel = random_case(rng, height, width, size)
        value = naive(x, kernel, stride)
        cotangent = rng.standard_normal(value.shape).astype(np.float32)
        expected = (value, *naive_gradients(x, kernel, stride, cotangent))
        found = quick_pull_back(x, kernel, cotangent, stride=stride, form=form)
        assert_close(found, expected, FLOAT32)
        assert_close(conv(x, kernel, stride, form="plain"), value, FLOAT32)


def calls_onednn(form, differentiated, dtype=jnp.float32):
    """Whether a program of a convolution calls oneDNN, and whether it has a rule of our own."""
    x, kernel = jnp.ones((1, 5, 5, 2), dtype), jnp.ones((3, 3, 2, 2), dtype)

    def loss(x, kernel):
        return conv(x, kernel, form=form).sum()

    text = str(jax.make_jaxpr(jax.grad(loss) if differentiated else loss)(x, kernel))
    assert differentiated or ("custom_vjp" in text) == (form in ("canonical", "onednn"))
    return "__onednn$" in text


def form_on(platform):
    """The form that a program for a platform has, read from its text before it is compiled."""
    x, kernel = jnp.ones((1, 6, 6, 2)), jnp.ones((3, 3, 2, 2))
    gradients = jax.jit(jax.grad(lambda x, kernel: (conv(x, kernel, 2) ** 2).sum(), (0, 1)))
    text = gradients.trace(x, kernel).lower(lowering_platforms=(platform,)).as_text()
    if "__onednn$" in text:
        return "onednn"
    # The derivatives of a convolution with stride 2 are convolutions with dilation 2.
    return "plain" if re.search(r"(lhs|rhs)_dilate = \[2, 2\]", text) else "canonical"


def test_the_form_is_that_of_the_platform_of_the_program(monkeypatch):
    for platform, available, form in (
        ("cpu", True, "onednn"), ("cpu", False, "canonical"), ("cuda", True, "plain"),
        ("tpu", True, "plain"),
    ):  # fmt: skip
        monkeypatch.setattr(onednn, "available", lambda available=available: available)
        assert form_on(platform) == form, platform


def test_auto_is_canonical_where_programs_are_to_be_stored(monkeypatch, tmp_path):
    monkeypatch.setattr(onednn, "available", lambda: True)
    before = jax.config.jax_compilation_cache_dir
    try:
        jax.config.update("jax_compilation_cache_dir", str(tmp_path))
        assert form_on("cpu") == "canonical"
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
    assert form_on("cpu") == "onednn"


def test_only_what_is_differentiated_calls_onednn(monkeypatch):
    monkeypatch.setattr(onednn, "available", lambda: True)
    assert calls_onednn("onednn", differentiated=True)
    assert not calls_onednn("onednn", differentiated=False)
    assert not calls_onednn("onednn", differentiated=True, dtype=jnp.bfloat16)
    for form in ("canonical", "plain"):
        assert not calls_onednn(form, differentiated=True)


def test_a_program_that_is_never_stored_calls_onednn_in_every_convolution(monkeypatch):
    monkeypatch.setattr(onednn, "available", lambda: True)
    x, kernel = jnp.ones((1, 5, 5, 2)), jnp.ones((3, 3, 2, 2))

    def calls(platform):
        traced = jax.jit(lambda x: conv(x, kernel)).trace(x)
        return "__onednn$" in traced.lower(lowering_platforms=(platform,)).as_text()

    assert not calls("cpu")
    with never_stored():
        assert calls("cpu") and not calls("cuda")
        monkeypatch.setattr(onednn, "available", lambda: False)
        assert not calls("cpu")
    monkeypatch.setattr(onednn, "available", lambda: True)
    assert not calls("cpu")


@pytest.mark.parametrize("form", WRITTEN_OUT[1:])
def test_what_is_never_stored_has_the_same_numbers(form):
    rng = np.random.default_rng(0)
    x, kernel = random_case(rng, 9, 16, 3)
    with never_stored():
        found = jax.jit(lambda x: conv(x, kernel, 2))(x)
    assert_close(found, naive(x, kernel, 2), FLOAT32)


def test_refuses_onednn_where_it_is_not_available(monkeypatch):
    monkeypatch.setattr(onednn, "available", lambda: False)
    with pytest.raises(ValueError, match="form='onednn' found; it needs a processor with AVX2"):
        conv(jnp.ones((1, 5, 5, 2)), jnp.ones((3, 3, 2, 2)), form="onednn")


@pytest.mark.parametrize("form", WRITTEN_OUT[1:])
def test_what_is_not_differentiated_can_be_exported(form):
    x, kernel = jnp.ones((1, 5, 5, 2)), jnp.ones((3, 3, 2, 2))
    function = jax.jit(lambda x: conv(x, kernel, form=form))
    exported = jax.export.export(function, platforms=("cpu", "cuda"))(x)
    assert_close(exported.call(x), conv(x, kernel, form="plain"), FLOAT32)
    with pytest.raises(ValueError, match="__onednn"):
        jax.export.export(jax.jit(jax.grad(lambda x: function(x).sum())))(x)


@pytest.mark.parametrize("form", WRITTEN_OUT[1:])
def test_random_shapes(form):
    """As large as in networks, odd, and of one image, against the plain form's own derivatives."""
    rng = np.random.default_rng(6)
    for _ in range(6):
        batch, height, width = (int(rng.choice(sizes)) for sizes in ((1, 2, 17, 37), SIDES, SIDES))
        c_in, c_out = (int(rng.choice((1, 3, 8, 16, 24, 33))) for _ in range(2))
        size, stride = int(rng.choice((3, 5))), int(rng.choice((1, 2)))
        x = rng.standard_normal((batch, height, width, c_in), dtype=np.float32)
        kernel = rng.standard_normal((size, size, c_in, c_out), dtype=np.float32)
        out = -(-height // stride), -(-width // stride)
        cotangent = rng.standard_normal((batch, *out, c_out), dtype=np.float32)
        found, expected = (
            quick_pull_back(x, kernel, cotangent, stride=stride, form=each)
            for each in (form, "plain")
        )
        assert_close(found, expected, FLOAT32)


@pytest.mark.parametrize(("side", "size", "stride"), [(6, 3, 1), (5, 3, 2), (2, 3, 1), (5, 1, 2)])
def test_bfloat16(side, size, stride):
    rng = np.random.default_rng(0)
    x, kernel = (
        jnp.asarray(rng.standard_normal(shape), jnp.bfloat16)
        for shape in ((3, side, side, 4), (size, size, 4, 5))
    )
    wide = [np.asarray(a, np.float64) for a in (x, kernel)]
    value = naive(*wide, stride)
    cotangent = jnp.asarray(rng.standard_normal(value.shape), jnp.bfloat16)
    expected = (value, *naive_gradients(*wide, stride, np.asarray(cotangent, np.float64)))
    found = quick_pull_back(x, kernel, cotangent, stride=stride, form="canonical")
    assert {a.dtype for a in found} == {jnp.dtype(jnp.bfloat16)}
    assert_close(found, expected, BFLOAT16)


TRANSFORMED = [(5, 3, 2), (2, 3, 1), (5, 3, 1), (4, 1, 2)]


@pytest.mark.parametrize(("side", "size", "stride"), TRANSFORMED)
@pytest.mark.every(3)
@pytest.mark.parametrize("form", WRITTEN_OUT)
def test_vmap(form, side, size, stride):
    """Several runs at once have a kernel each, or share the images, or share the kernel."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3, 2, side, side, 4), dtype=np.float32)
    kernel = rng.standard_normal((3, size, size, 4, 5), dtype=np.float32)
    out = -(-side // stride)
    cotangent = rng.standard_normal((3, 2, out, out, 5), dtype=np.float32)

    def one(x, kernel, cotangent):
        return pull_back(x, kernel, cotangent, stride, form)

    for axes in ((0, 0, 0), (None, 0, 0), (0, None, 0)):
        given = [a[0] if axis is None else a for a, axis in zip((x, kernel), axes, strict=False)]
        found = quick_jit(jax.vmap(one, axes))(*given, cotangent)
        for run in range(3):
            own = [a if axis is None else a[run] for a, axis in zip(given, axes, strict=False)]
            expected = (
                naive(*own, stride),
                *naive_gradients(*own, stride, cotangent[run].astype(float)),
            )
            assert_close(tuple(a[run] for a in found), expected, FLOAT32)


@pytest.mark.parametrize("side", [5, 2])
@pytest.mark.parametrize("form", WRITTEN_OUT)
def test_scan(form, side):
    """Five convolutions one after another, by a scan and written out."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((2, side, side, 4), dtype=np.float32)
    kernels = rng.standard_normal((5, 3, 3, 4, 4), dtype=np.float32) / 6

    def scanned(x, kernels):
        step = lambda x, kernel: (jnp.sin(conv(x, kernel, form=form)), None)  # noqa: E731
        return (lax.scan(step, x, kernels)[0] ** 2).sum()

    def written_out(x, kernels):
        for kernel in kernels:
            x = jnp.sin(conv(x, kernel, form="plain"))
        return (x**2).sum()

    found, expected = (
        quick_jit(jax.value_and_grad(f, (0, 1)))(x, kernels) for f in (scanned, written_out)
    )
    assert_close(found, expected, FLOAT32)


@pytest.mark.parametrize(("side", "size", "stride"), TRANSFORMED)
@pytest.mark.parametrize("varying", [True, False])
@pytest.mark.every(10)
@pytest.mark.parametrize("form", WRITTEN_OUT)
def test_shard_map_with_check_vma(form, varying, side, size, stride):
    """Each device has its part of the batch; the kernel is its own copy, or the one they share.

    A shared kernel's gradient is summed over the devices by shard_map itself.
    """
    devices = min(2, jax.device_count())
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,))
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, side, side, 4), dtype=np.float32)
    kernel = rng.standard_normal((size, size, 4, 5), dtype=np.float32)

    def loss(x, kernel, form):
        return (conv(x, kernel, stride, form=form) ** 2).sum()

    def local(x, kernel):
        if varying:
            kernel = lax.pcast(kernel, ("data",), to="varying")
        value, grads = jax.value_and_grad(loss, (0, 1))(x, kernel, form)
        grad_kernel = lax.psum(grads[1], "data") if varying else grads[1]
        return lax.psum(value, "data"), (grads[0], grad_kernel)

    specs = (P(), (P("data"), P()))
    sharded = jax.shard_map(local, mesh=mesh, in_specs=(P("data"), P()), out_specs=specs)
    expected = jax.value_and_grad(loss, (0, 1))(x, kernel, "plain")
    assert_close(quick_jit(sharded)(x, kernel), expected, FLOAT32)


@pytest.mark.parametrize(("side", "size", "stride"), TRANSFORMED)
@pytest.mark.every(3)
@pytest.mark.parametrize("written_out", WRITTEN_OUT)
def test_second_derivative_by_reverse_over_reverse(written_out, side, size, stride):
    rng = np.random.default_rng(4)
    x = rng.standard_normal((2, side, side, 3), dtype=np.float32)
    kernel = rng.standard_normal((size, size, 3, 4), dtype=np.float32)

    def squared_gradients(x, kernel, form):
        def f(x, kernel):
            return jnp.sin(conv(x, kernel, stride, form=form)).sum()

        return sum((g**2).sum() for g in jax.grad(f, (0, 1))(x, kernel))

    found, expected = (
        quick_jit(jax.grad(squared_gradients, (0, 1)), static_argnames="form")(x, kernel, form=form)
        for form in (written_out, "plain")
    )
    assert_close(found, expected, FLOAT32)


@pytest.mark.parametrize("form", WRITTEN_OUT)
def test_second_derivative_through_a_scan(form):
    """Of equal shapes, so that an array that is taken for another is wrong, and not refused."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((4, 3, 3, 4), dtype=np.float32)
    kernels = rng.standard_normal((3, 2, 3, 3, 4, 4), dtype=np.float32) / 6

    def quotient(factor, form):
        def loss(kernels):
            def step(x, pair):
                h = conv(factor * x, pair[0], form=form)
                return x + conv(jnp.sin(h), factor * pair[1], form=form), None

            return (lax.scan(step, x, kernels)[0] ** 2).sum()

        return jnp.abs(jax.grad(loss)(kernels)).sum()

    found, expected = (
        quick_jit(jax.grad(quotient), static_argnames="form")(jnp.float32(1.1), form=each)
        for each in (form, "plain")
    )
    assert_close(found, expected, FLOAT32)


def test_forward_mode_needs_the_plain_form():
    x, kernel = jnp.ones((1, 5, 5, 1)), jnp.ones((3, 3, 1, 1))
    tangent = jax.jvp(lambda x: conv(x, kernel, form="plain"), (x,), (x,))[1]
    assert_close(tangent, conv(x, kernel, form="plain"), FLOAT32)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda x: conv(x, kernel, form="canonical"), (x,), (x,))


@pytest.mark.parametrize("shape", [(2, 2, 1, 1), (3, 5, 1, 1), (4, 4, 1, 1)])
def test_refuses_kernels_that_are_not_square_and_odd(shape):
    with pytest.raises(ValueError, match=r"kernel of shape .* found; expected \[K, K, C_in, C_out"):
        conv(jnp.ones((1, 4, 4, 1)), jnp.ones(shape))


def test_refuses_an_unknown_form():
    with pytest.raises(ValueError, match="form='fast' found; expected 'auto', 'plain', 'can"):
        conv(jnp.ones((1, 4, 4, 1)), jnp.ones((3, 3, 1, 1)), form="fast")


# --- Nothing normalises silently ---------------------------------------------------------------


@pytest.mark.parametrize("network", [CifarResNet, WideResNet])
def test_an_image_of_nan_spoils_no_other(network):
    """The same from outside, whatever the program does: in training mode, without BatchNorm."""
    model = network(depth=14 if network is CifarResNet else 10, scheme="fixup", stem_channels=4)
    x = images(0, 3, 8, 8, 3)
    x[1] = np.nan
    forward = quick_jit(lambda v, x: model.apply(v, x, train=True))
    logits = forward(random_variables(model, 0), x)
    assert np.isfinite(np.asarray(logits)).all(axis=1).tolist() == [True, False, True]


@pytest.mark.parametrize("network", [CifarResNet, WideResNet])
@pytest.mark.parametrize("scheme", ["skipinit", "batchnorm"])
def test_features_of_nan_have_logits_of_nan_in_a_compiled_network(network, scheme):
    """Not with ``jax.nn.relu``, whose NaN the CPU's compiler turns into 0 within a mean."""
    model = network(depth=8 if network is CifarResNet else 10, scheme=scheme, stem_channels=4)
    variables = random_variables(model, 0)
    head = variables["params"]["head"]
    variables = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), variables)
    variables["params"]["head"] = head
    logits = jax.jit(lambda v, x: model.apply(v, x))(variables, images(0, 64, 8, 8, 3))
    assert np.isnan(np.asarray(logits)).all()
