"""Fixup: rescale the residual branches so that one SGD step moves the network by Theta(eta)."""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from typing import Any

import jax

from nf_resnets import random, roles
from nf_resnets.init.standard import default_init
from nf_resnets.init.tree import (
    all_zero,
    cast_like,
    check_positive,
    draw,
    is_concrete,
    refuse_norms,
    scaled,
    takes_network,
    warn_missing,
)  # fmt: skip
from nf_resnets.roles import Group, Leaf, Role, RoleMap, Rules
from nf_resnets.schemes import SCALARS, Anatomy, Scheme

_PUBLISHED_CROSS = 12  # the authors' ``L`` in the attention of a decoder to the encoder's output
# What the paths of that attention contain, in this library and Flax, and in fairseq.
_CROSS = re.compile(r"cross|encoder_attn")


@takes_network
def fixup(
    params: Any,
    depth: int,
    *,
    scale: float = 1.0,
    published: bool = False,
    key: jax.Array | None = None,
    rules: Rules | RoleMap | None = None,
) -> Any:
    r"""Turns a standard initialisation into Fixup's, section 3 of the Fixup paper.

    1. The head and the last layer of every residual branch become 0.
    2. The other weight layers of a branch of ``m`` layers are multiplied by ``L**(-1/(2m-2))``,
       equation 5 with ``a_1 = ... = a_{m-1}``; stem and shortcuts keep their standard
       initialisation.
    3. Scalar biases become 0, multipliers 1.

    Without ``key`` the given weights are rescaled; a tree in which the last layer of a branch is 0
    already is refused (not under ``jit``, where values are not known). With ``key`` the weights are
    first drawn from He (fan_out), or from Xavier (uniform) in a tree with embeddings. At the first
    step the output of the network is 0, and only the head gets a gradient. (A Transformer whose
    head is an embedding has no head to set to 0.)

    The authors' code differs in three draws, which ``published=True`` makes (the scheme
    ``"fixup_published"``). With ``key`` the stem is PyTorch's default, uniform on
    ``[-fan_in**-0.5, fan_in**-0.5]``. Query, key and value of a Transformer are Xavier of their
    joint matrix ``[D, 3D]``, smaller by ``sqrt(2)``. In the attention to the encoder's output,
    branches with ``cross`` or ``encoder_attn`` in their paths, ``L`` is always 12.

    Args:
      params: a parameter tree of any library, stacked or not. It is not changed.
      depth: ``L``, the number of residual branches (ResNet-110: 54), checked against the tree.
      scale: a factor on the layers of rule 2; 0.1 and 10 are the ablations of figure 4.
      published: whether the draws are those of the published code.
      key: a JAX PRNG key to draw the weights afresh.
      rules: the roles of the leaves; by default those of this library's models.
      network: in place of rules, ``network(params, *inputs)``, whose roles are read and verified.
      inputs: of the network, such as ``(images,)``; shapes are enough.

    Returns:
      A tree of the same structure, dtypes and shardings.

    Raises:
      ValueError: if ``depth`` is not the number of residual branches, a branch has ``m = 1`` layer
        (the exponent would divide by zero) or a norm, ``scale`` is not finite and above 0, or the
        tree is initialised already or does not fit the rules.

    Warns:
      SchemeWarning: if the tree has no scalar biases or multipliers.

    Source: Zhang, Dauphin, Ma, *Fixup Initialization: Residual Learning Without Normalization*,
    ICLR 2019; its published code, hongyi-zhang/Fixup.

    Example:
      >>> import jax.numpy as jnp
      >>> block = {"conv_1": jnp.ones((3, 3, 8, 8)), "conv_2": jnp.ones((3, 3, 8, 8))}
      >>> tree = {"block_1": block, "block_2": block, "dense": jnp.ones((8, 10))}
      >>> rules = Rules(branch=r"block_(\d+)/conv_(\d+)", head="dense")
      >>> scaled = fixup(tree, depth=2, rules=rules)
      >>> [round(float(scaled["block_1"][conv].max()), 4) for conv in ("conv_1", "conv_2")]
      [0.7071, 0.0]
    """
    role_map = roles.assign(params, rules)
    role_map.check_depth(depth)
    if not role_map.branches:
        raise ValueError("no residual branch found in params; expected rules.branch to name them.")
    for branch in role_map.branches:
        if branch.m == 1:
            raise ValueError(
                f"residual branch {branch.name!r} has m = 1 layer; Fixup's factor L**(-1/(2m-2)) "
                "needs m >= 2."
            )
    refuse_norms(role_map, SCHEME.title)
    warn_missing(role_map, SCHEME.title, Role.SCALAR_BIAS, "Fixup trains without them, but worse: "
                 "the paper's figure 4 and section 3, rule 3")  # fmt: skip
    warn_missing(role_map, SCHEME.title, Role.MULTIPLIER, "Fixup trains without them, but wants "
                 "another learning rate schedule: the paper's section 3")  # fmt: skip
    check_positive(scale=scale)
    if key is not None:
        params = default_init(params, key, mode="fan_out", rules=role_map)
        if published:
            params = draw(params, key, role_map, _default_of_pytorch, (Role.STEM,))

    def rescale(leaf: Leaf, value: Any) -> Any:
        last = leaf.role is Role.BRANCH and leaf.layer == leaf.m
        if last and leaf.weight and key is None and is_concrete(value) and all_zero(value):
            raise ValueError(
                f"leaf {leaf.path!r}, the last layer of a residual branch, is already zero; "
                "expected a standard initialisation, not one that Fixup was applied to before, or "
                "key= to draw the weights afresh."
            )
        if leaf.role in (Role.HEAD, Role.SCALAR_BIAS) or last:
            return cast_like(value, 0)
        if leaf.role is Role.MULTIPLIER:
            return cast_like(value, 1)
        if leaf.role is Role.BRANCH and leaf.weight:
            return scaled(value, scale * _factor(leaf, role_map, published=published))
        return value

    return role_map.map(rescale, params)


def _factor(leaf: Leaf, role_map: RoleMap, *, published: bool) -> float:
    """Rule 2's factor on the layers of a branch before the last."""
    base, joint = role_map.num_branches, 1.0
    if published and role_map.has_embedding and leaf.m == 4:
        fan_in, fan_out = roles.fans(leaf)
        joint = ((fan_in + fan_out) / (fan_in + 3 * fan_out)) ** 0.5
        base = _PUBLISHED_CROSS if _CROSS.search(leaf.path) else base
    return joint * base ** (-1 / (2 * leaf.m - 2))


def _default_of_pytorch(leaf_key: jax.Array, leaf: Leaf, dtype: Any) -> jax.Array:
    """Uniform on ``+-fan_in**-0.5``."""
    return random.uniform(leaf_key, leaf.shape, dtype, roles.fans(leaf)[0] ** -0.5)


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
PUBLISHED = dataclasses.replace(
    SCHEME,
    name="fixup_published",
    title="Fixup, published code",
    init=partial(fixup, published=True),
    reference="hongyi-zhang/Fixup, cifar, imagenet and fairseq",
    # Every parameter with "bias" in its name.
    scalars=SCALARS | Group(bias_vectors=(Role.HEAD,)),
)
SCHEMES = (SCHEME, PUBLISHED)
