"""NF-ResNet: standardised weights, and branch inputs divided by their expected deviation."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import numpy as np

from nf_resnets import random, roles
from nf_resnets.init.normalized import zero_gamma
from nf_resnets.init.skipinit import with_alphas
from nf_resnets.init.tree import draw, takes_network
from nf_resnets.roles import Leaf, Role, RoleMap, Rules
from nf_resnets.schemes import Anatomy, Scheme

ALPHA = 0.2
"""The constant on every branch: how fast the variance grows, by ``ALPHA**2`` a block."""

OUR_GAINS = r"(stage_\d+/(?:first|rest))/conv_(\d+)/gain$"
"""The convolutions' gains within the branches of this library's models."""


@partial(takes_network, alpha=True)
def nf_resnet(
    params: Any,
    depth: int,
    *,
    gain: float = 0.0,
    key: jax.Array | None = None,
    rules: Rules | RoleMap | None = None,
) -> Any:
    r"""Initialises a normalizer-free ResNet, section 3 of the paper.

    A block is ``y = x + 0.2 g F(x / beta_k)``. Convolutions compute with scaled standardised
    weights (equation 1), which make ``F`` keep the variance 1; ``beta_k`` is the deviation that
    ``x`` would have with ``g = 1``: ``beta_k^2`` grows by ``0.2^2`` a block, and is ``1 + 0.2^2``
    after a block whose shortcut is a convolution, which takes ``x / beta_k`` too. The learnable
    scalar ``g`` of every branch starts at 0, as in the published code.

    With ``key`` the draws are those of the published code too: ``N(0, 1 / fan_in)``, the head
    ``N(0, 0.01^2)``; the gains of the channels stay as they are. What timm's network does
    otherwise is in the scheme ``"nf_resnet_timm"``. Other arguments as in
    :func:`nf_resnets.init.fixup`.

    Args:
      params: a parameter tree with one scalar ``g`` (``rules.alpha``) for each residual branch, or
        stacked ones; another is refused.
      depth: ``L``, the number of residual branches.
      gain: what every ``g`` starts from.
      key: a JAX PRNG key to draw the weights afresh.
      rules: the roles of the leaves.

    Source: Brock, De, Smith, *Characterizing signal propagation to close the performance gap in
    unnormalized ResNets*, ICLR 2021, and its published code.

    Example:
      >>> import jax.numpy as jnp
      >>> tree = {"block_1": {"conv_1": jnp.ones((3, 3, 8, 8)), "gain": jnp.ones(())}}
      >>> rules = Rules(branch=r"block_(\d+)/conv_(\d+)", alpha="gain")
      >>> float(nf_resnet(tree, depth=1, rules=rules)["block_1"]["gain"])
      0.0
    """
    role_map = roles.assign(params, rules)
    params = _drawn(params, depth, key, role_map)
    return with_alphas(params, role_map, gain)


def _timm(
    params: Any,
    depth: int,
    *,
    scales: str = OUR_GAINS,
    key: jax.Array | None = None,
    rules: Rules | RoleMap | None = None,
) -> Any:
    """The same draws; no branch has a scalar, and its last convolution's gains start at 0."""
    role_map = roles.assign(params, rules)
    params = _drawn(params, depth, key, role_map)
    return zero_gamma(params, depth, scales=scales, rules=role_map)


def _drawn(params: Any, depth: int, key: jax.Array | None, role_map: RoleMap) -> Any:
    role_map.check_depth(depth)
    if key is None:
        return params

    def sample(leaf_key: jax.Array, leaf: Leaf, dtype: Any) -> jax.Array:
        fan_in, _ = roles.fans(leaf)
        std = 0.01 if leaf.role is Role.HEAD else fan_in**-0.5
        return std * random.normal(leaf_key, leaf.shape, dtype)

    return draw(params, key, role_map, sample)


def _beta(transitions: tuple[bool, ...]) -> np.ndarray:
    """The deviation with which ``x`` enters each branch, from 1 after the stem."""
    betas, variance = [], 1.0
    for transition in transitions:
        betas.append(variance**0.5)
        # The convolution on the shortcut starts from a variance of 1 again.
        variance = (1.0 if transition else variance) + ALPHA**2
    return np.asarray(betas)


SCHEME = Scheme(
    name="nf_resnet",
    title="NF-ResNet",
    init=nf_resnet,
    anatomy=Anatomy(alpha=True, conv_biases=True, standardized=True, residual=ALPHA, beta=_beta),
    reference="Brock, De, Smith: Characterizing signal propagation to close the performance gap in "
    "unnormalized ResNets, ICLR 2021, section 3",
    fits=frozenset({"pre_activation"}),
)
TIMM = dataclasses.replace(
    SCHEME,
    name="nf_resnet_timm",
    title="NF-ResNet, timm",
    init=_timm,
    anatomy=dataclasses.replace(
        SCHEME.anatomy, alpha=False, standardized="timm", pooled_shortcut=True
    ),
    reference="huggingface/pytorch-image-models, timm/models/nfnet.py and timm/layers/std_conv.py",
)

SCHEMES = (SCHEME, TIMM)
