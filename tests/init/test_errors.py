"""Refusals name the leaf or the argument, and what needs no rule stays as it is."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import init, schemes
from nf_resnets.init import Rules

CONV = jnp.ones((3, 3, 4, 4))
KEY = jax.random.key(0)
RULES = Rules(branch=r"block_(\d+)/conv_(\d+)", head="^dense$")


def _blocks(count, layers=2, **more):
    block = {f"conv_{j}": CONV for j in range(1, layers + 1)}
    return {f"block_{b}": block for b in range(1, count + 1)} | {"dense": jnp.ones((4, 5))} | more


TREE = _blocks(2)


def _fixup(params=TREE, depth=2, rules=RULES, **options):
    return init.fixup(params, depth, rules=rules, **options)


def _skipinit(alpha=0.0, depth=2, params=None, **options):
    tree = params or {f"block_{b}": {**TREE[f"block_{b}"], "alpha": jnp.ones(())} for b in (1, 2)}
    rules = Rules(branch=RULES.branch, alpha="/alpha$")
    return init.skipinit(tree, depth, alpha=alpha, rules=rules, **options)


STACKED = Rules(branch=r"^conv_(\d)", stacked="^conv")
# what was done wrong: the call, and what its error must name
ERRORS = {
    "no branch": (
        lambda: _fixup({"dense": TREE["dense"]}, 0, Rules(head="dense")),
        "no residual branch found",
    ),
    "nothing to draw": (
        lambda: init.he({"mean": jnp.ones(3)}, KEY),
        "no layer's weight found .*'mean'",
    ),
    "unknown leaf": (
        lambda: _fixup(_blocks(2, extra={"kernel": CONV})),
        r"'extra/kernel' \[3, 3, 4, 4\] .*rules=.*keep=",
    ),
    "no rules": (lambda: init.fixup(TREE, 2), r"'block_1/conv_1' .*Rules\("),
    "two rules for a leaf": (
        lambda: _fixup(rules=Rules(branch=RULES.branch, head="dense|block_2/conv_2")),
        "'block_2/conv_2' is matched by two rules, rules.branch and rules.head",
    ),
    "a rule that matches nothing": (
        lambda: _fixup(rules=Rules(branch=RULES.branch, head="dense", stem="^sten/")),
        "rules.stem='.sten/' matches no leaf",
    ),
    "no group": (lambda: Rules(branch="block_1/conv"), "rules.branch='block_1/conv' has no group"),
    "bad layout": (lambda: Rules(layout="NHWC"), "rules.layout='NHWC'"),
    "one layer": (lambda: _fixup(_blocks(2, layers=1)), "branch 'block_1' has m = 1 layer"),
    "a vector taken for a layer": (
        lambda: _fixup({**TREE, "block_2": {**TREE["block_2"], "conv_3": jnp.ones(4)}}),
        "'block_2/conv_3' is in a layer of 0 weights and 1 vectors",
    ),
    "blocks taken for one another": (
        lambda: _fixup(
            {"encoder": _blocks(2), "decoder": _blocks(2)}, 2, Rules(RULES.branch, head="dense")
        ),
        "'decoder/block_1/conv_1' is in a layer of 2 weights",
    ),
    "a norm's vectors taken for a bias": (
        lambda: _fixup(
            {"block_1": {"conv_1": {"w": CONV, "scale": jnp.ones(4), "b": jnp.ones(4)}}},
            1,
            Rules(branch=r"block_(\d+)/conv_(\d+)/"),
        ),
        "'block_1/conv_1/b' is in a layer of 1 weights and 2 vectors",
    ),
    "stacks of two lengths": (
        lambda: init.he(
            {"conv_1": jnp.ones((3, 4, 4)), "conv_2": jnp.ones((2, 4, 4))}, KEY, rules=STACKED
        ),
        "stacked over 2 and 3 branches",
    ),
    "an alpha too few": (
        lambda: _skipinit(
            params={"block_1": {"conv_1": CONV, "alpha": jnp.ones(())}, "block_2": {"conv_1": CONV}}
        ),
        "1 alphas found in params for 2 residual branches",
    ),
    "alpha is NaN": (lambda: _skipinit(float("nan")), "alpha=nan"),
    "mode": (lambda: init.he(TREE, KEY, mode="fan_avg", rules=RULES), "mode='fan_avg'"),
    "scheme misspelt": (lambda: schemes.get("fixupp"), "scheme='fixupp' found; expected one of"),
    "scheme's name is taken": (
        lambda: schemes.register(
            schemes.Scheme("fixup", "x", init.standard, schemes.Anatomy(), "nowhere")
        ),
        "'fixup' is registered already",
    ),
    "two scalars on a branch": (
        lambda: schemes.Anatomy(multiplier=True, alpha=True),
        "multiplier=True, alpha=True",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_a_refusal_is_one_sentence_that_names_what_is_wrong(case):
    call, named = ERRORS[case]
    with pytest.raises(ValueError, match=named) as caught:
        call()
    assert "\n" not in str(caught.value) and ". " not in str(caught.value)


def test_a_traced_alpha_is_taken():
    alphas = jax.vmap(lambda a: _skipinit(a)["block_1"]["alpha"])(jnp.asarray([0.0, 0.5]))
    np.testing.assert_array_equal(alphas, [0.0, 0.5])
    # NumPy leaves too, which cannot hold a traced value, and become JAX arrays.
    tree = {"block_1": {"conv_1": np.ones((4, 4)), "alpha": np.ones(())}}
    take = jax.jit(functools.partial(_skipinit, depth=1, params=tree))
    assert float(take(0.25)["block_1"]["alpha"]) == 0.25


def test_what_no_rule_needs_to_name():
    """Vectors, scalars, empty arrays, integers, keys and whatever is no array stay as they are."""
    rest = {
        "vector": jnp.ones(3),
        "steps": np.int32(3),
        "empty": jnp.ones((0,)),
        "key": jax.random.key(0),
        "function": jax.nn.relu,
        "text": "name",
        "number": 0.5,
        "none": None,
    }
    result = _fixup(_blocks(2, **rest), key=KEY)
    assert all(result[name] is value for name, value in rest.items())


def test_non_arrays_of_a_layer_s_name_stay():
    """An Equinox head holds its activation and Dropout's rate beside its weight."""
    head = {"weight": jnp.ones((4, 5)), "activation": jax.nn.relu, "p": 0.5, "inference": True}
    tree = {**TREE, "dense": head}
    result = _fixup(tree, rules=Rules(branch=RULES.branch, head="^dense/"))
    assert not np.any(result["dense"].pop("weight"))
    assert result["dense"] == {"activation": jax.nn.relu, "p": 0.5, "inference": True}
