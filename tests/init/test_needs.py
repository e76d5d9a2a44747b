"""What a scheme's network must contain: refused, warned of, tabulated, and handed out."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import init, models, roles, schemes
from nf_resnets.init import Rules, SchemeWarning
from tests.models.trees import random_variables, shapes

KEY = jax.random.key(0)
L = 36
RULES = Rules(branch=r"block_(\d+)/conv_(\d+)$", head="^head$", stem="^stem$")


def tree(**leaves):
    """Blocks of two dense layers of 32 units, with what else is asked for in each."""
    block = {"conv_1": jnp.ones((32, 32)), "conv_2": jnp.ones((32, 32)), **leaves}
    ends = {"stem": jnp.ones((8, 32)), "head": jnp.ones((32, 5))}
    return {f"block_{k}": block for k in range(L)} | ends


def network_of(constants):
    def network(params, x):
        x = x @ params["stem"]
        for k in range(L):
            block = params[f"block_{k}"]
            h = jax.nn.relu(jax.nn.relu(x) @ block["conv_1"]) @ block["conv_2"]
            x = constants.identity[k] * x + constants.residual[k] * h
        return jax.nn.relu(x) @ params["head"]

    return network


def test_the_constants_of_rescalenet_must_be_seen_in_a_network():
    """Without them its logits have a deviation that grows exponentially with the depth."""
    x = jax.random.normal(jax.random.key(1), (16, 8))
    without, right = (
        network_of(constants)
        for constants in (
            schemes.BranchConstants(np.ones(L), np.ones(L)),
            schemes.get("rescalenet").constants(L),
        )
    )
    with pytest.raises(ValueError, match=r"the constants .*residual and identity, were not seen"):
        init.rescalenet(tree(), L, rules=roles.read(without, tree(), x), key=KEY)
    with pytest.warns(SchemeWarning, match="no multipliers"):
        params = init.rescalenet(tree(), L, rules=roles.read(right, tree(), x), key=KEY)
    assert without(params, x).std() > 100
    # Var is kept, but for what a draw of 32 units adds.
    assert 0.3 < right(params, x).std() < 3
    with pytest.warns(SchemeWarning, match="were not seen"):
        init.rescalenet(tree(), L, rules=RULES, key=KEY)


def test_our_network_of_another_scheme_is_refused():
    model = models.WideResNet(depth=10, scheme="plain", stem_channels=4)
    params = random_variables(model, 0)["params"]
    with pytest.raises(ValueError, match="were not seen"):
        init.rescalenet(params, 3, key=KEY)


def test_what_only_makes_training_worse_is_a_warning():
    rules = dataclasses.replace(RULES, multiplier="/multiplier$", scalar_bias="/bias_")
    params = tree(bias_1=jnp.zeros(()), multiplier=jnp.ones(()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        init.fixup(params, L, rules=rules)
    for k in range(30):
        params[f"block_{k}"] = {**params[f"block_{k}"]}
        del params[f"block_{k}"]["multiplier"]
    sentence = "6 multipliers found in params for 36 residual branches"
    for wrap in (lambda call: call, jax.jit):
        with pytest.warns(SchemeWarning, match=sentence) as caught:
            wrap(lambda tree: init.fixup(tree, L, rules=rules))(params)
        assert len(caught) == 1


@pytest.mark.every(6)
@pytest.mark.parametrize("name", schemes.names("pre_activation"))
def test_our_networks_lack_nothing(name):
    """Each scheme's own network shows all that its anatomy says."""
    model = models.WideResNet(depth=16, scheme=name, stem_channels=4)
    said = init.describe(shapes(model)["params"], model.num_branches, scheme=name)
    assert "missing:" not in said


def test_describe_says_what_becomes_of_every_leaf():
    params = tree(multiplier=jnp.ones(()), norm=jnp.ones(32))
    rules = dataclasses.replace(RULES, keep="norm", multiplier="/multiplier$")
    rows = {line.split()[0]: line for line in init.describe(params, L, rules=rules).splitlines()}
    for path, becomes in {
        "block_7/conv_1": "branch 8 1/2 × 0.1667",
        "block_7/conv_2": "branch 8 2/2 0",
        "block_7/multiplier": "multiplier 8 1",
        "block_7/norm": "keep 8 as given",
        "stem": "stem as given",
    }.items():
        assert rows[path].split("]")[1].split() == becomes.split()
    assert "no scalar biases found" in rows["missing:"]
    rows = init.describe(jax.eval_shape(tree), L, rules=RULES, scheme="rescalenet")
    # sqrt(2 / 32) (L / (1 + L))^(1/4)
    assert "std 0.2483" in next(line for line in rows.splitlines() if "block_0/conv_1" in line)


@pytest.mark.parametrize(
    "name", ["fixup", "skipinit", "rezero", "rescalenet", "nf_resnet", "t_fixup"]
)
def test_a_norm_in_a_branch_is_refused_by_schemes_without_norms(name):
    """By its name, in our networks and where rules name it, or by what was read."""
    own = models.WideResNet(depth=10, scheme="batchnorm", stem_channels=4)
    params = random_variables(own, 0)["params"]
    role_map = roles.assign(params)
    seen = [dataclasses.replace(branch, normalized="data") for branch in role_map.branches]
    read = dataclasses.replace(role_map, branches=tuple(seen), rules=None)
    for each in (role_map, read):
        with pytest.raises(ValueError, match="'stage_1/first' contains a norm"):
            schemes.get(name).init(params, 3, rules=each)
    # Rules do not tell a norm's scale from a weight's gain, which some of these schemes may have.
    anatomy = schemes.get(name).anatomy
    if not (anatomy.alpha or anatomy.standardized):
        with pytest.raises(ValueError, match="'stage_1/first' contains a norm"):
            schemes.get(name).init(params, 3, rules=dataclasses.replace(role_map, rules=RULES))
