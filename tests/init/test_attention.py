"""Initialisers on attention as Flax writes it, with kernels of three axes: a ViT and a GPT.

Fans and factors are written here and in ``tests/trees/flax_transformer.py`` by hand.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import init, optim, roles
from tests.models.trees import quick_jit
from tests.trees import flax_transformer
from tests.trees.flax_transformer import FANS, LAYERS, D
from tests.trees.network import by_path

L = 2 * LAYERS


@functools.cache
def network(name):
    return flax_transformer.NETWORKS[name]()


@pytest.fixture(params=flax_transformer.NETWORKS)
def net(request):
    return network(request.param)


def weights(tree):
    """The weights of layers by path, with their fans: ``{path: (values, fan_in, fan_out)}``."""
    found = {}
    for path, value in by_path(tree).items():
        end = "/".join(path.split("/")[-2:])
        if end in FANS:
            found[path] = (np.asarray(value), *FANS[end])
    return found


@pytest.mark.every(2)
def test_the_fans_of_every_weight(net):
    params, rules = net
    leaves = {leaf.path: leaf for leaf in roles.assign(params, rules).leaves}
    found = weights(params)
    assert len(found) >= 7
    for path, (_, fan_in, fan_out) in found.items():
        fans = roles.fans(leaves[path])
        if path.startswith("head/"):  # of the GPT it has other outputs
            assert fans[0] == fan_in
        else:
            assert fans == (fan_in, fan_out), path
    biases = [path for path in leaves if path.endswith("/bias")]
    assert not any(leaves[path].weight for path in biases)


@pytest.mark.parametrize(
    ("name", "decoder"),
    [("ViT", None), ("GPT", ""), ("GPT, tied", r"^layer"), ("GPT, scanned", "")],
)
def test_t_fixup_of_one_stack(name, decoder):
    """The encoder's factors where there is no decoder, the decoder's where there is no encoder."""
    params, rules = network(name)
    options = {} if decoder is None else {"decoder": decoder}
    after = by_path(init.t_fixup(params, L, rules=rules, **options))
    small = 0.67 * LAYERS**-0.25 if decoder is None else (9 * LAYERS) ** -0.25
    for path, (values, _, _) in weights(params).items():
        scaled = path.split("/")[-2] in ("value", "out", "linear_1", "linear_2")
        # Two roundings of float32, of the factor and of the product.
        np.testing.assert_allclose(after[path], values * (small if scaled else 1), rtol=1.3e-7)
    if decoder is not None:
        table = by_path(params)["tokens/embedding"] * (9 * LAYERS) ** -0.25
        np.testing.assert_allclose(after["tokens/embedding"], table, rtol=1.3e-7)


def test_unit_wise_clipping_knows_the_outputs_of_attention():
    """A unit is what leads to one output: one of ``[heads, head_dim]``, or one of ``[D]``."""
    params, rules = network("ViT")
    clip = optim.adaptive_clip(0.1, rules=rules)
    grads = jax.tree.map(jnp.ones_like, params)
    update = quick_jit(lambda grads: clip.update(grads, clip.init(params), params)[0])
    clipped = by_path(update(grads))
    for name, axes in (("query", 0), ("out", (0, 1))):
        path = f"layer_1/attention/mha/{name}/kernel"
        norms = np.sqrt(np.square(by_path(params)[path]).sum(axes, keepdims=True))
        expected = np.minimum(1, 0.1 * norms / math.sqrt(D)) * np.ones_like(clipped[path])
        np.testing.assert_allclose(clipped[path], expected, rtol=1e-6)
