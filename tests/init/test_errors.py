"""Every refusal: one sentence that names what was found and what was expected."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nf_resnets import init, models, roles, schemes
from nf_resnets.init import Rules

CONV = jnp.ones((3, 3, 4, 4))
KEY = jax.random.key(0)
RULES = Rules(branch=r"block_(\d+)/conv_(\d+)", head="^dense$")


def _blocks(count, layers=2, **more):
    layer_names = [f"conv_{j}" for j in range(1, layers + 1)]
    tree = {f"block_{b}": dict.fromkeys(layer_names, CONV) for b in range(1, count + 1)}
    return tree | {"dense": jnp.ones((4, 5))} | more


TREE = _blocks(2)


def _fixup(params=TREE, depth=2, rules=RULES, **options):
    return init.fixup(params, depth, rules=rules, **options)


def _skipinit(alpha=0.0, depth=2, params=None, **options):
    tree = params or {f"block_{b}": {**TREE[f"block_{b}"], "alpha": jnp.ones(())} for b in (1, 2)}
    rules = Rules(branch=RULES.branch, alpha="/alpha$")
    return init.skipinit(tree, depth, alpha=alpha, rules=rules, **options)


def _in_two_blocks(first):
    return {"block_1": {"conv_1": CONV, **first}, "block_2": {"conv_1": CONV}}


def _in_block(value, leaf="conv_1"):
    return {**TREE, "block_2": {**TREE["block_2"], leaf: value}}


class Module(nn.Module):
    """A Flax module, given in place of its parameters."""


NAN = float("nan")
STACKED = Rules(branch=r"^conv_(\d)", stacked="^conv")

# what was done wrong: the call, and what the sentence of its error must name
VALUE_ERRORS = {
    "depth counts layers": (
        lambda: _fixup(_blocks(54), 110),
        "54 residual branches found, depth=110 given ... L = 54",
    ),
    "depth of zero": (lambda: _fixup(depth=0), "2 residual branches found, depth=0 given"),
    "depth below zero": (lambda: _fixup(depth=-2), "depth=-2 given"),
    "no branch and depth 0": (
        lambda: _fixup({"dense": TREE["dense"]}, 0, Rules(head="dense")),
        "no residual branch found ... rules.branch",
    ),
    "rsqrt of depth 0": (
        lambda: schemes.get("alpha_rsqrt_depth").init(
            {"dense": TREE["dense"]}, 0, rules=Rules("(x)")
        ),
        "no rule says ... 'dense'",
    ),
    "rsqrt without a branch": (
        lambda: schemes.get("alpha_rsqrt_depth").init(
            {"dense": TREE["dense"]}, 0, rules=Rules(head="dense")
        ),
        "0 alphas found in params for 0 residual branches",
    ),
    "empty dict": (lambda: _fixup({}), "empty tree ... at least one weight"),
    "empty tuple": (lambda: init.he((), KEY), "empty tree"),
    "nested empty": (lambda: init.he({"a": {}, "b": ()}, KEY), "empty tree"),
    "nothing to draw": (
        lambda: init.he({"mean": jnp.ones(3)}, KEY),
        "no layer's weight found ... 'mean'",
    ),
    "shapes in place of arrays": (
        lambda: _fixup(jax.eval_shape(lambda: TREE)),
        "'block_1/conv_1' is a ShapeDtypeStruct ... jax.eval_shape",
    ),
    "integer weight": (
        lambda: _fixup(_in_block(jnp.ones((3, 3, 4, 4), int))),
        "'block_2/conv_1' (branch) has dtype int32 ... floating-point",
    ),
    "complex weight": (
        lambda: _fixup(_in_block(np.ones((3, 3, 4, 4), complex))),
        "dtype complex128 ... floating-point",
    ),
    "integer alpha": (
        lambda: _skipinit(params={"block_1": {"conv_1": CONV, "alpha": np.arange(1)}}, depth=1),
        "'block_1/alpha' (alpha) has dtype int64",
    ),
    "alpha is a Python number": (
        lambda: _skipinit(params={"block_1": {"conv_1": CONV, "alpha": 1.0}}, depth=1),
        "'block_1/alpha' (alpha) is the Python number 1.0 ... an array",
    ),
    "roles of a tree with other paths": (
        lambda: _fixup(
            {f"a_{name}": leaf for name, leaf in TREE.items()}, rules=roles.assign(TREE, RULES)
        ),
        "'a_block_1/conv_1' [3, 3, 4, 4] found where the tree that the roles were assigned for has "
        "'block_1/conv_1' [3, 3, 4, 4] ... Rules in place",
    ),
    "roles of a tree with other widths": (
        lambda: _fixup(
            jax.tree.map(lambda leaf: jnp.repeat(leaf, 2, axis=-1), TREE),
            rules=roles.assign(TREE, RULES),
        ),
        "'block_1/conv_1' [3, 3, 4, 8] found where ... has 'block_1/conv_1' [3, 3, 4, 4]",
    ),
    "an axis of length 0": (
        lambda: _fixup(_in_block(jnp.ones((3, 3, 0, 4)))),
        "'block_2/conv_1' has shape (3, 3, 0, 4) ... no axis of length 0",
    ),
    "unknown leaf": (
        lambda: _fixup(_blocks(2, extra={"kernel": CONV})),
        "'extra/kernel' [3, 3, 4, 4] ... rules= ... keep=",
    ),
    "nine unknown leaves": (
        lambda: _fixup(_blocks(2, **{f"extra_{i}": CONV for i in range(9)})),
        "'extra_0' [3, 3, 4, 4],  ... 'extra_4' ... and 4 more",
    ),
    "names of another model without rules": (
        lambda: init.fixup(TREE, 2),
        "'block_1/conv_1' ... these are not the names of this library's models ... Rules(",
    ),
    "two rules for a leaf": (
        lambda: _fixup(rules=Rules(branch=RULES.branch, head="dense|block_2/conv_2")),
        "leaf 'block_2/conv_2' is matched by two rules, rules.branch and rules.head",
    ),
    "keep and branch for a leaf": (
        lambda: _fixup(rules=Rules(branch=RULES.branch, head="dense", keep="block_1/")),
        "leaf 'block_1/conv_1' ... rules.branch and rules.keep ... expected one",
    ),
    "a rule that matches nothing": (
        lambda: _fixup(rules=Rules(branch=RULES.branch, head="dense", stem="^sten/")),
        "rules.stem='^sten/' matches no leaf ... 'block_1/conv_1'",
    ),
    "a keep that matches nothing": (
        lambda: _fixup(rules=Rules(branch=RULES.branch, head="dense", keep="^sten/")),
        "rules.keep='^sten/' matches no leaf",
    ),
    "a stacked that matches nothing": (
        lambda: _fixup(rules=Rules(branch=RULES.branch, head="dense", stacked="^blocks/")),
        "rules.stacked='^blocks/' matches no leaf ... 'block_1/conv_1'",
    ),
    "head without the params key": (
        lambda: _fixup(
            {"params": TREE}, rules=Rules(branch=RULES.branch, head="^dense", keep="e$")
        ),
        "rules.head='^dense' matches no leaf ... 'params/block_1/conv_1'",
    ),
    "bad expression": (
        lambda: Rules(branch="block_(\\d+"),
        "rules.branch='block_(\\\\d+' is not a regular expression ... unterminated",
    ),
    "bad expression of stacked": (
        lambda: Rules(stacked="*"),
        "rules.stacked='*' is not a regular expression",
    ),
    "expression of bytes": (
        lambda: Rules(head=b"dense"),
        "rules.head=b'dense' is not a regular expression",
    ),
    "expression of a number": (lambda: Rules(keep=3), "rules.keep=3 is not a regular"),
    "no group": (
        lambda: Rules(branch="block_1/conv"),
        "rules.branch='block_1/conv' has no group ... last group must order the layers",
    ),
    "bad layout": (lambda: Rules(layout="NHWC"), "rules.layout='NHWC' found ... 'HWIO' ... 'OIHW'"),
    "layout that is no text": (lambda: Rules(layout=["HWIO"]), "rules.layout=['HWIO'] found"),
    "one layer": (
        lambda: _fixup(_blocks(2, layers=1)),
        "residual branch 'block_1' has m = 1 layer ... m >= 2",
    ),
    "a block without its second layer": (
        lambda: _fixup({**TREE, "block_2": {"conv_1": CONV}}),
        "residual branch 'block_2' has m = 1 layer",
    ),
    "a vector taken for a layer": (
        lambda: _fixup(_in_block(jnp.ones(4), "conv_3")),
        "'block_2/conv_3' is matched by rules.branch ... (4,) ... two axes or more",
    ),
    "kernel and bias taken for layers": (
        lambda: _fixup(
            {"block_1": {"conv_1": {"kernel": CONV, "bias": jnp.ones(4)}}},
            1,
            Rules(branch=r"block_(\d+)/conv_(\d+)/(kernel|bias)"),
        ),
        "'block_1/conv_1/bias' is matched by rules.branch ... (?:...)",
    ),
    "blocks taken for one another": (
        lambda: _fixup(
            {"encoder": _blocks(2), "decoder": _blocks(2)}, 2, Rules(RULES.branch, head="dense")
        ),
        "'decoder/block_1/conv_1' and 'encoder/block_1/conv_1' are two weights of one layer",
    ),
    "the layer's group forgotten": (
        lambda: _fixup(rules=Rules(branch=r"block_(\d+)/conv_\d+", head="dense")),
        "'block_1/conv_1' and 'block_1/conv_2' are two weights of one layer",
    ),
    "a norm's vectors taken for a bias": (
        lambda: _fixup(
            {"block_1": {"conv_1": {"w": CONV, "scale": jnp.ones(4), "b": jnp.ones(4)}}},
            1,
            Rules(branch=r"block_(\d+)/conv_(\d+)/"),
        ),
        "'block_1/conv_1/b' and 'block_1/conv_1/scale' are two vectors of one layer",
    ),
    "stacks of two lengths": (
        lambda: init.he(
            {"conv_1": jnp.ones((3, 4, 4)), "conv_2": jnp.ones((2, 4, 4))}, KEY, rules=STACKED
        ),
        "are stacked over 2 and 3 branches ... expected one number",
    ),
    "a scalar in a stack": (
        lambda: init.he(
            {"conv_1": jnp.ones((3, 4, 4)), "conv_2": jnp.ones(())}, KEY, rules=STACKED
        ),
        "leaf 'conv_2' is a scalar but rules.stacked matches it ... leading axis",
    ),
    "two leaves of one path": (
        lambda: init.he({"a": {"b/w": CONV}, "a/b": {"w": CONV}}, KEY, rules=Rules(stem="a")),
        "two leaves have the path 'a/b/w'",
    ),
    "already initialised": (
        lambda: _fixup(_fixup()),
        "leaf 'block_1/conv_2', the last layer of a residual branch, is already zero ... key=",
    ),
    "no alphas": (
        lambda: init.skipinit(TREE, 2, rules=RULES),
        "0 alphas found in params for 2 residual branches ... rules.alpha",
    ),
    "an alpha too few": (
        lambda: _skipinit(
            params={"block_1": {"conv_1": CONV, "alpha": jnp.ones(())}, "block_2": {"conv_1": CONV}}
        ),
        "1 alphas found in params for 2 residual branches",
    ),
    "two alphas in a branch": (
        lambda: init.skipinit(
            _in_two_blocks({"alpha": jnp.ones(()), "gate_alpha": jnp.ones(())}),
            2,
            rules=Rules(branch=RULES.branch, alpha="alpha$"),
        ),
        "alphas 'block_1/alpha' and 'block_1/gate_alpha' found beside ... branch 'block_1'",
    ),
    "alpha is NaN": (lambda: _skipinit(NAN), "alpha=nan found ... finite"),
    "alpha is infinite": (lambda: _skipinit(-np.inf), "alpha=-inf found ... finite"),
    "alpha is NumPy's NaN": (lambda: _skipinit(np.float32(NAN)), "alpha=nan found"),
    "alpha is JAX's NaN": (lambda: _skipinit(jnp.asarray(NAN)), "alpha=nan found"),
    "constant alpha of text": (
        lambda: init.constant_alpha("1"),
        "alpha='1' found ... finite number",
    ),
    "constant alpha of NaN": (lambda: init.constant_alpha(NAN), "alpha=nan found"),
    "mode": (
        lambda: init.he(TREE, KEY, mode="fan_avg", rules=RULES),
        "mode='fan_avg' found ... 'fan_in' or 'fan_out'",
    ),
    "distribution": (
        lambda: init.xavier(TREE, KEY, distribution="truncated", rules=RULES),
        "distribution='truncated' found ... 'uniform' or 'normal'",
    ),
    "scheme misspelt": (
        lambda: schemes.get("fixupp"),
        "scheme='fixupp' found ... skipinit ... did you mean 'fixup'?",
    ),
    "scheme is None": (lambda: schemes.get(None), "scheme=None found ... fixup"),
    "scheme is a list": (lambda: schemes.get(["fixup"]), "scheme=['fixup'] found"),
    "scheme's name is taken": (
        lambda: schemes.register(
            schemes.Scheme("fixup", "x", init.standard, schemes.Anatomy(), "nowhere")
        ),
        "a scheme named 'fixup' is registered already",
    ),
    "two scalars on a branch": (
        lambda: schemes.Anatomy(multiplier=True, alpha=True),
        "multiplier=True, alpha=True ... at most one",
    ),
    "a norm that is none": (
        lambda: schemes.Anatomy(norm="instance"),
        "norm='instance' ... 'dyt' or 'derf'",
    ),
}
TYPE_ERRORS = {
    "float depth": (lambda: _fixup(depth=2.0), "depth=2.0 (float) ... Python int"),
    "bool depth": (lambda: _fixup(depth=True), "depth=True (bool) ... Python int"),
    "text depth": (lambda: _fixup(depth="2"), "depth='2' (str) ... Python int"),
    "no depth": (lambda: _fixup(depth=None), "depth=None ... Python int"),
    "depth is a key": (lambda: _fixup(depth=KEY), "depth=( ... Python int"),
    "depth is an array": (lambda: _fixup(depth=jnp.asarray(2)), "depth=( ... Python int"),
    "traced depth": (
        lambda: jax.jit(lambda depth: _fixup(depth=depth))(2),
        "depth=( ... Tracer ... static argument",
    ),
    "params is None": (lambda: _fixup(None), "params is a NoneType ... tree of arrays"),
    "params is a module": (
        lambda: init.fixup(models.WideResNet(16), 6),
        "params is a WideResNet without a single array",
    ),
    "params is a module, to he": (
        lambda: init.he(Module(), KEY),
        "params is a Module ... model.init(key, images)['params']",
    ),
    "params is text": (lambda: init.he("params.npz", KEY), "params is a str"),
    "params is a function": (
        lambda: init.he(models.WideResNet(16).init, KEY),
        "without a single array",
    ),
    "params are Python lists": (
        lambda: init.he({"w": [[1.0]]}, KEY),
        "params is a dict without a single array",
    ),
    "rules as a dict": (
        lambda: _fixup(rules={"branch": RULES.branch}),
        "rules is a dict ... nf_resnets.init.Rules",
    ),
    "rules as text": (
        lambda: init.he(TREE, KEY, rules=RULES.branch),
        "rules is a str ... nf_resnets.init.Rules",
    ),
    "key is a seed": (lambda: _fixup(key=0), "key=0 (int) found ... jax.random.key(0)"),
    "NNX's streams of keys": (lambda: _fixup(key=nnx.Rngs(0)), "key=(Rngs) found"),
    "an NNX variable that holds a key": (
        lambda: _fixup(key=nnx.Rngs(0).params.key),
        "key=(RngKey) found ... expected one PRNG key",
    ),
    "no key": (lambda: init.he(TREE, None, rules=RULES), "key=None (NoneType) found"),
    "a batch of keys": (
        lambda: _fixup(key=jax.random.split(KEY, 3)),
        "key of dtype key<fry> and shape [3] found ... expected one PRNG key",
    ),
    "a batch of raw keys": (
        lambda: _fixup(key=jax.random.split(jax.random.PRNGKey(0), 3)),
        "key of dtype uint32 and shape [3, 2] found",
    ),
    "numbers that are no raw key": (
        lambda: _fixup(key=np.zeros(3, "uint32")),
        "key of dtype uint32 and shape [3] found",
    ),
    "a float array for a key": (
        lambda: _skipinit(key=jnp.ones(2)),
        "key of dtype float32 and shape [2] found",
    ),
    "a tree for a key": (lambda: init.xavier(TREE, TREE, rules=RULES), "key=(dict)"),
    "alpha is text": (lambda: _skipinit("0"), "alpha is a str ... one real number"),
    "alpha is None": (lambda: _skipinit(None), "alpha is a NoneType"),
    "alpha is a vector": (lambda: _skipinit(jnp.zeros(2)), "of shape [2] ... one real number"),
    "alpha is complex": (lambda: _skipinit(np.complex64(1)), "alpha is a complex64"),
}
REFUSALS = [
    (case, kind)
    for kind, cases in ((ValueError, VALUE_ERRORS), (TypeError, TYPE_ERRORS))
    for case in cases
]


@pytest.mark.parametrize(("case", "kind"), REFUSALS)
def test_refusals(case, kind):
    call, words = (VALUE_ERRORS if kind is ValueError else TYPE_ERRORS)[case]
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    sentence = str(caught.value)
    for part in words.split(" ... "):
        assert part in sentence
    # One sentence: on one line, of a readable length, with its full stop at the end only.
    assert "\n" not in sentence
    assert sentence.endswith(".")
    assert len(sentence) < 600  # the names of all schemes among them
    assert ". " not in sentence


def test_the_cases_above_are_wrong_by_one_thing():
    """The calls of this file are right but for what each case does to them."""
    assert not np.any(_fixup()["block_2"]["conv_2"])
    assert float(_skipinit(0.5)["block_2"]["alpha"]) == 0.5
    init.he(TREE, KEY, rules=RULES)
    stack = {"conv_1": jnp.ones((3, 4, 4)), "conv_2": jnp.ones((3, 4, 4))}
    init.he(stack, KEY, rules=STACKED)


def test_a_traced_alpha_is_taken():
    alphas = jax.vmap(lambda a: _skipinit(a)["block_1"]["alpha"])(jnp.asarray([0.0, 0.5]))
    np.testing.assert_array_equal(alphas, [0.0, 0.5])
    # NumPy leaves too, which cannot hold a traced value, and become JAX arrays.
    tree = {"block_1": {"conv_1": np.ones((4, 4)), "alpha": np.ones(())}}
    take = jax.jit(functools.partial(_skipinit, depth=1, params=tree))
    assert float(take(0.25)["block_1"]["alpha"]) == 0.25


@pytest.mark.parametrize("alpha", [1, np.float16(1), np.asarray(1.0), jnp.asarray(1)])
def test_every_kind_of_number_is_an_alpha(alpha):
    assert float(_skipinit(alpha)["block_1"]["alpha"]) == 1.0


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


def test_numbers_of_numpy_are_numbers():
    found, expected = (_fixup(scale=scale) for scale in (np.float32(0.5), 0.5))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_non_arrays_of_a_layer_s_name_stay():
    """An Equinox head holds its activation and Dropout's rate beside its weight."""
    head = {"weight": jnp.ones((4, 5)), "activation": jax.nn.relu, "p": 0.5, "inference": True}
    tree = {**TREE, "dense": head}
    result = _fixup(tree, rules=Rules(branch=RULES.branch, head="^dense/"))
    assert not np.any(result["dense"].pop("weight"))
    assert result["dense"] == {"activation": jax.nn.relu, "p": 0.5, "inference": True}


def test_an_optimiser_state_is_no_parameter_tree():
    net = models.WideResNet(10, stem_channels=2)
    params = jax.eval_shape(net.init, jax.random.key(0), jnp.ones((1, 4, 4, 3)))["params"]
    with pytest.raises(ValueError, match=r"'momentum/.* are two weights of one layer"):
        roles.assign({"momentum": params, "params": params})
