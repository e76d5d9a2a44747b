"""What a scheme's network must contain: refused, warned of, and handed out."""

import dataclasses
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import init, models, roles, schemes
from nf_resnets.init import Rules, SchemeWarning
from tests.models.trees import random_variables

KEY = jax.random.key(0)
L = 36
RULES = Rules(branch=r"block_(\d+)/conv_(\d+)$", head="^head$", stem="^stem$")
WITH = dataclasses.replace(
    RULES, multiplier="/multiplier$", channel_bias="/vector_", scalar_bias="/bias_"
)


def tree(**leaves):
    """Blocks of two dense layers of 32 units, with what else is asked for in each."""
    block = {"conv_1": jnp.ones((32, 32)), "conv_2": jnp.ones((32, 32)), **leaves}
    ends = {"stem": jnp.ones((8, 32)), "head": jnp.ones((32, 5))}
    return {f"block_{k}": block for k in range(L)} | ends


PARTS = {
    "multiplier": jnp.ones(()),
    "vector_1": jnp.zeros(32),
    "vector_2": jnp.zeros(32),
    "bias_1": jnp.zeros(()),
}


def logits(params, constants):
    """A plain network, or RescaleNet's."""
    x = jax.random.normal(jax.random.key(1), (16, 8)) @ params["stem"]
    for k in range(L):
        block = params[f"block_{k}"]
        h = jax.nn.relu(jax.nn.relu(x) @ block["conv_1"]) @ block["conv_2"]
        x = constants.identity[k] * x + constants.residual[k] * h
    return jax.nn.relu(x) @ params["head"]


def test_a_network_without_the_constants_of_rescalenet_is_refused():
    """Its logits would have a deviation that grows exponentially with the depth."""
    for options in ({}, {"key": KEY}):
        with pytest.raises(
            ValueError, match=r"cannot show the constants.*residual.*identity.*constants="
        ):
            init.rescalenet(tree(), L, rules=RULES, **options)
    constants = schemes.get("rescalenet").constants(L)
    with pytest.warns(SchemeWarning):
        params = init.rescalenet(tree(), L, rules=RULES, constants=constants, key=KEY)
    without = schemes.BranchConstants(np.ones(L), np.ones(L))
    assert logits(params, without).std() > 100
    # Var is kept, but for what a draw of 32 units adds.
    assert 0.3 < logits(params, constants).std() < 3


@pytest.mark.parametrize("scheme", ["plain", "fixup", "skipinit", "batchnorm"])
def test_our_network_of_another_scheme_is_refused(scheme):
    model = models.WideResNet(depth=10, scheme=scheme, stem_channels=4)
    params = random_variables(model, 0)["params"]
    with pytest.raises(
        ValueError, match=r"scheme='rescalenet', which has them|without normalisation"
    ):
        init.rescalenet(params, 3, key=KEY)


