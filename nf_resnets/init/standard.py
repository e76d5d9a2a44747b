"""The baselines without normalisation: networks that only ever get a standard initialisation.

What sets them apart is the initialisation, or a constant on the branch or on both paths.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import numpy as np

from nf_resnets import roles
from nf_resnets.init.from_network import takes_network
from nf_resnets.init.he import he
from nf_resnets.init.orthogonal import REFERENCE as OF_ORTHOGONAL
from nf_resnets.init.orthogonal import orthogonal
from nf_resnets.init.tree import refuse_not_finite
from nf_resnets.init.xavier import REFERENCE as OF_XAVIER
from nf_resnets.init.xavier import xavier
from nf_resnets.roles import RoleMap, Rules
from nf_resnets.schemes import FAMILIES, Anatomy, Scheme


def default_init(
    params: Any,
    key: jax.Array,
    *,
    mode: Literal["fan_in", "fan_out"] = "fan_in",
    rules: Rules | RoleMap | None = None,
) -> Any:
    """Draws a network's default: He (of ``mode``); Xavier for a Transformer's, with embeddings."""
    role_map = roles.assign(params, rules)
    if role_map.has_embedding:
        return xavier(params, key, rules=role_map)
    return he(params, key, mode=mode, rules=role_map)


@takes_network()
def standard(
    params: Any,
    depth: int,
    *,
    draw: Callable[..., Any] = default_init,
    key: jax.Array | None = None,
    rules: Rules | RoleMap | None = None,
) -> Any:
    r"""Leaves a standard initialisation as it is, or, with ``key``, draws one.

    Args:
      params: a parameter tree; weights ``[H, W, C_in, C_out]`` or ``[C_in, C_out]``.
      depth: ``L``, the number of residual branches, checked against the tree.
      draw: ``draw(params, key, rules=) -> params``; by default He (fan_in), in a tree with
        embeddings, a Transformer's, Xavier (uniform).
      key: a JAX PRNG key to draw the weights afresh.
      rules: what the paths of the tree mean; by default the names of this library's models.
      network: in place of rules, ``network(params, *inputs)``, whose roles are read and verified.
      inputs: of the network, such as ``(images,)``; shapes are enough.

    Returns:
      A tree of the same structure, dtypes and shardings.

    Raises:
      ValueError: if ``depth`` is not the number of residual branches, a number is not finite, or
        the tree does not fit the rules.
      TypeError: if ``depth`` is not an integer or ``key`` not a PRNG key.

    Example:
      >>> import numpy as np
      >>> tree = {"block_1": {"conv_1": np.ones((3, 3, 4, 4))}}
      >>> rules = Rules(branch=r"block_(\d+)/conv_(\d)")
      >>> float(standard(tree, depth=1, rules=rules)["block_1"]["conv_1"].std())
      0.0
      >>> drawn = standard(tree, depth=1, key=jax.random.key(0), rules=rules)
      >>> round(float(drawn["block_1"]["conv_1"].std()), 1)  # sqrt(2 / 36)
      0.2
    """
    role_map = roles.assign(params, rules)
    role_map.check_depth(depth)
    if key is None:
        refuse_not_finite(params, role_map)
        return role_map.map(lambda leaf, value: value, params)
    return draw(params, key, rules=role_map)


def constant_alpha(alpha: float) -> Scheme:
    """The plain residual network ``y = x + alpha F(x)`` with a constant ``alpha``, as a scheme.

    Args:
      alpha: the constant on every branch.

    Returns:
      The scheme, which any model takes as ``scheme=``.

    Raises:
      ValueError: if ``alpha`` is not a finite number.

    Source: the baselines of De, Smith, NeurIPS 2020, table 1, with ``alpha`` not learnt.

    Example:
      >>> constant_alpha(0.1).anatomy.residual
      0.1
    """
    numbers = (int, float, np.integer, np.floating)
    if isinstance(alpha, bool) or not isinstance(alpha, numbers) or not math.isfinite(alpha):
        raise ValueError(f"alpha={alpha!r} found; expected a finite number.")
    alpha = float(alpha)
    return Scheme(
        name=f"constant_alpha_{alpha!r}",
        title=f"constant α = {alpha:g}",
        init=standard,
        anatomy=Anatomy(conv_biases=True, residual=alpha),
        reference="De, Smith: Batch Normalization Biases Residual Blocks, NeurIPS 2020, table 1",
    )


# Networks with bias vectors in their layers and nothing else.
_bare = partial(Scheme, anatomy=Anatomy(conv_biases=True), fits=frozenset(FAMILIES))
PLAIN = _bare(
    name="plain",
    title="plain residual",
    init=standard,
    reference="He, Zhang, Ren, Sun: Deep Residual Learning, CVPR 2016, without normalisation",
)
XAVIER = _bare(
    name="xavier",
    title="Xavier",
    init=partial(standard, draw=xavier),
    reference=OF_XAVIER,
    own_draw=True,
)
ORTHOGONAL = _bare(
    name="orthogonal",
    title="orthogonal",
    init=partial(standard, draw=orthogonal),
    reference=OF_ORTHOGONAL,
    own_draw=True,
)
SQRT_HALF = Scheme(
    name="sqrt_half",
    title="(x + F)/√2",
    init=standard,
    anatomy=Anatomy(conv_biases=True, residual=0.5**0.5, identity=0.5**0.5),
    reference="Balduzzi et al.: The Shattered Gradients Problem, ICML 2017",
)

__all__ = [
    "ORTHOGONAL", "PLAIN", "SQRT_HALF", "XAVIER", "constant_alpha", "default_init", "standard",
]  # fmt: skip
