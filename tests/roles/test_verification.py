"""A role map that says what the network does not do is refused, by computing."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import roles
from nf_resnets.roles import Rules
from tests.norm_free.drawn import drawn
from tests.roles.networks import CASES, D, f

pytestmark = pytest.mark.usefixtures("strangers_broadcast")

# Those that have biases or a gate, a norm, a stack, shared layers, an encoder, low-rank factors.
VERIFIED = (
    "squeeze_and_excitation", "conditioned_on_time", "gpt2", "stacked_in_a_loop", "weight_norm",
    "shared_layers_unrolled", "encoder_decoder_of_one", "low_rank_on_data", "mixture_of_experts",
    "modulated", "gated_end", "keys_returned", "complex_stream", "experts_by_place",
)  # fmt: skip


filled = partial(drawn, scale=0.1)


def block(p, x, gate=1.0):
    h = jnp.tanh(x @ p["w1"] + p["b1"])
    return x + gate * p["scale"] * (h @ p["w2"] + p["b2"])


TREE = {
    f"block_{k}": {"w1": f(D, D), "b1": f(D), "w2": f(D, D), "b2": f(D), "scale": f()}
    for k in (1, 2)
} | {"head": f(D, 10)}
X = f(4, D)
NAMES = Rules(branch=r"block_(\d)/[wb](\d)", head="head", multiplier="scale")


def network(params, x):
    for k in (1, 2):
        x = block(params[f"block_{k}"], x)
    return x @ params["head"]


@pytest.mark.parametrize("name", VERIFIED)
def test_what_was_read_is_verified(name):
    case = CASES[name]()
    role_map = roles.read(case.network, case.params, *case.inputs)
    roles.verify(case.network, case.params, role_map, *case.inputs)


def test_weights_of_half_precision_are_verified():
    half = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, jnp.bfloat16), TREE)
    roles.verify(network, filled(half), roles.read(network, half, X), X)


def test_layers_that_lead_out_of_their_branch_are_verified():
    case = CASES["two_outputs_of_a_block"]()
    role_map = roles.read(case.network, case.params, *case.inputs, projections=False)
    roles.verify(case.network, case.params, role_map, *case.inputs)
    leaving = {leaf.path for leaf in role_map.leaves if leaf.leaves_branch}
    assert leaving == {"l0/f", "l0/g", "l1/f", "l1/g"}


def test_a_last_layer_that_is_not_used_is_refused():
    def shorter(params, x):
        return block(params["block_1"], x) @ params["head"]

    with pytest.raises(ValueError, match="'block_2/w2'.*does not change the output"):
        roles.verify(shorter, TREE, roles.assign(TREE, NAMES), X)


def test_a_branch_that_a_key_drops_is_tried_with_others():
    def dropping(params, x, key):
        for k in (1, 2):
            kept = jax.random.bernoulli(jax.random.fold_in(key, k), 0.5)
            x = block(params[f"block_{k}"], x, jnp.where(kept, 1.0, 0.0))
        return x @ params["head"]

    role_map, params = roles.assign(TREE, NAMES), filled(TREE)
    for key in (jax.random.key(1), jax.random.PRNGKey(1)):
        assert not jax.random.bernoulli(jax.random.fold_in(key, 2), 0.5)
        roles.verify(dropping, params, role_map, X, key)
    with pytest.raises(ValueError, match="'block_2/w2'.*does not change the output"):
        roles.verify(lambda p, x, _: dropping(p, x, key), TREE, role_map, X, key)


def test_two_zero_factors_are_refused():
    role_map = roles.read(network, TREE, X)
    params = filled(TREE)
    roles.verify(network, params, role_map, X)
    zero = role_map.map(lambda leaf, v: v * (leaf.layer != leaf.m or not leaf.m), params)
    roles.verify(network, zero, role_map, X)
    both = role_map.map(lambda leaf, v: v * (leaf.path != "block_2/scale"), zero)
    message = "'block_2/w1'.*no gradient in 3 steps .* in 'block_2/scale', 'block_2/w2'"
    with pytest.raises(ValueError, match=message):
        roles.verify(network, both, role_map, X)


def test_a_head_of_zeros_hides_nothing_and_nothing_is_changed():
    role_map, params = roles.read(network, TREE, X), filled(TREE)
    params["head"] *= 0
    before = jax.tree.map(np.copy, params)
    roles.verify(network, params, role_map, X)
    jax.tree.map(np.testing.assert_array_equal, params, before)


def test_a_gate_of_zeros_beside_two_branches_is_refused():
    def gated(params, x):
        for k in (1, 2):
            x = block(params[f"block_{k}"], x, params["gate"])
        return x @ params["head"]

    tree = TREE | {"gate": f(1, D)}
    role_map = roles.read(gated, tree, X)
    params = role_map.map(lambda leaf, v: v * (leaf.layer != leaf.m or not leaf.m), filled(tree))
    roles.verify(gated, params | {"gate": np.ones((1, D), np.float32)}, role_map, X)
    params["gate"] *= 0
    with pytest.raises(ValueError, match="no gradient in 3 steps .* in 'block_1/w2', 'gate'"):
        roles.verify(gated, params, role_map, X)


def test_of_traced_values_the_structure_is_checked():
    role_map = roles.read(network, TREE, X)

    @jax.jit
    def traced(params):
        roles.verify(network, params, role_map, X)
        return params

    traced(filled(TREE))
    other = {**TREE, "head": f(D, 11)}
    with pytest.raises(ValueError, match=r"leaf 'head' \[32, 11\] is none of the tree"):
        jax.eval_shape(traced, other)


def test_concrete_values_are_checked_while_something_else_is_traced():
    role_map, params = roles.read(network, TREE, X), filled(TREE)

    @jax.jit
    def traced(x):
        roles.verify(network, params, role_map, X)
        return x

    traced(1.0)
    for k in (1, 2):
        params[f"block_{k}"]["scale"] *= 0
        params[f"block_{k}"]["w2"] *= 0
        params[f"block_{k}"]["b2"] *= 0
    with pytest.raises(ValueError, match="gets no gradient"):
        traced(2)