def test_our_own_networks_need_not_be_told():
    for scheme in ("rescalenet", "rescalenet_published"):
        model = models.WideResNet(depth=10, scheme=scheme, stem_channels=4)
        params = random_variables(model, 0)["params"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            schemes.get(scheme).init(params, 3)


@pytest.mark.parametrize(
    ("constants", "sentence"),
    [
        (lambda right: right._replace(identity=None), r"identity\[0\]=1 found; expected 0.986"),
        (lambda right: right._replace(residual=right.residual[1:]), r"residual has shape \[35\]"),
        (lambda right: schemes.get("rescalenet_published").constants(L), r"identity\[0\]="),
        (lambda right: True, "constants is a bool"),
    ],
)
def test_other_constants_are_refused(constants, sentence):
    given = constants(schemes.get("rescalenet").constants(L))
    with pytest.raises(ValueError, match=sentence):
        init.rescalenet(tree(**PARTS), L, rules=WITH, constants=given, key=KEY)


def test_what_only_makes_training_worse_is_a_warning_of_one_sentence():
    expected = {
        "bias_1": ("scalar_bias", "no scalar biases found in params for 36 residual branches"),
        "multiplier": ("multiplier", "no multipliers found in params for 36 residual branches"),
    }
    parts = {"bias_1": jnp.zeros(()), "multiplier": jnp.ones(())}
    whole = dataclasses.replace(WITH, channel_bias=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        init.fixup(tree(**parts), L, rules=whole)
    for name, (rule, sentence) in expected.items():
        rest = {other: leaf for other, leaf in parts.items() if other != name}
        with pytest.warns(SchemeWarning) as found:
            init.fixup(tree(**rest), L, rules=dataclasses.replace(whole, **{rule: None}))
        (warning,) = found
        assert sentence in str(warning.message) and f"rules.{rule}" in str(warning.message)
    some = tree(**parts)
    for k in range(30):
        some[f"block_{k}"] = {n: v for n, v in some[f"block_{k}"].items() if n != "multiplier"}
    with pytest.warns(
        SchemeWarning, match="6 multipliers found in params for 36 residual branches"
    ):
        init.fixup(some, L, rules=whole)


def test_under_jit_what_is_missing_is_said_too():
    rules = dataclasses.replace(WITH, channel_bias=None, multiplier=None)
    with pytest.warns(SchemeWarning, match="no multipliers"):
        jax.jit(lambda params: init.fixup(params, L, rules=rules))(tree(bias_1=jnp.zeros(())))
    with pytest.raises(ValueError, match="cannot show the constants"):
        jax.jit(lambda params: init.rescalenet(params, L, rules=RULES))(tree())


def test_the_constants_are_public():
    for depth in (1, 16, 120):
        residual, identity, beta = schemes.get("rescalenet").constants(depth)
        k = np.arange(1, depth + 1)
        # float32's rounding of a square root.
        np.testing.assert_allclose(identity, np.sqrt((k + depth - 1) / (k + depth)), rtol=1e-7)
        np.testing.assert_allclose(residual, np.full(depth, depth**-0.5), rtol=1e-7)
        assert beta.tolist() == [1.0] * depth
    assert [value.tolist() for value in schemes.get("fixup").constants(2)] == [[1.0, 1.0]] * 3
    assert schemes.get("sqrt_half").constants(1).identity[0] == np.float32(0.5**0.5)
    with pytest.raises(
        ValueError, match="transitions=None found; the constants of NF-ResNet depend"
    ):
        schemes.get("nf_resnet").constants(3)
    # 1, then sqrt(1 + 0.2^2), and after a convolution on the skip path the same again.
    beta = schemes.get("nf_resnet").constants(3, (False, True, False)).beta
    np.testing.assert_allclose(beta, [1, 1.04**0.5, 1.04**0.5], rtol=1e-7)
    with pytest.raises(ValueError, match="2 transitions found; expected depth=3"):
        schemes.get("nf_resnet").constants(3, (True, False))
    for depth in (-1, 2.0, True, None):
        with pytest.raises(ValueError, match="depth="):
            schemes.get("rescalenet").constants(depth)


@pytest.mark.parametrize("name", schemes.names())
def test_what_a_scheme_says_of_its_parts(name):
    scheme = schemes.get(name)
    assert all(need.without in ("fails", "worse", "differs") for need in scheme.needs)
    assert not (scheme.norm_free and scheme.anatomy.norm)
    with pytest.raises(ValueError, match=r"needs of \['gamma'\] found"):
        dataclasses.replace(scheme, needs=(schemes.Need("gamma"),))


@pytest.mark.every(6)
@pytest.mark.parametrize("name", schemes.names("pre_activation"))
def test_our_networks_lack_nothing(name):
    """Each scheme's own network shows all that its anatomy says."""
    model = models.WideResNet(depth=16, scheme=name, stem_channels=4)
    shapes = jax.eval_shape(model.init, KEY, jnp.zeros((1, 8, 8, 3)))["params"]
    found = init.describe(shapes, model.num_branches, scheme=name)
    assert (found.missing, found.refused) == ((), ())


def test_describe_says_what_becomes_of_every_leaf():
    params = tree(**PARTS, norm={"scale": jnp.ones(32)})
    rules = dataclasses.replace(WITH, keep="norm")
    found = init.describe(params, L, rules=rules)
    assert len(found.rows) == len(jax.tree.leaves(params)) and found.depth == L
    rows = {row.path: row for row in found.rows}
    one = rows["block_7/conv_1"]
    assert (one.role, one.branches, one.layer, one.m) == (roles.Role.BRANCH, (8,), 1, 2)
    assert (one.shape, one.change) == ((32, 32), "times")
    assert one.by == pytest.approx([L**-0.5], rel=1e-6)
    changes = {path: (row.change, row.by) for path, row in rows.items()}
    assert changes["block_7/conv_2"] == changes["head"] == ("to", (0.0,))
    assert changes["block_7/multiplier"] == ("to", (1.0,))
    assert changes["stem"] == changes["block_7/norm/scale"] == ("kept", (1.0,))
    assert rows["block_7/multiplier"].branches == rows["block_7/norm/scale"].branches == (8,)
    assert rows["stem"].branches == ()
    (sentence,) = found.refused
    assert "'block_0/norm/scale' [32] is that of a norm" in sentence
    text = str(found)
    for piece in ("Fixup on 36", "block_35/conv_1", "1/2", "× 0.1667", "as given", "refused: leaf"):
        assert piece in text, piece
    # The same of shapes, and nothing is warned of or changed.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shapes = init.describe(jax.eval_shape(lambda: params), L, rules=rules)
    assert [row.by for row in shapes.rows] == [row.by for row in found.rows]


def test_describe_says_standard_deviations_and_what_is_missing():
    found = init.describe(tree(), L, rules=RULES, scheme="rescalenet")
    rows = {row.path: row for row in found.rows}
    assert rows["block_0/conv_1"].change == "std"
    std = (2 / 32) ** 0.5 * (L / (1 + L)) ** 0.25
    assert rows["block_0/conv_1"].by == pytest.approx([std], rel=1e-6)
    assert [(lack.part, lack.without) for lack in found.missing] == [
        ("residual", "fails"), ("channel_biases", "worse"), ("multiplier", "worse")
    ]  # fmt: skip
    assert "identity = 0.9864 to 0.993" in str(found)
    with_them = init.describe(
        tree(),
        L,
        rules=RULES,
        scheme="rescalenet",
        constants=schemes.get("rescalenet").constants(L),
    )
    assert [lack.part for lack in with_them.missing] == ["channel_biases", "multiplier"]
    # One that the initialiser itself refuses.
    found = init.describe(tree(), L, rules=RULES, scheme="skipinit")
    assert "0 alphas found in params for 36" in found.refused[0]
    assert {row.change for row in found.rows} == {"unknown"}
    assert str(found).splitlines()[2].endswith("?")
    with pytest.raises(ValueError, match="36 residual branches found, depth=35 given"):
        init.describe(tree(), 35, rules=RULES)


def test_describe_knows_the_branches_of_a_stack():
    model = models.WideResNet(depth=28, scheme="rescalenet", stem_channels=4)
    params = random_variables(model, 0)["params"]
    found = init.describe(params, 12, scheme="rescalenet")
    rows = {row.path: row for row in found.rows}
    for name in ("conv_1/kernel", "multiplier", "bias_2/vector"):
        assert rows[f"stage_2/rest/{name}"].branches == (6, 7, 8)
        assert len(rows[f"stage_2/rest/{name}"].by) == 3
    result = init.rescalenet(params, 12)["stage_2"]["rest"]["conv_1"]["kernel"]
    rms = np.sqrt(np.mean(np.square(np.asarray(result, "f8")), axis=(1, 2, 3, 4)))
    np.testing.assert_allclose(rows["stage_2/rest/conv_1/kernel"].by, rms, rtol=1e-6)
    assert "6..8" in str(found)


def test_describe_takes_empty_vectors_and_floats_of_eight_bits():
    conv = jnp.ones((3, 3, 4, 4), jnp.float8_e4m3fn)
    tree = {f"block_{k}": {"conv_1": conv, "conv_2": conv} for k in range(4)}
    tree["state"] = jnp.zeros(0)
    rules = init.Rules(branch=r"block_(\d)/conv_(\d)")
    rows = {row.path: row.change for row in init.describe(tree, 4, rules=rules).rows}
    assert (rows["block_0/conv_1"], rows["state"]) == ("times", "kept")
    after = init.fixup(tree, 4, rules=rules)["block_3"]["conv_1"]
    assert after.dtype == conv.dtype and np.all(np.asarray(after, np.float32) == 0.5)


def test_describe_does_not_take_an_identity_for_zeros():
    """Its first number is 0; it has the root mean square of ones at 4 of 3 x 3 x 4 x 4 places."""
    conv = jnp.ones((3, 3, 4, 4))
    tree = {f"block_{k}": {"conv_1": conv, "conv_2": conv} for k in (1, 2)}
    identity = dataclasses.replace(
        schemes.get("plain"),
        init=lambda params, depth, *, key=None, rules=None: jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape).at[1, 1].set(jnp.eye(4)), params
        ),
    )
    found = init.describe(tree, 2, rules=Rules(branch=r"block_(\d)/conv_(\d)"), scheme=identity)
    assert (found.rows[0].change, found.refused) == ("std", ())
    assert found.rows[0].by == pytest.approx((1 / 6,))


