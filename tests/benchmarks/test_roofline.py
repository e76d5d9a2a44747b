"""The count of FLOPs, on which the roofline stands, and the shape of what it says."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from benchmarks import roofline
from benchmarks.cases import Case

CASE = Case("cifar-resnet-20", batch=2)
TINY = Case("cifar-resnet-8", batch=2, side=8)


def by_hand(network, batch, classes):
    """Forward FLOPs: two for each pixel, tap, input and output channel; stem and whole."""
    if network == "cifar-resnet-20":
        blocks, width, projected = 3, 1, False
    else:
        blocks, width, projected = 2, 4, True  # WRN-16-4
    pairs = 32 * 32 * 9 * 3 * 16
    stem, c_in = pairs, 16
    for side, c_out in ((32, 16 * width), (16, 32 * width), (8, 64 * width)):
        for _ in range(blocks):
            pairs += side * side * 9 * (c_in * c_out + c_out * c_out)
            if projected and c_in != c_out:
                pairs += side * side * c_in * c_out
            c_in = c_out
    pairs += c_in * classes
    return 2 * batch * stem, 2 * batch * pairs


@pytest.mark.parametrize("network", ["cifar-resnet-20", "wrn-16-4"])
@pytest.mark.parametrize("scheme", ["fixup", "batchnorm"])
def test_the_count_is_the_closed_form(network, scheme):
    stem, whole = by_hand(network, 2, 10)
    found = roofline.forward_products(Case(network, batch=2, scheme=scheme))
    assert sum(product.flops * product.times for product in found) == whole
    assert found[0].flops == stem and found[0].times == 1
    assert found[0].kernel == (3, 3, 3, 16)
    assert roofline.training_flops(found) == 3 * whole - stem


def test_resnet_50_has_the_published_number():
    # He et al., CVPR 2016, table 1: 3.8e9 multiply-adds with the stride in the first 1x1
    # convolution of a bottleneck; in the 3x3 one, as here, it is 4.09e9 (PyTorch's model zoo).
    found = roofline.forward_products(Case("resnet-50", batch=1, side=224))
    assert sum(product.flops * product.times for product in found) / 2 == pytest.approx(
        4.09e9, rel=1e-3
    )


def test_a_form_that_multiplies_more_is_not_counted():
    # At 8 x 8 pixels the last stage has 2 x 2, where the CPU's form is one matrix product, larger.
    small = Case("cifar-resnet-20", batch=2, side=8)
    kernels = {product.kernel for product in roofline.forward_products(small)}
    assert all(len(kernel) == 4 for kernel in kernels - {(64, 10)})


def test_loops_that_end_nobody_knows_when_are_refused():
    def until_large(x):
        return lax.while_loop(lambda x: x.sum() < 9, lambda x: x @ x, x)

    program = jax.make_jaxpr(until_large)(jnp.ones((2, 2)))
    with pytest.raises(ValueError, match="1 products found inside 'while'"):
        list(roofline.products(program))


def test_layers_of_a_loop_count_once_a_turn():
    def turn(x, kernel):
        return x @ kernel, None

    program = jax.make_jaxpr(lambda x, kernels: lax.scan(turn, x, kernels)[0])(
        jnp.ones((2, 3)), jnp.ones((5, 3, 3))
    )
    (product,) = roofline.products(program)
    assert (product.flops, product.times) == (2 * 2 * 3 * 3, 5)


def test_each_kind_is_what_it_says():
    product = roofline.Product(0, 1, (2, 5, 5, 3), (3, 3, 3, 4), 2)
    shapes = {
        kind: roofline.one_layer(product, kind, 2, "float32")().shape for kind in roofline.KINDS
    }
    assert shapes == {
        "forward": (2, 2, 3, 3, 4),
        "input gradient": (2, *product.x),
        "kernel gradient": (2, *product.kernel),
    }


def test_the_squares_are_multiplied_as_often_as_they_count():
    # Chained products of variance 1 / n keep their size, so that a power tells its exponent.
    size = 256
    rng = np.random.default_rng(size)
    matrix = rng.standard_normal((size, size), dtype=np.float32) / 16
    found = roofline.square_products((size,), "float32")[f"square {size}"]()
    power = np.linalg.matrix_power(matrix.astype(np.float64), roofline.repetitions(size) + 1)
    # Each of 17 float32 products of length 256 adds about 1e-6 of the largest number.
    np.testing.assert_allclose(found, power, atol=1e-4 * np.abs(power).max())


def test_the_fastest_square_is_the_peak():
    seconds = {"step": [1.0], "square 1024": [0.5], "square 2048": [1.0]}
    best, rates = roofline.peak(seconds)
    assert best == "square 2048" and rates == [2 * 2048**3]
    # Four products of 512 x 512 are one function's work.
    assert roofline.peak({"square 512": [0.5]}) == ("square 512", [4 * 2 * 512**3 / 0.5])


@pytest.fixture
def clock(monkeypatch):
    """Everything is called once, and takes a second, but for the step's two."""
    called = []

    def interleaved(functions, rounds):
        for name, function in functions.items():
            function()
            called.append(name)
        return {name: [2.0 if name == "step" else 1.0] * rounds for name in functions}

    monkeypatch.setattr(roofline, "interleaved", interleaved)
    return called


