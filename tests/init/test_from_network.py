"""An initialiser that is given the network needs no names."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import init, models, roles, schemes
from tests.init.noted import network_of
from tests.models.trees import shapes
from tests.roles.networks import CASES, FEED, VOCABULARY, D, feed, tokens
from tests.roles.test_verification import NAMES, TREE, X, filled, network

pytestmark = pytest.mark.usefixtures("strangers_broadcast")

IMAGES = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)


@pytest.mark.parametrize(
    ("name", "initialise"), [("rezero", init.skipinit), ("stacked_in_a_loop", init.fixup)]
)
def test_a_strangers_network_needs_no_rules(name, initialise):
    case = CASES[name]()
    made = initialise(
        filled(case.params), len(case.branches), network=case.network, inputs=case.inputs
    )
    role_map = roles.read(case.network, case.params, *case.inputs, alpha=name == "rezero")
    for leaf, value in role_map.items(made):
        zero = leaf.role == ("alpha" if name == "rezero" else "head") or (
            name != "rezero" and leaf.layer == leaf.m > 0
        )
        assert np.any(value) != zero, leaf.path


def test_it_works_under_jit():
    @jax.jit
    def initialised(params):
        return init.fixup(params, depth=2, network=network, inputs=(X,))

    np.testing.assert_array_equal(initialised(filled(TREE))["head"], 0)


def test_network_and_rules_together_are_refused():
    with pytest.raises(ValueError, match="expected one of them"):
        init.fixup(filled(TREE), depth=2, network=network, inputs=(X,), rules=NAMES)


def test_all_initialisers_of_a_tree_take_the_network():
    made = [getattr(init, name) for name in init.__all__]
    takes_rules = [each for each in made if callable(each) and "rules" in _parameters(each)]
    without = [each for each in takes_rules if "network" not in _parameters(each)]
    assert [each.__name__ for each in without] == ["describe"]


def _parameters(function):
    return {} if inspect.isclass(function) else inspect.signature(function).parameters


@pytest.mark.parametrize("depth", [16, pytest.param(10_000, marks=pytest.mark.slow)])
def test_the_constants_of_the_forward_pass_are_seen(depth):
    scheme = schemes.get("rescalenet")
    model = models.WideResNet(depth=(depth - 4) // 6 * 6 + 4, scheme=scheme, stem_channels=2)
    params = shapes(model)["params"]
    role_map = roles.read(network_of(model), params, IMAGES)
    found = np.array([(b.branch_scale, b.skip_scale) for b in role_map.branches], np.float32)
    constants = scheme.constants(model.num_branches)
    np.testing.assert_array_equal(found.T, [constants.residual, constants.identity])
    jax.eval_shape(lambda tree: init.rescalenet(tree, len(found), rules=role_map), params)


@pytest.mark.parametrize(
    "look_up",
    [
        lambda table, t: jax.nn.one_hot(t, VOCABULARY) @ table.T,
        lambda table, t: jnp.moveaxis(table[:, t], 0, -1),
    ],
    ids=["product", "index"],
)
def test_the_vectors_of_a_transposed_table_are_drawn_by_their_length(look_up):
    def network(params, t):
        x = look_up(params["table"], t)
        return x + feed(params, x)

    params = {"table": jax.ShapeDtypeStruct((D, VOCABULARY), jnp.float32), **FEED}
    role_map = roles.read(network, params, tokens())
    table = init.he(params, jax.random.key(0), rules=role_map)["table"]
    np.testing.assert_allclose(table.std() * D**0.5, 1, atol=0.1)


def test_rescalenet_refuses_a_weight_of_branches_that_differ():
    constants = schemes.get("rescalenet").constants(2)

    def network(params, x):
        for identity, residual in zip(constants.identity, constants.residual, strict=True):
            x = identity * x + residual * feed(params, x)
        return x

    params = filled(FEED)
    role_map = roles.read(network, params, jax.ShapeDtypeStruct((2, D), jnp.float32))
    with pytest.raises(ValueError, match="'down'.* branches 1, 2, each of which has"):
        init.rescalenet(params, 2, rules=role_map)


def test_complex_weights_have_the_deviation_of_their_lengths():
    drawn = np.random.default_rng(0).normal(size=(3, 8, 8, 2)).astype(np.float32) @ [1, 1j]
    first, second, x = drawn.astype(np.complex64)
    rules = init.Rules(branch=r"(block)/w_(\d)")
    tree = {"block": {"w_1": first, "w_2": second}}

    def network(params, x):
        return x @ params["block"]["w_1"] @ params["block"]["w_2"]

    weight = init.rescalenet(tree, 1, rules=rules)["block"]["w_1"]
    np.testing.assert_allclose(np.mean(np.abs(weight) ** 2), 2 / 8 * 0.5**0.5, rtol=1e-5)
    scaled = init.lsuv(tree, network=network, inputs=(x,), rules=rules)
    np.testing.assert_allclose(np.var(network(scaled, x)), 1, rtol=1e-5)
