"""The convolution and its forms on a CPU: values, derivatives, transformations.

Values are compared with sums in NumPy, derivatives with XLA's own. A float32 sum of n = K K C_in
terms is off by 6e-8 sqrt(n) of its terms' size: 1e-6 for the sizes here, and the kernel's gradient
sums B H W of them; so 1e-5 of an array's largest entry, where a pixel left out gives 1e-1.
"""

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
from tests.models.reference import numpy_conv
from tests.models.trees import assert_close, images, quick_jit, random_variables

FLOAT32 = 1e-5
BFLOAT16 = 2e-2  # 2**-9 a rounding, of inputs that are exact; the sums' rounding errors add up
HAS_ONEDNN = onednn.available()


@pytest.fixture(params=["canonical", "onednn"])
def form(request, monkeypatch):
    """The two forms with a backward pass of our own."""
    if request.param == "onednn" and not HAS_ONEDNN:
        pytest.skip("needs AVX2, Linux, and a jaxlib that was compared")
    monkeypatch.setattr(onednn, "available", lambda: request.param == "onednn")
    return request.param


def plain(x, kernel, stride=1):
    """XLA's own convolution, with its own derivatives."""
    margin = kernel.shape[0] // 2
    names, pads = ("NHWC", "HWIO", "NHWC"), [(margin, margin)] * 2
    return lax.conv_general_dilated(x, kernel, (stride, stride), pads, dimension_numbers=names)


def pull_back(x, kernel, cotangent, stride, function=conv):
    value, vjp = jax.vjp(lambda x, kernel: function(x, kernel, stride), x, kernel)
    return value, *vjp(cotangent)


def random_case(rng, height, width, size):
    batch = int(rng.choice([1, 3]))
    c_in, c_out = rng.permutation(np.arange(1, 7))[:2]
    x = rng.standard_normal((batch, height, width, c_in), dtype=np.float32)
    return x, rng.standard_normal((size, size, c_in, c_out), dtype=np.float32)


@pytest.mark.every(3)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [1, 3, 7])
def test_forms_agree_with_sums_in_numpy(form, size, stride):
    """Images down to one pixel are smaller than the kernel, and than the stride."""
    rng = np.random.default_rng(10 * size + stride)
    for height, width in [(1, 4), (2, 2), (9, 8)]:
        x, kernel = random_case(rng, height, width, size)
        value = numpy_conv(np.float64(x), kernel, stride)
        cotangent = rng.standard_normal(value.shape).astype(np.float32)
        found, *gradients = quick_jit(lambda *given: pull_back(*given, stride))(
            x, kernel, cotangent
        )
        assert_close(found, value, FLOAT32)
        assert_close(gradients, list(pull_back(x, kernel, cotangent, stride, plain)[1:]), FLOAT32)


@pytest.mark.parametrize(("side", "size", "stride"), [(5, 3, 2), (2, 3, 1), (5, 1, 2)])
def test_bfloat16(side, size, stride):
    rng = np.random.default_rng(0)
    x, kernel = (
        jnp.asarray(rng.standard_normal(shape), jnp.bfloat16)
        for shape in ((3, side, side, 4), (size, size, 4, 5))
    )
    cotangent = jnp.asarray(rng.standard_normal(plain(x, kernel, stride).shape), jnp.bfloat16)
    wide = [each.astype(jnp.float32) for each in (x, kernel, cotangent)]
    found = quick_jit(lambda *given: pull_back(*given, stride))(x, kernel, cotangent)
    assert {a.dtype for a in found} == {jnp.dtype(jnp.bfloat16)}
    assert_close(found, pull_back(*wide, stride, plain), BFLOAT16)


def form_on(platform, differentiated=True):
    """The form that a program for a platform has, read from its text before it is compiled."""
    x, kernel = jnp.ones((1, 6, 6, 2)), jnp.ones((3, 3, 2, 2))

    def function(x, kernel):
        return (conv(x, kernel, 2) ** 2).sum()

    function = jax.grad(function, (0, 1)) if differentiated else function
    text = jax.jit(function).trace(x, kernel).lower(lowering_platforms=(platform,)).as_text()
    if "__onednn$" in text:
        return "onednn"
    # The derivatives of a convolution with stride 2 are convolutions with dilation 2.
    return "plain" if re.search(r"(lhs|rhs)_dilate = \[2, 2\]", text) else "canonical"


def test_the_form_is_that_of_the_platform_of_the_program(monkeypatch, tmp_path, as_before):
    for platform, available, expected in (
        ("cpu", True, "onednn"), ("cpu", False, "canonical"), ("cuda", True, "plain"),
        ("tpu", True, "plain"),
    ):  # fmt: skip
        monkeypatch.setattr(onednn, "available", lambda available=available: available)
        assert form_on(platform) == expected, platform
    monkeypatch.setattr(onednn, "available", lambda: True)
    assert form_on("cpu", differentiated=False) != "onednn"
    with never_stored():
        assert form_on("cpu", differentiated=False) == "onednn"
        assert form_on("cuda", differentiated=False) != "onednn"
    # XLA cannot store programs that call oneDNN.
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    assert form_on("cpu") == "canonical"


