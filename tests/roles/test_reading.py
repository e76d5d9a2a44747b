"""What a network is can be read off its computation, whoever wrote it and whatever it calls it."""

from functools import partial

import jax
import numpy as np
import pytest
from jax import lax

from nf_resnets import roles
from nf_resnets.roles import Role
from tests.roles.libraries import LIBRARIES
from tests.roles.networks import CASES, D, f, stacked_block

pytestmark = pytest.mark.usefixtures("strangers_broadcast")

ALL = CASES | LIBRARIES
LAYERS = ("stem", "shortcut", "head", "embedding")
SLOW = ("haiku_resnet_v1",)


def branches_of(role_map):
    """The layers of each branch, in the notation of the cases, parallel ones joined."""
    return [
        [leaf.path for leaf in sorted(role_map.leaves, key=lambda leaf: leaf.layer)
         if branch.k in leaf.branches and leaf.role is Role.BRANCH and leaf.weight]
        for branch in role_map.branches
    ]  # fmt: skip


def matches(found, text):
    """Whether layers are in the order of a text, in which parallel ones have none."""
    for group in text.split():
        size = group.count(",") + 1
        if set(found[:size]) != set(group.split(",")):
            return False
        found = found[size:]
    return not found


@pytest.mark.filterwarnings("error::numpy.exceptions.ComplexWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in ALL]
)
def test_a_network_is_what_it_computes(name):
    case = ALL[name]()
    if case.doubt:
        with pytest.raises(ValueError, match=case.doubt):
            roles.read(case.network, case.params, *case.inputs)
        if not case.options:
            return
    role_map = roles.read(case.network, case.params, *case.inputs, **case.options)
    leaves = {leaf.path: leaf for leaf in role_map.leaves}
    found = branches_of(role_map)
    assert len(found) == len(case.branches)
    for layers, text in zip(found, case.branches, strict=True):
        assert matches(layers, text), (layers, text)
    assert [branch.m for branch in role_map.branches] == [len(layers) for layers in found]
    for role in LAYERS:
        paths = {leaf.path for leaf in role_map.leaves if leaf.role == role and leaf.weight}
        if role in case.roles or (case.branches and role != "stem"):
            assert paths == set(case.roles.get(role, "").split()), role
    for role in set(case.roles) - {*LAYERS, "bias"}:
        assert {leaves[path].role for path in case.roles[role].split()} == {role}
    for path in case.roles.get("bias", "").split():
        assert leaves[path].role is Role.BRANCH
        assert (not leaves[path].weight) and leaves[path].branches
    assert {path: roles.fans(leaves[path]) for path in case.fans} == case.fans
    assert {path: leaves[path].axes for path in case.axes} == case.axes
    scales = [(b.skip_scale, b.branch_scale, b.sum_scale) for b in role_map.branches]
    expected = np.broadcast_to(case.scales, (len(scales), 3))
    found = np.array(scales, float).reshape(-1, 3)
    np.testing.assert_allclose(found, expected.astype(float), rtol=1e-7)  # of float32 roots
    assert {str(b.normalized) for b in role_map.branches} <= set(
        (case.normalized or "None").replace("nothing", "None").split(" or ")
    )


def scanned(*parts):
    """Blocks that are scanned part after part."""

    def network(p, x):
        for part in parts:
            x, _ = lax.scan(stacked_block, x, jax.tree.map(part, (p["w1"], p["w2"])))
        return x

    return network


def after_the_first(p, x):
    def block(i, x):
        return stacked_block(x, (p["w1"][i], p["w2"][i]))[0]

    return lax.fori_loop(1, 6, block, block(0, x))


@pytest.mark.parametrize(
    ("network", "order"),
    [
        (scanned(lambda w: w[:2], lambda w: w[2:]), "123456"),
        (scanned(lambda w: w[3:], lambda w: w[:3]), "456123"),
        (scanned(lambda w: w[::-1]), "654321"),
        (scanned(lambda w: w[1::2], lambda w: w[::2]), "415263"),
        (scanned(lambda w: w.reshape(2, 3, D, D)[1], lambda w: w[:3]), "456123"),
        (after_the_first, "123456"),
    ],
)
def test_the_slices_of_a_stack_are_in_their_own_order(network, order):
    params = {"w1": f(6, D, D), "w2": f(6, D, D)}
    for leaf in roles.read(network, params, f(2, D)).leaves:
        assert (leaf.branches, leaf.stacked) == (tuple(map(int, order)), 1)


def test_what_alpha_and_keep_say():
    case = CASES["rezero"]()
    read = partial(roles.read, case.network, case.params, *case.inputs)
    assert {leaf.path: leaf.role for leaf in read(alpha=True).leaves}["l0/alpha"] is Role.ALPHA
    found = branches_of(read(keep="l1/w1"))
    assert found == [["l0/w1", "l0/w2"], ["l1/w2"], ["l2/w1", "l2/w2"]]
    with pytest.raises(ValueError, match="keep='norm' matches no leaf"):
        read(keep="norm")


def test_a_screen_says_what_the_network_is():
    case = LIBRARIES["linen_scanned_transformer"]()
    text = str(roles.read(case.network, case.params, *case.inputs))
    assert "10 residual branches, each of 2 or 4 layers" in text
    assert "  2, 4..10: 'h/Dense_1/kernel', 'h/Dense_0/kernel'" in text
    assert "head: 'head/kernel'" in text
    assert len(text.splitlines()) < 12