@pytest.fixture
def passing(monkeypatch):
    """A step that looks at its images, and trains nothing."""

    def make_steps(model):
        return jax.jit(lambda state, batches: (state, batches["image"].mean()))

    monkeypatch.setattr(roofline.cases, "make_steps", make_steps)
    monkeypatch.setattr(roofline, "repetitions", lambda size: 3)


@pytest.mark.slow
def test_a_step_that_trains_is_measured(clock):
    row, compiled = roofline.whole_step(TINY, (64,), steps=3, rounds=2)
    assert row.ratio.value > 0
    (sheet,) = roofline.by_data_sheet([(row, compiled)], "NVIDIA H100 80GB HBM3", steps=3)
    assert 0 < sheet.numbers["shortest_ms"] < sheet.numbers["step_ms"]


def test_the_share_of_the_peak(clock, passing):
    row, compiled = roofline.whole_step(TINY, (64,), steps=3, rounds=2)
    flops = roofline.training_flops(roofline.forward_products(TINY))
    best = 2 * 64**3 * roofline.repetitions(64)  # in one second
    assert sorted(clock) == ["square 64", "step"]
    assert row.ratio.value == pytest.approx(3 * flops / 2 / best)
    assert row.numbers["step_gflop"] == pytest.approx(flops / 1e9)
    assert row.numbers["step_gflop_per_s"] == pytest.approx(3 * flops / 2 / 1e9)
    assert row.numbers["step_ms"] == pytest.approx(2000 / 3)
    assert row.held is None
    # By the sheet of an H100: memory takes longer than the products of so small a network.
    assert list(roofline.by_data_sheet([(row, compiled)], "cpu", steps=3)) == []
    (sheet,) = roofline.by_data_sheet([(row, compiled)], "NVIDIA H100 80GB HBM3", steps=3)
    bytes_ = compiled.cost_analysis()["bytes accessed"] / 3
    assert sheet.numbers["flop_per_byte"] == pytest.approx(flops / bytes_)
    assert sheet.ratio.value == pytest.approx(max(flops / 989e12, bytes_ / 3350e9) * 3 / 2)
    assert "by the data sheet of H100" in sheet.compared


def test_a_loss_that_is_not_finite_is_an_error(clock, passing, monkeypatch):
    batches = roofline.cases.make_batches(TINY)
    batches["image"][:] = float("nan")
    monkeypatch.setattr(roofline.cases, "make_batches", lambda *_: batches)
    with pytest.raises(RuntimeError, match="cifar-resnet-8 fixup.*expected finite ones"):
        roofline.whole_step(TINY, (64,), steps=1, rounds=2)


def test_the_layers_are_those_of_the_network(clock, monkeypatch):
    monkeypatch.setattr(roofline, "one_layer", lambda *_: lambda: None)
    row = roofline.by_layer(CASE, (64,), times=1, rounds=2)
    table = row.numbers["layers"]
    assert [line["times"] for line in table] == [1, 6, 1, 5, 1, 5]
    assert "input gradient / peak" not in table[0]
    assert all("input_gradient_ms" in line for line in table[1:])
    # Two blocks of a stage are scanned, and their two turns take the second.
    assert [line["forward_ms"] for line in table] == [1000, 500, 1000, 500, 1000, 500]
    alone = 2 * 1.0 + 3 * (6 * 0.5 + 1.0 + 5 * 0.5 + 1.0 + 5 * 0.5)
    assert row.numbers["convolutions_ms"] == pytest.approx(1000 * alone)
    # All products but the head's.
    *convolutions, _ = roofline.forward_products(CASE)
    flops = roofline.training_flops(convolutions)
    best = 2 * 64**3 * roofline.repetitions(64)
    assert row.ratio.value == pytest.approx(flops / best / alone)


def test_a_network_on_a_gpu_has_its_target():
    assert any(case.network == "wrn-28-10" for case in roofline.ON_GPU)
    assert {case.dtype for case in roofline.ON_GPU} == {"bfloat16"}
    assert dataclasses.replace(roofline.ON_GPU[-1], dtype="float32") in roofline.ON_CPU
