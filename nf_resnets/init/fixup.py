"""Fixup: rescale the residual branches so that one SGD step moves the network by Theta(eta)."""

from __future__ import annotations

import math
from typing import Any

import jax

from nf_resnets import roles
from nf_resnets.init.leaves import all_zero, is_concrete, like, refuse_shapes, scaled
from nf_resnets.init.standard import usual
from nf_resnets.roles import Leaf, Role, RoleMap, Rules
from nf_resnets.schemes import SCALARS, Anatomy, Scheme


def fixup(
    params: Any,
    depth: int,
    *,
    scale: float = 1.0,
    key: jax.Array | None = None,
    rules: Rules | None = None,
) -> Any:
    r"""Turns a standard initialisation into Fixup's, section 3 of the Fixup paper.

    1. The head and the last layer of every residual branch become 0.
    2. The other weight layers of a branch of ``m`` layers are multiplied by ``L**(-1/(2m-2))``,
       equation 5 with ``a_1 = ... = a_{m-1}``; stem and shortcuts keep their standard
       initialisation.
    3. Scalar biases become 0, multipliers 1.

    Without ``key`` the weights given are rescaled, so calling it twice would rescale twice: a tree
    in which the last layer of a branch is already 0 is refused. (Under ``jit`` the values cannot be
    looked at, and this check does not happen.) With ``key`` the weights are drawn from He (fan_out)
    first, in a tree with embeddings, a Transformer's, from Xavier (uniform), and the call may be
    repeated.

    At the first step the output of the network is exactly 0, the loss exactly ``ln c`` for ``c``
    classes, and only the head gets a gradient, for its zeros block all others: that is how Fixup
    starts, and no fault. (A Transformer whose head is an embedding, ``shared="target"`` or
    ``"all"``, has no head to set to 0, and another output.)

    Args:
      params: a parameter tree of any library; weights ``[H, W, C_in, C_out]`` or ``[C_in, C_out]``,
        stacked or not. It is not changed.
      depth: ``L``, the number of residual branches (ResNet-110: 54), checked against the tree.
      scale: multiplies the layers of rule 2 once more; 0.1 and 10 are the ablations of the paper's
        figure 4.
      key: a JAX PRNG key to draw the weights afresh.
      rules: what the paths of the tree mean; by default the names of this library's models.

    Returns:
      A tree of the same structure, dtypes and shardings.

    Raises:
      ValueError: if ``depth`` is not the number of residual branches, a branch has ``m = 1`` layer
        (the exponent would divide by zero), ``scale`` is not finite and above 0, the tree is
        initialised already, has no residual branch, holds shapes instead of arrays, or does not fit
        the rules (see :func:`nf_resnets.roles.assign`).
      TypeError: if ``depth`` is not an integer or ``key`` not a PRNG key.

    Source: Zhang, Dauphin, Ma, *Fixup Initialization: Residual Learning Without Normalization*,
    ICLR 2019.

    Example:
      >>> import jax.numpy as jnp
      >>> tree = {"block_1": {"conv_1": jnp.ones((3, 3, 8, 8)), "conv_2": jnp.ones((3, 3, 8, 8))},
      ...         "block_2": {"conv_1": jnp.ones((3, 3, 8, 8)), "conv_2": jnp.ones((3, 3, 8, 8))},
      ...         "dense": jnp.ones((8, 10))}
      >>> rules = Rules(branch=r"block_(\d+)/conv_(\d+)", head="dense")
      >>> scaled = fixup(tree, depth=2, rules=rules)
      >>> [round(float(scaled["block_1"][conv].max()), 4) for conv in ("conv_1", "conv_2")]
      [0.7071, 0.0]
    """
    role_map = roles.assign(params, rules)
    role_map.check_depth(depth)
    _refuse_single_layers(role_map)
    if not (isinstance(scale, int | float) and 0 < scale < math.inf):
        raise ValueError(f"scale={scale!r} found; expected a finite number above 0.")
    if key is None:
        _refuse_initialised(params, role_map)
    else:
        params = usual(params, key, mode="fan_out", rules=rules)

    def rescale(leaf: Leaf, value: Any) -> Any:
        last = leaf.role is Role.BRANCH and leaf.layer == leaf.m
        if leaf.role in (Role.HEAD, Role.SCALAR_BIAS) or last:
            return like(value, 0)
        if leaf.role is Role.MULTIPLIER:
            return like(value, 1)
        if leaf.role is Role.BRANCH and leaf.weight:
            return scaled(value, scale * int(depth) ** (-1 / (2 * leaf.m - 2)))
        return value

    return role_map.map(rescale, params)


def _refuse_single_layers(role_map: RoleMap) -> None:
    if not role_map.branches:
        raise ValueError("no residual branch found in params; expected rules.branch to name them.")
    for branch in role_map.branches:
        if branch.m == 1:
            raise ValueError(
                f"residual branch {branch.name!r} has m = 1 layer; Fixup's factor L**(-1/(2m-2)) "
                "needs m >= 2."
            )


def _refuse_initialised(params: Any, role_map: RoleMap) -> None:
    refuse_shapes(params, role_map)
    for leaf, value in zip(role_map.leaves, jax.tree.leaves(params), strict=True):
        last = leaf.role is Role.BRANCH and leaf.layer == leaf.m and leaf.weight
        if last and is_concrete(value) and all_zero(value):
            raise ValueError(
                f"leaf {leaf.path!r}, the last layer of a residual branch, is already zero; "
                "expected a standard initialisation, not one that Fixup was applied to before, or "
                "key= to draw the weights afresh."
            )


SCHEME = Scheme(
    name="fixup",
    title="Fixup",
    init=fixup,
    anatomy=Anatomy(scalar_biases=True, multiplier=True),
    reference="Zhang, Dauphin, Ma: Fixup Initialization, ICLR 2019, section 3",
    fits=frozenset({"pre_activation", "post_activation", "transformer"}),
    scalars=SCALARS,
    scalar_factor=0.1,
)

__all__ = ["SCHEME", "fixup"]
