"""The table of the page on Fixup's plateau is what a Wide ResNet does."""

import functools
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

from experiments.untrained import digits_batch
from nf_resnets import init, models
from nf_resnets.analysis.curvature import descend
from tests.models.trees import quick_jit

PAGE = Path(__file__).parents[2] / "docs" / "plateau.md"
CLASSES = 10
MOMENTUM, SCALARS, DROP = 0.9, 0.1, 0.1


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def steps_to(losses):
    return int(np.flatnonzero(np.asarray(losses) < np.log(CLASSES) - DROP)[0])


def quadratic_model(loss, start, size=20):
    """Curvatures and the gradient's parts along them, by Lanczos from the gradient."""
    # Both derivatives backwards: our convolutions have no forward mode on a CPU.
    product = quick_jit(jax.grad(lambda at, v: jax.grad(loss)(at) @ v))
    first = quick_jit(jax.grad(loss))(start)
    basis, diagonal, off = [first / jnp.linalg.norm(first)], [], []
    for _ in range(size):
        image = product(start, basis[-1])
        diagonal.append(float(image @ basis[-1]))
        for _ in range(2):
            image = image - jnp.stack(basis).T @ (jnp.stack(basis) @ image)
        off.append(float(jnp.linalg.norm(image)))
        basis.append(image / off[-1])
    matrix = np.diag(diagonal) + np.diag(off[:-1], 1) + np.diag(off[:-1], -1)
    curvatures, vectors = np.linalg.eigh(matrix)
    return curvatures, float(jnp.linalg.norm(first)) * vectors[0]


def wide():
    """Its loss, and where it starts, in coordinates in which the scalars have the same rate."""
    x, y = digits_batch(256)
    model = models.WideResNet(depth=10, scheme="fixup", stem_channels=4)
    params = quick_jit(model.init)(jax.random.key(0), x[:1])["params"]
    params = init.fixup(params, depth=model.num_branches, key=jax.random.key(1))
    start, unravel = ravel_pytree(params)
    is_scalar = jax.tree.map(lambda leaf: jnp.full(leaf.shape, leaf.size == 1), params)
    scale = jnp.where(ravel_pytree(is_scalar)[0], SCALARS**0.5, 1.0)

    def loss(u):
        return cross_entropy(model.apply({"params": unravel(start + scale * u)}, x), y)

    return loss, jnp.zeros_like(start)


def descent(loss, start, steps):
    """A function of the rate: the steps until the loss has dropped."""
    run = functools.partial(descend, lambda at, _: loss(at), start, steps=steps, momentum=MOMENTUM)
    run = quick_jit(run)
    return lambda rate: steps_to(run(jnp.float32(rate)))


# Processors round differently, and what grows is exponential: within a step or so.
close = functools.partial(pytest.approx, abs=2)


@pytest.mark.slow
def test_the_table_is_what_a_wide_resnet_does():
    loss, start = wide()
    curvatures, parts = map(jnp.asarray, quadratic_model(loss, start))
    measured_at = descent(loss, start, 320)

    def model(at):
        return np.log(CLASSES) + parts @ at + (curvatures * at**2).sum() / 2

    modelled_at = descent(model, jnp.zeros_like(parts), 600)
    text = PAGE.read_text()
    assert f"$-r$ = {curvatures[0]:.3f}" in text
    row = r"^\| \$?(2\^\{-\d\}|0\.1)\$? \| (\d+) \| (\d+) \|"
    rows = re.findall(row, text, re.M)
    assert len(rows) == 3
    for name, measured, modelled in rows:
        rate = 0.1 if name == "0.1" else 2.0 ** int(name[3:-1])
        assert measured_at(rate) == close(int(measured))
        assert modelled_at(rate) == close(int(modelled))