def biased(kernel, bias):
    layer = {"kernel": jnp.ones((32, 32)), "bias": bias}
    block = {"conv_1": {**layer, "bias": jnp.ones(32)}, "conv_2": layer}
    tree = {"block_1": block, "block_2": block, "head": jnp.ones((32, 5))}
    rules = Rules(branch=rf"block_(\d+)/conv_(\d+)/{kernel}", head="^head$", optional=("keep",))
    return tree, rules


@pytest.mark.parametrize(
    ("kernel", "bias", "keep", "warned"),
    [
        ("kernel", jnp.ones(32), None, True),
        ("kernel", jnp.zeros(32), None, False),  # there is nothing to say
        ("", jnp.ones(32), None, False),  # it becomes 0
        ("kernel", jnp.ones(32), "conv_./bias", False),  # it is to stay
    ],
)
def test_fixup_warns_of_a_bias_that_keeps_a_branch_from_starting_at_zero(
    kernel, bias, keep, warned
):
    tree, rules = biased(kernel, bias)
    rules = dataclasses.replace(rules, keep=keep)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = init.fixup(tree, 2, rules=rules)
        jax.jit(lambda tree: init.fixup(tree, 2, rules=rules))(tree)  # values are not known
    said = [str(each.message) for each in caught if "bias vector" in str(each.message)]
    assert len(said) == warned
    assert all("'block_1/conv_2/bias' and 1 more" in sentence for sentence in said)
    kept = bias if kernel else 0
    np.testing.assert_array_equal(found["block_1"]["conv_2"]["bias"], kept)


