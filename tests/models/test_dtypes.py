"""What networks compute in: with bfloat16 no float32 array of an activation's size is kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets.models.layers import GhostBatchNorm, GroupNorm
from nf_resnets.training.apply import train_apply
from tests.models.smallest import example, smallest
from tests.models.trees import shapes

BATCH = 7  # which no network of these has as a side, or as channels
# One scheme for each part that a network may have: norms, scalars, biases, gains, dropout.
NETWORKS = (
    ("wrn", "fixup"), ("wrn", "batchnorm"), ("wrn", "nf_resnet"), ("cifar-resnet", "groupnorm"),
    ("vgg", "rescalenet"), ("transformer", "layernorm_pre"),
)  # fmt: skip


def activations(name, scheme, **options):
    """What the forward pass of a training step leaves for the backward pass, as shapes.

    Of those arrays that have one number or more for each channel of each position.
    """
    model = smallest(name, scheme, dtype=jnp.bfloat16, **options)
    inputs = tuple(map(jnp.asarray, example(name, BATCH)))
    variables = shapes(model)
    keys = jax.random.split(jax.random.key(1), BATCH)

    def logits(params, batch_stats, inputs):
        if name == "transformer":
            return model.apply({"params": params}, *inputs)
        return train_apply(model)(params, batch_stats, *inputs, keys)[0]

    def backward(params, batch_stats, inputs):
        found, pull = jax.vjp(lambda at: logits(at, batch_stats, inputs), params)
        assert found.dtype == jnp.float32
        return pull

    stats = variables.get("batch_stats", {})
    for leaf in jax.tree.leaves(variables):
        assert leaf.dtype == jnp.float32
    found = jax.tree.leaves(jax.eval_shape(backward, variables["params"], stats, inputs))
    rank = 3 if name == "transformer" else 4
    return [
        leaf
        for leaf in found
        if leaf.ndim >= rank and BATCH in leaf.shape and np.prod(leaf.shape[-rank + 1 : -1]) > 1
    ]


@pytest.mark.parametrize(("name", "scheme"), NETWORKS)
def test_activations_are_kept_in_bfloat16(name, scheme):
    found = activations(name, scheme)
    assert any(leaf.dtype == jnp.bfloat16 for leaf in found)
    wide = [leaf for leaf in found if leaf.dtype == jnp.float32]
    # Embeddings, and what the logits are computed from, are float32; nothing inside a layer is.
    assert len(wide) <= (3 if name == "transformer" else 0), wide


def test_recomputed_blocks_keep_bfloat16_too():
    found = activations("wrn", "batchnorm", remat=True)
    assert {leaf.dtype.name for leaf in found} == {"bfloat16", "bool"}


@pytest.mark.parametrize("norm", [GhostBatchNorm(groups=2), GroupNorm()])
def test_norms_of_bfloat16_have_the_gradients_of_float32(norm):
    x = jax.random.normal(jax.random.key(0), (4, 3, 3, 8)).astype(jnp.bfloat16)
    variables = jax.jit(norm.init)(jax.random.key(1), x)

    @jax.jit
    @jax.grad
    def grad(x):
        y, _ = norm.apply(variables, x, mutable=["batch_stats"])
        return (y.astype(jnp.float32) ** 3).sum()

    exact, found = grad(x.astype(jnp.float32)), grad(x)
    assert found.dtype == jnp.bfloat16
    off = jnp.linalg.norm(found.astype(jnp.float32) - exact) / jnp.linalg.norm(exact)
    assert off < 0.02
