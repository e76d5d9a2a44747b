"""SkipInit: one learnable scalar at the end of every residual branch."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import roles
from nf_resnets.init import needs
from nf_resnets.init.from_network import takes_network
from nf_resnets.init.standard import default_init
from nf_resnets.init.tree import cast_like, is_concrete, refuse_not_finite
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
    not. The weights stay as they are, or, with ``key``, are drawn from He (fan_in), in a tree with
    embeddings, a Transformer's, from Xavier (uniform). (In DeepMind's code the head starts at 0 and
    the stem has no bias vector. The paper names neither; here all schemes share one head and stem.)

    Args:
      params: a parameter tree with one ``alpha`` leaf for each residual branch, or stacked ones. It
        is not changed.
      depth: ``L``, the number of residual branches, checked against the tree.
      alpha: the value that every scalar starts from; it may be traced, to be swept.
      key: a JAX PRNG key to draw the weights afresh.
      rules: what the paths of the tree mean; by default the names of this library's models.
      network: in place of rules, ``network(params, *inputs)``, whose roles are read and verified.
      inputs: of the network, such as ``(images,)``; shapes are enough.

    Returns:
      A tree of the same structure, dtypes and shardings.

    Raises:
      ValueError: if ``depth`` is not the number of residual branches, the tree has not one alpha
        for each, ``alpha`` or a leaf is not finite, a norm is in a branch,
        another factor of a branch is 0 beside an ``alpha`` of 0, or the tree does not fit
        the rules.
      TypeError: if ``depth`` is not an integer, ``alpha`` not one number or ``key`` not a PRNG key.

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
    found = sum(math.prod(leaf.shape) for leaf in role_map.leaves if leaf.role is Role.ALPHA)
    if found != depth or not depth:
        raise ValueError(
            f"{found} alphas found in params for {depth} residual branches; {scheme.title} needs "
            "one for each (rules.alpha names them)."
        )
    _refuse_two_alphas(scheme, role_map)
    _check_alpha(alpha)
    needs.check_parts(scheme, role_map)
    if key is not None:
        params = default_init(params, key, rules=role_map)
    else:
        refuse_not_finite(params, role_map)

    def fill(leaf: Leaf, value: Any) -> Any:
        return cast_like(value, alpha) if leaf.role is Role.ALPHA else value

    return needs.check_zeros(scheme, role_map, role_map.map(fill, params))


def _refuse_two_alphas(scheme: Scheme, role_map: RoleMap) -> None:
    """Refuses a branch with several alphas, where another has none."""
    alpha_of: dict[int, str] = {}
    for leaf, branches in zip(role_map.leaves, role_map.beside, strict=True):
        # One beside several branches belongs to one of them, and its path does not say to which.
        if leaf.role is not Role.ALPHA or leaf.count != len(branches):
            continue
        for k in branches:
            if k in alpha_of:
                raise ValueError(
                    f"alphas {alpha_of[k]!r} and {leaf.path!r} found beside the residual branch "
                    f"{role_map.branches[k - 1].name!r}; {scheme.title} needs one for each branch."
                )
            alpha_of[k] = leaf.path


def _check_alpha(alpha: Any) -> None:
    number = isinstance(alpha, int | float | np.number) and not isinstance(alpha, bool)
    array = isinstance(alpha, np.ndarray | jax.Array) and alpha.shape == ()
    if not (number or array) or not jnp.isrealobj(alpha):
        shape = f" of shape {list(alpha.shape)}" if hasattr(alpha, "shape") else ""
        raise TypeError(f"alpha is a {type(alpha).__name__}{shape}; expected one real number.")
    if is_concrete(alpha) and not math.isfinite(alpha):
        raise ValueError(f"alpha={float(alpha)} found; expected a finite number.")


def _rsqrt_depth(
    params: Any, depth: int, *, key: jax.Array | None = None, rules: Rules | RoleMap | None = None
) -> Any:
    # A depth that has no such root is refused below, as it is of no tree.
    rootable = isinstance(depth, int | np.integer) and depth > 0
    alpha = int(depth) ** -0.5 if rootable else 0.0
    return skipinit(params, depth, alpha=alpha, key=key, rules=rules)


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

__all__ = ["ALPHA_ONE", "REGULARIZED", "RSQRT_DEPTH", "SCHEME", "skipinit", "with_alphas"]