@pytest.mark.parametrize(
    ("head", "branch", "said"),
    [({"kernel": (8, 5), "bias": (5,)}, "conv_{}", "'head/bias', of the head, is not 0, so that "
      "the network's output .* rules.head"),
     ({"kernel": (8, 5)}, "w{}", "'block_1/b2' and 1 more, of the last layer .* rules.branch"),
     ({"w_2": (8, 5), "b_2": (5,)}, "conv_{}", "'head/b_2', of the head"),
     ({"W": (8, 5), "b": (5,)}, "conv_{}", "'head/b', of the head"),
     ({"kernel": (8, 5)}, "W{}", "'block_1/b2' and 1 more, of the last layer .* rules.branch")],
    ids=["head", "a letter and a number", "head with numbers", "capital", "capital and a number"],
)  # fmt: skip
def test_fixup_warns_of_a_bias_that_no_rule_names(head, branch, said):
    layers = {branch.format(j): jnp.ones((8, 8)) for j in (1, 2)}
    biases = {f"b{j}": jnp.ones(8) for j in (1, 2)} if branch.lower() == "w{}" else {}
    tree = {f"block_{k}": layers | biases for k in (1, 2)}
    tree["head"] = {name: jnp.ones(shape) for name, shape in head.items()}
    rules = Rules(
        branch=rf"block_(\d+)/{branch.format('([12])')}",
        head="head/(kernel|[wW])",
        optional=("keep",),
    )
    with pytest.warns(SchemeWarning) as caught:
        init.fixup(tree, 2, rules=rules)
    found = [str(each.message) for each in caught if "bias vector" in str(each.message)]
    assert len(found) == 1 and re.search(said, found[0])


def test_asking_what_fixup_does_says_nothing():
    tree, rules = biased("kernel", jnp.ones(32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert init.describe(tree, 2, rules=rules, scheme="fixup")
