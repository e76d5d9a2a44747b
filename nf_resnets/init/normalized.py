"""The baselines with normalization, told apart by which norm there is and where it stands.

All start from a standard initialisation, with the norms' scales 1 and biases 0 as a model's
``init`` has them; but zero-gamma, whose last scale of every branch is 0.
"""

from __future__ import annotations

import itertools
import re
from functools import partial
from typing import Any

import jax

from nf_resnets import roles
from nf_resnets.init.standard import standard
from nf_resnets.init.tree import cast_like, takes_network
from nf_resnets.roles import Leaf, RoleMap, Rules
from nf_resnets.roles.assignment import natural
from nf_resnets.schemes import Anatomy, Scheme

OUR_SCALES = r"(stage_\d+/(?:first|rest))/norm_(\d+)/(?:norm/)?scale$"
"""The norms' scales within the branches of this library's models."""


@takes_network
def zero_gamma(
    params: Any,
    depth: int,
    *,
    scales: str = OUR_SCALES,
    key: jax.Array | None = None,
    rules: Rules | RoleMap | None = None,
) -> Any:
    r"""Sets the last norm's scale of every residual branch to 0, section 5.1 of the paper.

    Every block starts as the identity (and its ReLU). All other scales stay as they are; so do the
    weights, or, with ``key``, they are drawn from He (fan_in). It is for networks whose branches
    end in a norm: post-activation ones. Other arguments as in :func:`nf_resnets.init.fixup`.

    Args:
      params: a parameter tree with norms.
      depth: ``L``, the number of residual branches.
      scales: a regular expression that finds the paths of the scales within the branches, not on
        shortcuts. Its last group orders those of one branch, the groups before it name the branch,
        as in ``r"block_(\d+)/bn_(\d+)/scale$"``.
      key: a JAX PRNG key to draw the weights afresh.
      rules: the roles of the leaves.

    Raises:
      ValueError: if ``scales`` does not find a last scale for each branch.

    Source: Goyal et al., *Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour*, 2017.

    Example:
      >>> import jax.numpy as jnp
      >>> block = {f"conv_{j}": jnp.ones((3, 3, 8, 8)) for j in (1, 2)}
      >>> block |= {f"bn_{j}": jnp.ones(8) for j in (1, 2)}
      >>> rules = Rules(branch=r"block_(\d+)/conv_(\d+)", norm=r"/bn_\d$")
      >>> after = zero_gamma({"block_1": block}, 1, scales=r"block_(\d+)/bn_(\d+)", rules=rules)
      >>> [float(after["block_1"][name].max()) for name in ("bn_1", "bn_2")]
      [1.0, 0.0]
    """
    role_map = roles.assign(params, rules)
    role_map.check_depth(depth)
    last = [in_branch[-1] for in_branch in _scales(role_map, scales)]
    count = sum(leaf.count for leaf in last)
    if count != depth or not depth:
        raise ValueError(
            f"{count} last scales of norms found by scales={scales!r} for {depth} residual "
            "branches; zero-gamma needs one for each, in a network whose branches end in a norm."
        )
    paths = {leaf.path for leaf in last}
    params = standard(params, depth, key=key, rules=role_map)
    return role_map.map(
        lambda leaf, value: cast_like(value, 0) if leaf.path in paths else value, params
    )


def _scales(role_map: RoleMap, scales: str) -> list[list[Leaf]]:
    """Those of each branch, which the other groups name, in the order of the last group."""
    matches = [
        (match.groups(""), leaf)
        for leaf in role_map.leaves
        if (match := re.search(scales, leaf.path))
    ]
    matches.sort(key=lambda item: natural(item[0]))
    branches = itertools.groupby(matches, lambda item: item[0][:-1])
    return [[leaf for _, leaf in in_branch] for _, in_branch in branches]


_of_transformers = partial(Scheme, init=standard, fits=frozenset({"transformer"}))
_of_the_feedback = partial(
    Scheme,
    init=standard,
    reference="De, Smith: Batch Normalization Biases Residual Blocks, NeurIPS 2020, author "
    "feedback",
)
SCHEMES = (
    Scheme(
        name="batchnorm",
        title="BatchNorm",
        init=standard,
        anatomy=Anatomy(norm="batch"),
        reference="Ioffe, Szegedy: Batch Normalization, ICML 2015",
        fits=frozenset({"pre_activation", "post_activation", "plain"}),
    ),
    _of_the_feedback(
        name="batchnorm_last",
        title="one BatchNorm before the softmax",
        anatomy=Anatomy(conv_biases=True, norm="batch", norm_place="last"),
    ),
    # The whole block is multiplied, skip and branch, the feedback's "residual block": only so do
    # they contribute equally.
    _of_the_feedback(
        name="batchnorm_sqrt_half",
        title="BatchNorm, (x + F)/√2",
        anatomy=Anatomy(norm="batch", residual=0.5**0.5, identity=0.5**0.5),
    ),
    _of_the_feedback(
        name="batchnorm_merge",
        title="BatchNorm, also after the sum",
        anatomy=Anatomy(norm="batch", norm_place="merge"),
    ),
    Scheme(
        name="zero_gamma",
        title="BatchNorm, last γ = 0",
        init=zero_gamma,
        anatomy=Anatomy(norm="batch"),
        reference="Goyal et al.: Accurate, Large Minibatch SGD, 2017, section 5.1",
        fits=frozenset({"post_activation"}),
    ),
    Scheme(
        name="groupnorm",
        title="GroupNorm",
        init=standard,
        anatomy=Anatomy(norm="group"),
        reference="Wu, He: Group Normalization, ECCV 2018",
    ),
    _of_transformers(
        name="layernorm_pre",
        title="LayerNorm, before the branch",
        anatomy=Anatomy(conv_biases=True, norm="layer", norm_place="pre"),
        reference="Xiong et al.: On Layer Normalization in the Transformer Architecture, ICML 2020",
    ),
    _of_transformers(
        name="layernorm_post",
        title="LayerNorm, after the sum",
        anatomy=Anatomy(conv_biases=True, norm="layer", norm_place="post"),
        reference="Vaswani et al.: Attention Is All You Need, NeurIPS 2017, section 3.1",
    ),
)
