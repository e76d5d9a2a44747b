"""Roofline: how near the training step comes to the fastest that this device multiplies matrices.

Work is the multiplications and additions of the network's convolutions and its head, and nothing
else: those of the forward pass, counted from its program in the plain form (whatever form this
device computes in), once more for the gradient of each layer's input, once for that of its kernel;
the stem's input needs none. Biases, activations, the loss and the update count as no work.

The peak is the best of several square matrix products of the same dtype, which take turns with the
step. Both have the library's default precision (float32 products of recent GPUs are in TF32).

On a chip that has a data sheet in :mod:`nf_resnets.topology.chips` a row says what part of the
step's time is the shortest that the sheet allows: its products at the peak of bfloat16, or its
bytes, by the compiler's count, at the memory's bandwidth, whichever takes longer.

A last row says what a step would reach that were its convolutions alone, each measured as the
network calls it: scanned where it is scanned there. Its numbers hold every layer.

Target: on a CUDA GPU, WRN-28-10 in bfloat16 reaches half of the peak. Whole steps are dispatched
ten at a time there, and one by one on a CPU.

Cost: about two minutes on two cores; ``--quick`` half a minute, one network.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import cases
from benchmarks.cases import Case
from benchmarks.rows import Row
from benchmarks.timing import Ratio, interleaved, ratio
from nf_resnets import training
from nf_resnets.models import conv, layers
from nf_resnets.topology import chip_of, footprint, shortest_step

TITLE = "Roofline: the step's products / the peak rate of matrix products"

ON_CPU = (Case("cifar-resnet-20"), Case("cifar-resnet-110"), Case("wrn-16-4"))
ON_GPU = (
    Case("wrn-28-10", dtype="bfloat16"),
    Case("resnet-50", side=224, dtype="bfloat16"),
    *(dataclasses.replace(case, dtype="bfloat16") for case in ON_CPU),
)
BY_LAYER = ("cifar-resnet-20", "wrn-16-4")
LIMITS = {"wrn-28-10": 0.5}

SQUARES_ON_CPU, SQUARES_ON_GPU = (512, 1024, 2048), (4096, 8192, 16384)


def unavailable() -> str | None:
    return None


def measure(*, quick: bool) -> Iterator[Row]:
    gpu = jax.default_backend() == "gpu"
    chosen = ON_GPU if gpu else ON_CPU
    squares = SQUARES_ON_GPU if gpu else SQUARES_ON_CPU
    rounds, times = 3 if quick else 7, 10 if gpu else 1
    chosen = chosen[:1] if quick else chosen
    found: list[tuple[Row, Any]] = []
    for case in chosen:
        found.append(whole_step(case, squares, steps=times, rounds=rounds))
        yield found[-1][0]
    yield from by_data_sheet(found, jax.devices()[0].device_kind, steps=times)
    for case in chosen:
        if case.network in BY_LAYER:
            yield by_layer(case, squares, times=times, rounds=rounds)


# --- Counting ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Product:
    """A convolution or matrix product of a forward pass.

    Attributes:
      flops: of one of them, a multiplication and an addition being two.
      times: how often it comes.
      x: the shape of its input, ``[B, H, W, C_in]`` or ``[B, D_in]``.
      kernel: ``[K, K, C_in, C_out]`` or ``[D_in, D_out]``.
      stride: of its output positions.
    """

    flops: int
    times: int
    x: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: int

    @property
    def title(self) -> str:
        size, _, c_in, c_out = self.kernel
        side = f"{self.x[1]}x{self.x[2]}"
        return f"{size}x{size}, {c_in} to {c_out}, stride {self.stride}, {self.x[0]} x {side}"


def forward_products(case: Case) -> list[Product]:
    """All products of a forward pass, the stem first, the head last.

    A fast form of a convolution may multiply more than it must, and that is no work: the network is
    traced with the plain form.
    """
    model, state = case.model(), cases.make_state(case, abstract=True)
    images = jax.ShapeDtypeStruct((case.batch, case.side, case.side, 3), np.float32)
    apply_fn = training.train_apply(model)
    plain = functools.partial(conv, form="plain")
    with mock.patch.object(layers, "conv", plain):
        program = jax.make_jaxpr(apply_fn)(state.params, state.batch_stats, images)
    return list(products(program))


def products(program: Any, times: int = 1) -> Iterator[Product]:
    """The products in a jaxpr and in all that it calls.

    Raises:
      ValueError: if there are any where nobody knows how often they are computed.
    """
    for equation in program.eqns:
        name = equation.primitive.name
        if name in ("conv_general_dilated", "dot_general"):
            yield _product(equation, times)
            continue
        turns = equation.params["length"] if name == "scan" else 1
        inside = [
            product
            for inner in _called(equation.params)
            for product in products(inner, times * turns)
        ]
        if inside and name in ("while", "cond"):
            raise ValueError(f"{len(inside)} products found inside {name!r}; expected scans only.")
        yield from inside


def _called(params: dict[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if hasattr(each, "eqns"):
                yield each


def _product(equation: Any, times: int) -> Product:
    x, kernel = (tuple(operand.aval.shape) for operand in equation.invars[:2])
    (result,) = equation.outvars
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        each = math.prod(x[axis] for axis in contracted)
        stride = 1
    else:
        # Every number of the result is a sum over all of the kernel but its output features.
        features = equation.params["dimension_numbers"].rhs_spec[0]
        each = math.prod(kernel) // kernel[features]
        stride = equation.params["window_strides"][0]
    return Product(2 * math.prod(result.aval.shape) * each, times, x, kernel, stride)


def training_flops(found: list[Product]) -> int:
    """Forward and backward: three times the products, but for the gradient of the images."""
    return 3 * sum(product.flops * product.times for product in found) - found[0].flops


# --- The peak ----------------------------------------------------------------------------------


def square_products(sizes: tuple[int, ...], dtype: str) -> dict[str, Callable[[], object]]:
    """Functions that multiply square matrices, by the names that :func:`peak` knows."""

    def multiply(size: int) -> Callable[[], object]:
        rng = np.random.default_rng(size)
        # Of this variance products stay of the same size, however many follow each other.
        matrix = rng.standard_normal((size, size), dtype=np.float32) / math.sqrt(size)
        left = jax.device_put(jnp.asarray(matrix, jnp.dtype(dtype)))
        dot = jax.jit(jnp.dot)
        repeats = repetitions(size)

        def run() -> object:
            right = left
            for _ in range(repeats):
                right = dot(left, right)
            return jax.block_until_ready(right)

        return run

    return {f"square {size}": multiply(size) for size in sizes}


def repetitions(size: int) -> int:
    """Enough products of small matrices that dispatching them costs nothing beside."""
    return max(1, round((4096 if size >= 4096 else 1024) / size) ** 2)


def peak(seconds: dict[str, list[float]]) -> tuple[str, list[float]]:
    """The fastest of the square products, and its FLOP/s in every round."""
    rates = {}
    for name, values in seconds.items():
        if name.startswith("square "):
            size = int(name.removeprefix("square "))
            flops = 2 * size**3 * repetitions(size)
            rates[name] = [flops / value for value in values]
    best = max(rates, key=lambda name: statistics.median(rates[name]))
    return best, rates[best]


# --- The step ----------------------------------------------------------------------------------


def whole_step(
    case: Case, squares: tuple[int, ...], *, steps: int, rounds: int
) -> tuple[Row, jax.stages.Compiled]:
    """The step's share of the peak, and the program of so many steps.

    Raises:
      RuntimeError: if its loss is not finite.
    """
    flops = training_flops(forward_products(case))
    state = jax.device_put(cases.make_state(case))
    batches = jax.device_put(cases.make_batches(case, steps))
    compiled = cases.make_steps(case.model()).lower(state, batches).compile()
    losses: Any = None

    def step() -> None:
        nonlocal state, losses
        state, losses = jax.block_until_ready(compiled(state, batches))

    functions = {"step": step, **square_products(squares, case.dtype)}
    seconds = interleaved(functions, rounds)
    if not np.isfinite(np.asarray(losses)).all():
        raise RuntimeError(f"{case.title}: losses {losses} found; expected finite ones.")
    best, rates = peak(seconds)
    at_peak = [steps * flops / rate for rate in rates]
    step_s = statistics.median(seconds["step"]) / steps
    row = Row(
        part="roofline",
        what=case.title,
        compared=f"FLOP/s of the step / of the fastest {case.dtype} matrix product",
        ratio=ratio(at_peak, seconds["step"]),
        limit=LIMITS.get(case.network) if case in ON_GPU else None,
        at_least=True,
        numbers={
            "step_gflop": flops / 1e9,
            "step_ms": 1e3 * step_s,
            "step_gflop_per_s": flops / step_s / 1e9,
            "peak_gflop_per_s": statistics.median(rates) / 1e9,
            "peak_of": best,
        },
    )

    return row, compiled


def by_data_sheet(found: list[tuple[Row, Any]], device_kind: str, *, steps: int) -> Iterator[Row]:
    """The share of each step's time in which the chip could have made it, if its sheet is known.

    Args:
      found: what :func:`whole_step` gave.
      device_kind: what JAX calls the chip.
      steps: of each program.
    """
    try:
        chip = chip_of(device_kind)
    except ValueError:
        return
    for row, compiled in found:
        flops, step_ms = 1e9 * row.numbers["step_gflop"], row.numbers["step_ms"]
        bytes_ = footprint(compiled).bytes / steps
        shortest, bound = shortest_step(flops, bytes_, chip)
        value = 1e3 * shortest / step_ms
        yield dataclasses.replace(
            row,
            compared=f"shortest step by the data sheet of {chip.name} ({bound}) / the step",
            ratio=Ratio(value, value, value),
            limit=None,
            numbers={
                "step_gflop": flops / 1e9,
                "step_gb": bytes_ / 1e9,
                "flop_per_byte": flops / bytes_,
                "shortest_ms": 1e3 * shortest,
                "step_ms": step_ms,
            },
        )


# --- Layer by layer ----------------------------------------------------------------------------


def by_layer(case: Case, squares: tuple[int, ...], *, times: int, rounds: int) -> Row:
    """The share of the peak that a step made of nothing but its convolutions would reach.

    Args:
      case: the network.
      squares: sizes of the matrices for the peak.
      times: how often a layer outside the network's scans is computed in one dispatch, at least.
      rounds: how many of each are counted.
    """
    found = [product for product in forward_products(case) if len(product.kernel) == 4]
    stem = found[0]
    count: dict[tuple[Any, ...], int] = {}
    longest: dict[tuple[Any, ...], int] = {}
    for product in found:
        key = dataclasses.astuple(dataclasses.replace(product, times=1))
        count[key] = count.get(key, 0) + product.times
        longest[key] = max(longest.get(key, times), product.times)
    distinct = {key: Product(*key) for key in count}
    functions = square_products(squares, case.dtype)
    for key, product in distinct.items():
        for kind in KINDS:
            if kind != "input gradient" or product != dataclasses.replace(stem, times=1):
                functions[f"{kind} of {product.title}"] = one_layer(
                    product, kind, longest[key], case.dtype
                )
    seconds = interleaved(functions, rounds)
    best, rates = peak(seconds)
    at_peak, alone = np.zeros(rounds), np.zeros(rounds)
    table = []
    for key, product in distinct.items():
        line: dict[str, Any] = {"layer": product.title, "times": count[key]}
        for kind in KINDS:
            name = f"{kind} of {product.title}"
            if name in seconds:
                own = np.asarray(seconds[name]) / longest[key]
                ideal = product.flops / np.asarray(rates)
                at_peak += count[key] * ideal
                alone += count[key] * own
                line[f"{kind} / peak"] = round(ratio(ideal.tolist(), own.tolist()).value, 3)
                line[f"{kind.replace(' ', '_')}_ms"] = float(np.median(own) * 1e3)
        table.append(line)
    return Row(
        part="roofline",
        what=case.title,
        compared="FLOP/s of its convolutions alone / of the fastest matrix product",
        ratio=ratio(at_peak.tolist(), alone.tolist()),
        at_least=True,
        numbers={
            "layers": table,
            "convolutions_ms": float(np.median(alone) * 1e3),
            "peak_gflop_per_s": statistics.median(rates) / 1e9,
            "peak_of": best,
        },
    )


KINDS = ("forward", "input gradient", "kernel gradient")


def one_layer(product: Product, kind: str, times: int, dtype: str) -> Callable[[], object]:
    """A function that computes one convolution, or one of its gradients, ``times`` times.

    More than once in a scan, as the blocks of a stage are: each turn has an input of its own, so
    that nothing can be computed once for all, and gives its result out. Once without a loop, as
    the first block of a stage is.
    """
    key = jax.random.key(0)

    def draw(shape: tuple[int, ...]) -> jax.Array:
        small = jax.random.normal(key, (math.prod(shape),), jnp.float32)
        return small.reshape(shape).astype(dtype)

    x, kernel = draw(product.x), draw(product.kernel)
    grad = draw(jax.eval_shape(lambda: conv(x, kernel, product.stride)).shape)

    def forward(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return conv(x, kernel, product.stride)

    def input_gradient(kernel: jax.Array, grad: jax.Array) -> jax.Array:
        return jax.vjp(lambda x: conv(x, kernel, product.stride), x)[1](grad)[0]

    def kernel_gradient(x: jax.Array, grad: jax.Array) -> jax.Array:
        return jax.vjp(lambda kernel: conv(x, kernel, product.stride), kernel)[1](grad)[0]

    function, operands = {
        "forward": (forward, (x, kernel)),
        "input gradient": (input_gradient, (kernel, grad)),
        "kernel gradient": (kernel_gradient, (x, grad)),
    }[kind]
    stacked = [jnp.stack([operand] * times) for operand in operands]

    @jax.jit
    def run(*operands: jax.Array) -> jax.Array:
        if times == 1:
            return function(*(operand[0] for operand in operands))[None]
        return lax.scan(lambda _, own: (None, function(*own)), None, operands)[1]

    compiled = run.lower(*stacked).compile()
    return lambda: jax.block_until_ready(compiled(*stacked))
