"""What a scheme's network must contain: refused, warned of, and handed out."""

import dataclasses
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import init, models, roles, schemes
from nf_resnets.init import Rules, SchemeWarning, needs
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
    assert init.describe(shapes, model.num_branches, scheme=name).missing == ()


def test_describe_says_what_becomes_of_every_leaf():
    params = tree(**PARTS, norm={"scale": jnp.ones(32)})
    described = init.describe(params, L, rules=dataclasses.replace(WITH, keep="norm"))
    rows = {row.leaf.path: row for row in described.rows}
    changes = {path: (row.change, row.by, row.branches) for path, row in rows.items()}
    assert len(rows) == len(jax.tree.leaves(params))
    assert rows["block_7/conv_1"].by == pytest.approx([L**-0.5], rel=1e-6)  # float32
    assert changes["block_7/conv_2"] == ("to", (0.0,), (8,))
    assert changes["block_7/multiplier"] == ("to", (1.0,), (8,))
    assert changes["block_7/norm/scale"] == ("kept", (1.0,), (8,))
    assert (changes["head"], changes["stem"]) == (("to", (0.0,), ()), ("kept", (1.0,), ()))
    for piece in ("block_35/conv_1", "1/2", "× 0.1667", "as given"):
        assert piece in str(described), piece
    with pytest.raises(ValueError, match="0 alphas"):
        init.describe(tree(), L, rules=RULES, scheme="skipinit")


def test_describe_says_standard_deviations_of_a_stack_and_what_is_missing():
    constants = schemes.get("rescalenet").constants(L)
    given = {"rules": RULES, "scheme": "rescalenet", "constants": constants}
    described = init.describe(tree(), L, **given)
    std = (2 / 32) ** 0.5 * (L / (1 + L)) ** 0.25
    row = next(row for row in described.rows if row.leaf.path == "block_0/conv_1")
    assert (row.change, row.by) == ("std", pytest.approx([std], rel=1e-6))  # float32
    assert [lack.part for lack in described.missing] == ["channel_biases", "multiplier"]
    shapes = jax.eval_shape(tree)
    assert init.describe(shapes, L, **given).rows == described.rows
    model = models.WideResNet(depth=28, scheme="rescalenet", stem_channels=4)
    params = random_variables(model, 0)["params"]
    made = init.rescalenet(params, 12)["stage_2"]["rest"]["conv_1"]["kernel"]
    rms = np.sqrt(np.mean(np.square(np.asarray(made, "f8")), axis=(1, 2, 3, 4)))
    rows = {row.leaf.path: row for row in init.describe(params, 12, scheme="rescalenet").rows}
    np.testing.assert_allclose(rows["stage_2/rest/conv_1/kernel"].by, rms, rtol=1e-6)
    assert rows["stage_2/rest/multiplier"].branches == (6, 7, 8)


@pytest.mark.parametrize("name", [name for name in schemes.names() if schemes.get(name).norm_free])
def test_a_norm_in_a_branch_is_refused_by_schemes_without_norms(name):
    """In our networks by its name, in others by what was read."""
    scheme = schemes.get(name)
    own = models.WideResNet(depth=10, scheme="batchnorm", stem_channels=4)
    params = random_variables(own, 0)["params"]
    role_map = roles.assign(params)
    seen = [dataclasses.replace(branch, normalized="data") for branch in role_map.branches]
    read = dataclasses.replace(role_map, branches=tuple(seen), rules=None)
    for each in (role_map, read):
        with pytest.raises(ValueError, match="'stage_1/first' contains a norm"):
            needs.check_parts(scheme, each)


@pytest.mark.parametrize(("keep", "warned"), [(None, True), ("norm", False)])
def test_a_vector_in_a_branch_that_no_rule_names_is_a_warning(keep, warned):
    params = tree(**PARTS, norm={"scale": jnp.ones(32)}) | {"last": jnp.ones(32)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        init.fixup(params, L, rules=dataclasses.replace(WITH, keep=keep))
    said = [str(each.message) for each in caught]
    expected = r"the vector 'block_0/norm/scale' \[32\] and 35 more in residual branch 'block_0' is"
    assert len(said) == warned and all(re.search(expected, sentence) for sentence in said)


@pytest.mark.parametrize("leaf", ["conv_2", "multiplier", "both"])
def test_two_zeros_at_the_end_of_a_branch_are_refused(leaf):
    params = tree(**PARTS)
    zero = {name: 0 * params["block_3"][name] for name in ("conv_2", "multiplier")}
    one = {name: value for name, value in zero.items() if leaf in (name, "both")}
    params["block_3"] = params["block_3"] | one
    role_map = roles.assign(params, WITH)
    if leaf != "both":
        assert needs.check_zeros(schemes.get("plain"), role_map, params) is params
        return
    with pytest.raises(ValueError, match="conv_2' and 'block_3/multiplier' .* are both zero"):
        needs.check_zeros(schemes.get("plain"), role_map, params)
    jax.jit(lambda tree: needs.check_zeros(schemes.get("plain"), role_map, tree))(params)
