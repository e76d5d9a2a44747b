"""The walk along a jaxpr finds a statistic of the batch wherever it is computed, and no other."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.contracts.batch_flow import BATCH, EXAMPLES, NOTHING, STATISTICS, flow

X = jnp.ones((BATCH, 4, 6))


@jax.custom_vjp
def _own_derivative(x):
    return x - x.mean(axis=0, keepdims=True)


_own_derivative.defvjp(lambda x: (_own_derivative(x), None), lambda _, g: (g,))


@jax.custom_jvp
def _own_tangent(x):
    return x / x.std(axis=0, keepdims=True)


_own_tangent.defjvp(lambda primals, tangents: (primals[0], tangents[0]))


def _scanned(x):
    return lax.scan(lambda h, _: (h - h.mean(axis=0, keepdims=True), None), x, length=3)[0]


def _scanned_late(x):
    """What is carried into the sum is a statistic from the second turn on."""

    def turn(carry, _):
        h, mean = carry
        return (h - mean, h.mean(axis=0, keepdims=True)), None

    return lax.scan(turn, (x, jnp.zeros((1, *x.shape[1:]))), length=3)[0][0]


def _collected(x):
    return lax.scan(lambda total, row: (total + row, None), jnp.zeros(x.shape[1:]), x)[0]


def _until(x):
    return lax.while_loop(lambda h: h.sum() > 0, lambda h: h - 1, x)


def _branched(x):
    return lax.cond(x.mean() > 0, lambda h: h, lambda h: -h, x)


MIXING = {
    "mean": lambda x: x - x.mean(axis=0, keepdims=True),
    "mean of everything": lambda x: x / jnp.abs(x).mean(),
    "largest": lambda x: x.max(axis=(0, 1), keepdims=True) + x,
    "matrix product": lambda x: x + jnp.einsum("btc,bsc->ts", x, x).sum(),
    "reshaped first": lambda x: x.reshape(-1, 6) - x.reshape(-1, 6).mean(axis=0, keepdims=True),
    "ghost batch": lambda x: x - x.reshape(1, *x.shape).mean(axis=1),
    "in jit": jax.jit(lambda x: x - x.mean(axis=0, keepdims=True)),
    "in remat": jax.checkpoint(lambda x: jnp.sin(x - x.mean(axis=0, keepdims=True))),
    "in a custom_vjp": _own_derivative,
    "in a custom_jvp": _own_tangent,
    "in a scan": _scanned,
    "in a later turn": _scanned_late,
    "scan over the batch": _collected,
    "in a loop's condition": _until,
    "in a branch's condition": _branched,
    "in a gradient": lambda x: jax.grad(lambda w: ((x * w) ** 2).sum())(jnp.ones(())) * x,
}
KEEPING = {
    "layer norm": lambda x: x / x.std(axis=(1, 2), keepdims=True),
    "reshaped": lambda x: x.reshape(BATCH, 2, 2, 6).mean(axis=(1, 3)),
    "flattened": lambda x: x.reshape(-1, 6) @ jnp.ones((6, 5)),
    "scan": lambda x: lax.scan(lambda h, w: (h * w, None), x, jnp.arange(3.0))[0],
    "vmap": jax.vmap(lambda row: row / row.sum()),
    "attention": lambda x: jax.nn.softmax(jnp.einsum("btc,bsc->bts", x, x)),
    "remat": jax.checkpoint(lambda x: jnp.sin(x) ** 2),
    "its own gradient": jax.grad(lambda x: (x**2).sum()),
}


@pytest.mark.parametrize("name", MIXING)
def test_statistics_are_found(name):
    assert flow(MIXING[name], X, of=0)[0] == STATISTICS


@pytest.mark.parametrize("name", KEEPING)
def test_what_keeps_examples_apart_is_none(name):
    assert flow(KEEPING[name], X, of=0)[0] == EXAMPLES


def test_of_other_arguments_nothing_is_said():
    def function(weights, x):
        standard = weights - weights.mean(axis=0, keepdims=True)
        return x @ standard, standard

    assert flow(function, jnp.ones((6, 5)), X, of=1) == [EXAMPLES, NOTHING]
