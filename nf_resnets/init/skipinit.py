"""SkipInit and ReZero: one learnable scalar at the end of every residual branch."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax

from nf_resnets import roles
from nf_resnets.init import needs
from nf_resnets.init.from_network import takes_network
from nf_resnets.init.standard import default_init
from nf_resnets.init.tree import cast_like, is_concrete
from nf_resnets.roles import Leaf, Role, RoleMap, Rules
from nf_resnets.schemes import Anatomy, Need, Scheme


@takes_network(alpha=True)
def skipinit(
    params: Any,
    depth: int,
    *,
    alpha: float | jax.Array = 0.0,
    key: jax.Array | None = None,
    rules: Rules | RoleMap | None = None,
) -> Any:
    r"""Sets the scalar of every residual branch ``y = x + alpha F(x)``, section 3 of the paper.

    ``alpha = 0`` is SkipInit, ``alpha = depth**-0.5`` trains deep networks too, ``alpha = 1`` does
    not. The weights stay as they are, or, with ``key``, are drawn as by
    :func:`nf_resnets.init.standard`. (In DeepMind's code the head starts at 0 and the stem has no
    bias vector. The paper names neither; here all schemes share one head and stem.)

    Args:
      params: a parameter tree with one ``alpha`` leaf for each residual branch, or stacked ones. It
        is not changed.
      depth: ``L``, the number of residual branches, checked against the tree.
      alpha: the value that every scalar starts from; it may be traced, to be swept.
      key: a JAX PRNG key to draw the weights afresh.
      rules: the roles of the leaves; by default those of this library's models.
      network: in place of rules, ``network(params, *inputs)``, whose roles are read and verified.
      inputs: of the network, such as ``(images,)``; shapes are enough.

    Returns:
      A tree of the same structure, dtypes and shardings.

    Raises:
      ValueError: if ``depth`` is not the number of residual branches, the tree has not one alpha
        for each, ``alpha`` is not finite, or a norm is in a branch.

    Source: De, Smith, *Batch Normalization Biases Residual Blocks Towards the Identity Function in
    Deep Networks*, NeurIPS 2020.

    Example:
      >>> import jax.numpy as jnp
      >>> tree = {"block_1": {"conv_1": jnp.ones((3, 3, 8, 8)), "alpha": jnp.ones(())}}
      >>> rules = Rules(branch=r"block_(\d+)/conv_(\d+)", alpha="alpha")
      >>> float(skipinit(tree, depth=1, rules=rules)["block_1"]["alpha"])
      0.0
    """
    return with_alphas(SCHEME, params, depth, alpha=alpha, key=key, rules=rules)


@takes_network(alpha=True)
def rezero(
    params: Any, depth: int, *, key: jax.Array | None = None, rules: Rules | RoleMap | None = None
) -> Any:
    r"""Sets the scalar of every branch, ``y = x + alpha F(x)``, to 0: equation 1 of the paper.

    As :func:`nf_resnets.init.skipinit` with ``alpha=0``; ReZero's networks have no biases.

    Source: Bachlechner, Majumder, Mao, Cottrell, McAuley, *ReZero is All You Need: Fast
    Convergence at Large Depth*, UAI 2021.

    Example:
      >>> import jax.numpy as jnp
      >>> tree = {"block_1": {"conv_1": jnp.ones((3, 3, 8, 8)), "alpha": jnp.ones(())}}
      >>> rules = Rules(branch=r"block_(\d+)/conv_(\d+)", alpha="alpha")
      >>> float(rezero(tree, depth=1, rules=rules)["block_1"]["alpha"])
      0.0
    """
    return with_alphas(REZERO, params, depth, alpha=0.0, key=key, rules=rules)


def with_alphas(
    scheme: Scheme,
    params: Any,
    depth: int,
    *,
    alpha: float | jax.Array,
    key: jax.Array | None = None,
    rules: Rules | RoleMap | None = None,
) -> Any:
    """As :func:`skipinit`, but for any scheme whose networks have the same scalar."""
    role_map = roles.assign(params, rules)
    role_map.check_depth(depth)
    count = sum(math.prod(leaf.shape) for leaf in role_map.leaves if leaf.role is Role.ALPHA)
    if count != depth or not depth:
        raise ValueError(
            f"{count} alphas found in params for {depth} residual branches; {scheme.title} needs "
            "one for each (rules.alpha names them)."
        )
    if is_concrete(alpha) and not math.isfinite(alpha):
        raise ValueError(f"alpha={float(alpha)} found; expected a finite number.")
    needs.check_parts(scheme, role_map)
    if key is not None:
        params = default_init(params, key, rules=role_map)

    def fill(leaf: Leaf, value: Any) -> Any:
        return cast_like(value, alpha) if leaf.role is Role.ALPHA else value

    return role_map.map(fill, params)


def _rsqrt_depth(
    params: Any, depth: int, *, key: jax.Array | None = None, rules: Rules | RoleMap | None = None
) -> Any:
    role_map = roles.assign(params, rules)
    role_map.check_depth(depth)
    return skipinit(params, depth, alpha=max(int(depth), 1) ** -0.5, key=key, rules=role_map)


SCHEME = Scheme(
    name="skipinit",
    title="SkipInit",
    init=skipinit,
    anatomy=Anatomy(alpha=True, conv_biases=True),
    reference="De, Smith: Batch Normalization Biases Residual Blocks, NeurIPS 2020, section 3",
    needs=(Need("alpha", "fails", "a scalar stands at the end of every branch"),),
    norm_free=True,
)
RSQRT_DEPTH = dataclasses.replace(
    SCHEME, name="alpha_rsqrt_depth", title="α = 1/√L", init=_rsqrt_depth
)
ALPHA_ONE = dataclasses.replace(
    SCHEME, name="alpha_one", title="α = 1", init=functools.partial(skipinit, alpha=1.0)
)
REGULARIZED = dataclasses.replace(
    SCHEME,
    name="regularized_skipinit",
    title="regularised SkipInit",
    anatomy=dataclasses.replace(SCHEME.anatomy, dropout=True),
)
REZERO = Scheme(
    name="rezero",
    title="ReZero",
    init=rezero,
    anatomy=Anatomy(alpha=True),
    reference="Bachlechner et al.: ReZero is All You Need, UAI 2021, equation 1",
    fits=frozenset({"pre_activation", "post_activation", "transformer"}),
    needs=SCHEME.needs,
    norm_free=True,
)

__all__ = [
    "ALPHA_ONE", "REGULARIZED", "REZERO", "RSQRT_DEPTH", "SCHEME", "rezero", "skipinit",
    "with_alphas",
]  # fmt: skip
