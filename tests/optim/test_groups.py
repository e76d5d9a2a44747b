"""The groups of schemes, and optimizers of a part of a tree."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nf_resnets import roles, schemes
from nf_resnets.init import Rules
from nf_resnets.optim import adamw, adaptive_clip, grouped, muon, parametrized, sgd
from nf_resnets.roles import Group, Role

BLOCK = {"conv_1": jnp.ones((2, 2)), "conv_2": jnp.ones((2, 2)), "gain": jnp.ones(())}
NET = {"stem": jnp.ones((2, 2)), "block_1": BLOCK, "block_2": BLOCK, "head": jnp.ones((2, 3))}
NET_RULES = Rules(
    branch=r"block_(\d)/conv_(\d)", multiplier="gain", stem="^stem", head="^head"
)  # fmt: skip
WRAPPED = {
    "sgd": lambda rules: sgd(0.1, weight_decay=0.1, scheme="rescalenet", rules=rules),
    "adamw": lambda rules: adamw(0.1, weight_decay=0.1, scheme="fixup", rules=rules),
    "muon": lambda rules: muon(0.1, scheme="fixup", rules=rules),
    "any of optax": lambda rules: grouped(optax.adabelief(0.1), "fixup", rules),
    "clipped": lambda rules: optax.chain(adaptive_clip(0.01, rules=rules), optax.sgd(0.1)),
    "parametrized": lambda rules: parametrized(
        sgd(0.1, scheme="rescalenet", rules=rules),
        NET,
        "mup",
        base=roles.assign(NET, rules),
        kind="sgd",
        rules=rules,
    ),
}


@pytest.mark.parametrize("given", [NET_RULES, roles.assign(NET, NET_RULES)], ids=["rules", "map"])
@pytest.mark.parametrize("make", WRAPPED.values(), ids=WRAPPED)
def test_an_optimizer_of_a_part_of_the_tree_does_there_what_it_does_in_the_whole(make, given):
    labels = jax.tree_util.tree_map_with_path(
        lambda path, _: "learns" if "conv_2" in jax.tree_util.keystr(path) else "stays", NET
    )
    one = optax.multi_transform({"learns": make(given), "stays": optax.set_to_zero()}, labels)
    masked = optax.masked(make(given), jax.tree.map(lambda label: label == "learns", labels))

    def updates(optimizer):
        return jax.jit(optimizer.update)(NET, optimizer.init(NET), NET)[0]

    whole, multi, part = updates(make(given)), updates(one), updates(masked)
    for label, expected, other, third in zip(
        *map(jax.tree.leaves, (labels, whole, multi, part)), strict=True
    ):
        np.testing.assert_array_equal(other, expected if label == "learns" else 0)
        if label == "learns":
            np.testing.assert_array_equal(third, expected)


def test_the_groups_of_any_optimizer():
    """A tenth of the rate and no decay, for an optimizer that knows nothing of groups."""
    scheme = dataclasses.replace(
        schemes.get("fixup"), scalars=Group((Role.MULTIPLIER,)), undecayed=Group((Role.HEAD,))
    )
    no_noise = optax.add_noise(0.0, 0.55, jax.random.key(0))  # whose state has a key
    inner = optax.chain(no_noise, optax.adamw(0.5, weight_decay=0.2))
    optimizer = grouped(inner, scheme, NET_RULES)
    updates, _ = optimizer.update(NET, optimizer.init(NET), NET)
    # Half a unit in the last place of 1, over 1 - b2.
    np.testing.assert_allclose(updates["block_1"]["gain"], -0.05 * 1.2, rtol=6e-5)
    np.testing.assert_allclose(updates["head"], np.full((2, 3), -0.5), rtol=6e-5)
    np.testing.assert_allclose(updates["stem"], np.full((2, 2), -0.6), rtol=6e-5)


def test_an_optimizer_that_keeps_the_parameters_is_refused_where_it_is_given_others():
    """Scaled for its weight decay they give 2.8 in place of 0.98.

    A slow leaf's average goes on at the full rate: 0.81 in place of 0.89 after 20 steps.
    """
    rule = optax.contrib.schedule_free_sgd(0.1)
    large = parametrized(
        rule, NET, "mup", base={**NET, "stem": jnp.ones((2, 1))}, kind="sgd", rules=NET_RULES
    )
    slow = grouped(rule, "fixup", NET_RULES)
    for optimizer in (grouped(rule, "rescalenet", NET_RULES), slow, large):
        with pytest.raises(ValueError, match="an optimizer found that keeps the parameters in its"):
            jax.jit(optimizer.init)(NET)
    grouped(rule, "fixup", NET_RULES, scalar_factor=1.0).init(NET)
    grouped(rule, "skipinit", NET_RULES).init(NET)  # whose leaves all decay, at one rate