@pytest.mark.skipif(not HAS_ONEDNN, reason="needs AVX2, Linux, and a jaxlib that was compared")
def test_what_is_not_differentiated_has_the_same_numbers_and_can_be_exported():
    x, kernel = random_case(np.random.default_rng(0), 9, 16, 3)
    with never_stored():
        found = jax.jit(lambda x: conv(x, kernel, 2))(x)
    assert_close(found, plain(x, kernel, 2), FLOAT32)
    function = jax.jit(lambda x: conv(x, kernel, 2))
    exported = jax.export.export(function, platforms=("cpu", "cuda"))(x)
    assert_close(exported.call(x), plain(x, kernel, 2), FLOAT32)
    with pytest.raises(ValueError, match="__onednn"):
        jax.export.export(jax.jit(jax.grad(lambda x: function(x).sum())))(x)


def test_vmap(form):
    """Several runs at once have a kernel each, or share the images, or share the kernel."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((3, 2, 5, 5, 4), dtype=np.float32)
    kernel = rng.standard_normal((3, 3, 3, 4, 5), dtype=np.float32)
    cotangent = rng.standard_normal((3, 2, 3, 3, 5), dtype=np.float32)
    for axes in ((0, 0, 0), (None, 0, 0), (0, None, 0)):
        given = [a[0] if axis is None else a for a, axis in zip((x, kernel), axes, strict=False)]
        one = jax.vmap(lambda *case: pull_back(*case, 2), axes)
        found = quick_jit(one)(*given, cotangent)
        for run in range(3):
            case = [a if axis is None else a[run] for a, axis in zip(given, axes, strict=False)]
            expected = pull_back(*case, cotangent[run], 2, plain)
            assert_close(tuple(a[run] for a in found), expected, FLOAT32)


def test_a_kernel_that_devices_share_has_the_sum_of_their_gradients(form):
    """Inside shard_map, where each device has its part of the batch."""
    devices = min(2, jax.device_count())
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,))
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, 5, 5, 4), dtype=np.float32)
    kernel = rng.standard_normal((3, 3, 4, 5), dtype=np.float32)

    def gradients(x, kernel, function=conv):
        return jax.grad(lambda x, kernel: (function(x, kernel, 2) ** 2).sum(), (0, 1))(x, kernel)

    specs = P("data"), P()
    sharded = jax.shard_map(gradients, mesh=mesh, in_specs=specs, out_specs=specs)
    assert_close(quick_jit(sharded)(x, kernel), gradients(x, kernel, plain), FLOAT32)


@pytest.mark.every(3)
@pytest.mark.parametrize(("side", "size", "stride"), [(5, 3, 2), (2, 3, 1), (5, 3, 1), (4, 1, 2)])
def test_second_derivative_by_reverse_over_reverse(form, side, size, stride):
    rng = np.random.default_rng(4)
    x = rng.standard_normal((2, side, side, 3), dtype=np.float32)
    kernel = rng.standard_normal((size, size, 3, 4), dtype=np.float32)

    def squared_gradients(function):
        def f(x, kernel):
            return jnp.sin(function(x, kernel, stride)).sum()

        return lambda x, kernel: sum((g**2).sum() for g in jax.grad(f, (0, 1))(x, kernel))

    found, expected = (
        quick_jit(jax.grad(squared_gradients(each), (0, 1)))(x, kernel) for each in (conv, plain)
    )
    assert_close(found, expected, FLOAT32)


def test_derivatives_through_a_scan(form):
    """Of equal shapes, so that an array that is taken for another is wrong, and not refused."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((4, 3, 3, 4), dtype=np.float32)
    kernels = rng.standard_normal((3, 2, 3, 3, 4, 4), dtype=np.float32) / 6

    def quotient(factor, function):
        def loss(kernels):
            def step(x, pair):
                h = function(factor * x, pair[0])
                return x + function(jnp.sin(h), factor * pair[1]), None

            return (lax.scan(step, x, kernels)[0] ** 2).sum()

        gradients = jax.grad(loss)(kernels)
        return jnp.abs(gradients).sum(), gradients

    (found, first), (expected, plain_first) = (
        quick_jit(jax.grad(lambda factor, f=f: quotient(factor, f), has_aux=True))(jnp.float32(1.1))
        for f in (conv, plain)
    )
    assert_close((found, first), (expected, plain_first), FLOAT32)


@pytest.mark.parametrize("shape", [(2, 2, 1, 1), (3, 5, 1, 1)])
def test_refuses_kernels_that_are_not_square_and_odd(shape):
    with pytest.raises(ValueError, match="kernel of shape"):
        conv(jnp.ones((1, 4, 4, 1)), jnp.ones(shape))


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
