"""The order of layers and branches, read off a network where names do not tell it."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import init, models, roles
from nf_resnets.init import Rules
from nf_resnets.init.rules import ordered

X = jax.ShapeDtypeStruct((2, 8), jnp.float32)


class Nested(nn.Module):
    """Flax numbers the layers from the outside."""

    @nn.compact
    def __call__(self, x, _=None):
        return x + nn.Dense(8)(nn.gelu(nn.Dense(8)(x))), None


class Other(Nested):
    pass


class Network(nn.Module):
    blocks: Callable[[jax.Array], jax.Array]

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3, name="head")(self.blocks(x))


def two(x):
    return Nested(name="block_1")(Nested(name="block_0")(x)[0])[0]


def scanned(x):
    axes, split = {"params": 0}, {"params": True}
    blocks = nn.scan(nn.remat(Nested), variable_axes=axes, split_rngs=split, length=3)
    return blocks(name="block_s")(x, None)[0]


def letters(x):
    return Nested(name="block_b")(Nested(name="block_c")(x)[0])[0]


def alternating(x):
    for _ in range(2):
        x = Other()(Nested()(x)[0])[0]
    return x


def applied(blocks):
    """The shapes of a network's parameters, and its function."""
    model = Network(blocks)
    params = jax.eval_shape(model.init, jax.random.key(0), X)["params"]
    return params, lambda params, x: model.apply({"params": params}, x)


@pytest.mark.parametrize(
    ("blocks", "more", "order"),
    [(two, {}, ("Dense_1", "Dense_0")), (scanned, {"stacked": "^block"}, ("Dense_1", "Dense_0")),
     (letters, {}, ("c", "b", "Dense_1", "Dense_0"))],
    ids=["two", "scanned", "letters"],
)  # fmt: skip
def test_nested_layers_of_equal_widths(blocks, more, order):
    params, network = applied(blocks)
    rules = Rules(branch=r"block_(\w)/(Dense_\d)/kernel", head="^head", **more)
    found = ordered(rules, network, params, X)
    assert found.order == order
    role_map = roles.assign(params, found)
    last = [leaf.path for leaf in role_map.leaves if leaf.layer == 2]
    assert last and all("Dense_0" in path for path in last)
    assert ordered(found, network, params, X) is found


def test_what_no_order_of_texts_gives_is_refused():
    params, network = applied(two)
    rules = Rules(branch=r"block_(\d)/Dense_(\d)/kernel", head="^head")
    with pytest.raises(ValueError, match=r"'1', which groups 1 and 2 of .*\(Dense_"):
        ordered(rules, network, params, X)
    params, network = applied(alternating)
    rules = Rules(branch=r"(Nested|Other)_(\d)/(Dense_\d)/kernel", head="^head")
    with pytest.raises(ValueError, match="'Other_0' is computed before 'Nested_1', and stands aft"):
        ordered(rules, network, params, X)
    tree = {"1": {"a": np.ones((8, 8)), "b": np.ones((8, 8))}}
    tree["2"] = tree["1"]

    def crossed(params, x):
        x = x + x @ params["1"]["a"] @ params["1"]["b"]
        return x + x @ params["2"]["b"] @ params["2"]["a"]

    rules = Rules(branch=r"(\d)/(\w)")
    with pytest.raises(ValueError, match="a, b are computed|b, a are computed"):
        ordered(rules, crossed, tree, X)
    with pytest.raises(ValueError, match="no leaf of params meets an input"):
        ordered(rules, lambda params: crossed(params, jnp.ones((2, 8))), tree)


def test_a_layer_taken_from_a_stack_by_its_number_is_not_used_yet():
    tree = {name: np.ones((3, 8, 8), "f4") for name in ("down", "up")}

    def block(params, k, x):
        own = jax.tree.map(lambda leaf: leaf[k], params)  # down first
        return x + nn.relu(x @ own["up"]) @ own["down"]

    def counted(params, x):
        return jax.lax.fori_loop(0, 3, lambda k, x: block(params, k, x), x)

    def scanned_by_number(params, x):
        return jax.lax.scan(lambda x, k: (block(params, k, x), None), x, jnp.arange(3))[0]

    rules = Rules(branch="(down|up)", stacked=".")
    for network in (counted, scanned_by_number):
        assert ordered(rules, network, tree, X).order == ("up", "down")


def test_a_use_is_no_cast_and_no_choice():
    """Weights that are cast and scaled before, in another order, beside what is no array."""
    tree = {"1": {"a": np.ones((8, 8)), "b": np.ones((8, 8)), "act": jax.nn.relu, "steps": 3}}

    def network(params, x):
        block = params["1"]
        halves = {name: (2 * block[name]).astype(jnp.bfloat16) for name in ("a", "b")}
        inner = jax.checkpoint(lambda w, x: jax.lax.cond(True, jnp.dot, jnp.dot, x, w))
        h = block["act"](inner(halves["b"], x.astype(jnp.bfloat16)))
        return x + jax.jit(jnp.dot)(h, halves["a"])

    assert ordered(Rules(branch=r"(\d)/(a|b)"), network, tree, X).order == ("b", "a")


@pytest.mark.parametrize("name", ["wrn", "transformer"])
def test_the_networks_of_this_library_are_in_their_order(name):
    architecture = models.ARCHITECTURES[name]
    model, inputs = architecture.smallest("fixup"), architecture.example(2)
    params = jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]
    rules = init.rules.own()

    def network(params, *inputs):
        return model.apply({"params": params}, *inputs)

    assert ordered(rules, network, params, *inputs) is rules
