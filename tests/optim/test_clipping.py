"""Adaptive clipping against NumPy, and against optax block by block."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nf_resnets.optim import adaptive_clip
from nf_resnets.roles import Role, Rules

SHAPES = {
    "stem": {"kernel": (3, 3, 2, 4), "bias": (4,)},
    "bias_relu": (),
    "stage_1": {
        "first": {"conv_1": {"kernel": (3, 3, 4, 5)}, "multiplier": ()},
        "rest": {"conv_1": {"kernel": (3, 3, 3, 4, 5), "bias": (3, 5)}, "multiplier": (3,)},
    },
    "head": {"kernel": (5, 10), "bias": (10,)},
}


def tree(seed, scale=1.0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: np.float32(scale * rng.standard_normal(shape)),
        SHAPES,
        is_leaf=lambda leaf: isinstance(leaf, tuple),
    )


CLIP = adaptive_clip(0.1)
compiled = functools.cache(lambda clip: jax.jit(clip.update))


def clipped(clip, grads, params):
    updates, state = compiled(clip)(grads, clip.init(params), params)
    assert state == optax.EmptyState()
    return jax.tree.map(np.asarray, updates)


def test_every_block_of_a_stack_is_clipped_as_optax_clips_it_alone():
    params, grads = tree(0), tree(1, scale=0.1)
    clip = adaptive_clip(0.1, exempt=())
    found = clipped(clip, grads, params)
    update = optax.adaptive_grad_clip(0.1).update

    @jax.jit
    def by_optax(grads, params):
        def alone(grads, params):
            return update(grads, optax.EmptyState(), params)[0]

        blocks = jax.vmap(alone)(grads["stage_1"]["rest"], params["stage_1"]["rest"])
        return blocks, alone(grads, params)

    blocks, whole = by_optax(grads, params)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-6)
    jax.tree.map(close, found["stage_1"]["rest"], blocks)
    for name in ("stem", "bias_relu", "head"):
        jax.tree.map(close, found[name], whole[name])
    # Optax by itself would take the stack for one kernel: the test tells the two apart.
    assert not np.allclose(
        whole["stage_1"]["rest"]["conv_1"]["kernel"], found["stage_1"]["rest"]["conv_1"]["kernel"]
    )


def test_the_head_is_exempt_and_small_gradients_stay_bit_for_bit():
    params, grads = tree(0), tree(1, scale=10.0)
    found = clipped(CLIP, grads, params)
    for name in ("kernel", "bias"):
        np.testing.assert_array_equal(found["head"][name], grads["head"][name])
    small = tree(1, scale=1e-4)
    jax.tree.map(np.testing.assert_array_equal, clipped(CLIP, small, params), small)


def test_zero_weights_are_taken_to_have_the_norm_eps():
    params = {"bias_relu": jnp.zeros(()), "stem": {"kernel": jnp.zeros((2, 3))}}
    grads = {"bias_relu": jnp.float32(5), "stem": {"kernel": jnp.full((2, 3), 3.0)}}
    found = clipped(adaptive_clip(0.5, eps=0.1), grads, params)
    np.testing.assert_allclose(found["bias_relu"], 0.05, rtol=1e-6)
    np.testing.assert_allclose(found["stem"]["kernel"], np.full((2, 3), 0.05 / 2**0.5), rtol=1e-6)
    free = clipped(adaptive_clip(0.5, eps=0.1, exempt=(Role.SCALAR_BIAS,)), grads, params)
    assert free["bias_relu"] == 5


def test_a_unit_of_attention_is_what_leads_to_one_output():
    """One of ``[heads, head_dim]``, or, of the last layer, one of ``[D]``."""
    rng = np.random.default_rng(0)
    params = {"query": rng.standard_normal((12, 2, 6)), "out": rng.standard_normal((2, 6, 12))}
    params = {"attention": jax.tree.map(np.float32, params)}
    rules = Rules(
        branch="(attention)/(query|out)",
        order=("query", "out"),
        axes={"query": "IOO", "out": "IIO"},
    )
    found = clipped(adaptive_clip(0.1, rules=rules), jax.tree.map(np.ones_like, params), params)
    for name, axes in (("query", 0), ("out", (0, 1))):
        norms = np.sqrt(np.square(params["attention"][name]).sum(axes, keepdims=True))
        expected = np.minimum(1, 0.1 * norms / 12**0.5) * np.ones_like(found["attention"][name])
        np.testing.assert_allclose(found["attention"][name], expected, rtol=1e-6)
