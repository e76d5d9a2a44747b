"""SkipInit and ReZero: one learnable scalar at the end of every residual branch."""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any

import jax

from nf_resnets import roles
from nf_resnets.init.standard import default_init
from nf_resnets.init.tree import cast_like, is_concrete, refuse_norms, takes_network
from nf_resnets.roles import Leaf, Role, RoleMap, Rules
from nf_resnets.schemes import Anatomy, Scheme


@partial(takes_network, alpha=True)
def skipinit(
    params: Any,
    depth: int,
    *,
    alpha: float | jax.Array = 0.0,
    key: jax.Array | None = None,
    rules: Rules | RoleMap | None = None,
) -> Any:
    r"""Sets the scalar of every residual branch ``y = x + alpha F(x)``, section 3 of the paper.

    ``alpha = 0`` is SkipInit, and ReZero in a network without biases; ``alpha = depth**-0.5``
    trains deep networks too, ``alpha = 1`` does not. The weights stay as they are, or, with
    ``key``, are drawn as by :func:`nf_resnets.init.standard`. (In DeepMind's code the head starts
    at 0 and the stem has no bias vector.) Other arguments as in :func:`nf_resnets.init.fixup`.

    Args:
      params: a parameter tree with one ``alpha`` leaf for each residual branch, or stacked ones.
      depth: ``L``, the number of residual branches.
      alpha: the value that every scalar starts from; it may be traced, to be swept.
      key: a JAX PRNG key to draw the weights afresh.
      rules: the roles of the leaves.

    Raises:
      ValueError: if the tree has not one alpha for each branch, ``alpha`` is not finite, or a norm
        is in a branch.

    Source: De, Smith, *Batch Normalization Biases Residual Blocks Towards the Identity Function in
    Deep Networks*, NeurIPS 2020; Bachlechner, Majumder, Mao, Cottrell, McAuley, *ReZero is All You
    Need*, UAI 2021, equation 1.

    Example:
      >>> import jax.numpy as jnp
      >>> tree = {"block_1": {"conv_1": jnp.ones((3, 3, 8, 8)), "alpha": jnp.ones(())}}
      >>> rules = Rules(branch=r"block_(\d+)/conv_(\d+)", alpha="alpha")
      >>> float(skipinit(tree, depth=1, rules=rules)["block_1"]["alpha"])
      0.0
    """
    role_map = roles.assign(params, rules)
    role_map.check_depth(depth)
    if key is not None:
        params = default_init(params, key, rules=role_map)
    return with_alphas(params, role_map, alpha)


def with_alphas(params: Any, role_map: RoleMap, alpha: float | jax.Array) -> Any:
    """Sets the scalars of the branches, of which each must have one."""
    refuse_norms(role_map, "a scheme with alphas", weights=True)
    depth = role_map.num_branches
    count = sum(math.prod(leaf.shape) for leaf in role_map.leaves if leaf.role is Role.ALPHA)
    if count != depth or not depth:
        raise ValueError(
            f"{count} alphas found in params for {depth} residual branches; expected one for each "
            "(rules.alpha names them)."
        )
    if is_concrete(alpha) and not math.isfinite(alpha):
        raise ValueError(f"alpha={float(alpha)} found; expected a finite number.")

    def fill(leaf: Leaf, value: Any) -> Any:
        return cast_like(value, alpha) if leaf.role is Role.ALPHA else value

    return role_map.map(fill, params)


def _rsqrt_depth(
    params: Any, depth: int, *, key: jax.Array | None = None, rules: Rules | RoleMap | None = None
) -> Any:
    role_map = roles.assign(params, rules)
    role_map.check_depth(depth)
    return skipinit(params, depth, alpha=max(int(depth), 1) ** -0.5, key=key, rules=role_map)


SKIPINIT = Scheme(
    name="skipinit",
    title="SkipInit",
    init=skipinit,
    anatomy=Anatomy(alpha=True, conv_biases=True),
    reference="De, Smith: Batch Normalization Biases Residual Blocks, NeurIPS 2020, section 3",
)
SCHEMES = (
    SKIPINIT,
    dataclasses.replace(SKIPINIT, name="alpha_rsqrt_depth", title="α = 1/√L", init=_rsqrt_depth),
    dataclasses.replace(
        SKIPINIT, name="alpha_one", title="α = 1", init=partial(skipinit, alpha=1.0)
    ),
    dataclasses.replace(
        SKIPINIT,
        name="regularized_skipinit",
        title="regularised SkipInit",
        anatomy=dataclasses.replace(SKIPINIT.anatomy, dropout=True),
    ),
    Scheme(
        name="rezero",
        title="ReZero",
        init=skipinit,
        anatomy=Anatomy(alpha=True),
        reference="Bachlechner et al.: ReZero is All You Need, UAI 2021, equation 1",
        fits=frozenset({"pre_activation", "post_activation", "transformer"}),
    ),
)
