"""The baselines: networks that only ever get a standard initialisation.

What sets them apart is their anatomy: a constant on the branch, a constant on both paths, or a
normalisation layer.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from nf_resnets import roles
from nf_resnets.init.he import he
from nf_resnets.roles import Rules
from nf_resnets.schemes import FAMILIES, Anatomy, Scheme


def standard(
    params: Any, depth: int, *, key: jax.Array | None = None, rules: Rules | None = None
) -> Any:
    """Leaves a standard initialisation as it is, or, with ``key``, draws He (fan_in).

    Args:
      params: a parameter tree; weights ``[H, W, C_in, C_out]`` or ``[C_in, C_out]``.
      depth: ``L``, the number of residual branches, checked against the tree.
      key: a JAX PRNG key to draw the weights afresh.
      rules: what the paths of the tree mean; by default the names of this library's models.

    Returns:
      A tree of the same structure, dtypes and shardings.

    Raises:
      ValueError: if ``depth`` is not the number of residual branches, or the tree does not fit the
        rules.
      TypeError: if ``depth`` is not an integer or ``key`` not a PRNG key.

    Source: He, Zhang, Ren, Sun, *Delving Deep into Rectifiers*, ICCV 2015.
    """
    role_map = roles.assign(params, rules)
    role_map.check_depth(depth)
    if key is None:
        return role_map.map(lambda leaf, value: value, params)
    return he(params, key, mode="fan_in", rules=rules)


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


PLAIN = Scheme(
    name="plain",
    title="plain residual",
    init=standard,
    anatomy=Anatomy(conv_biases=True),
    reference="He, Zhang, Ren, Sun: Deep Residual Learning, CVPR 2016, without normalisation",
    fits=frozenset(FAMILIES),
)
SQRT_HALF = Scheme(
    name="sqrt_half",
    title="(x + F)/√2",
    init=standard,
    anatomy=Anatomy(conv_biases=True, residual=0.5**0.5, identity=0.5**0.5),
    reference="Balduzzi et al.: The Shattered Gradients Problem, ICML 2017",
)
BATCH_NORM = Scheme(
    name="batchnorm",
    title="BatchNorm",
    init=standard,
    anatomy=Anatomy(norm="batch"),
    reference="Ioffe, Szegedy: Batch Normalization, ICML 2015",
    fits=frozenset({"pre_activation", "post_activation", "plain"}),
)
GROUP_NORM = Scheme(
    name="groupnorm",
    title="GroupNorm",
    init=standard,
    anatomy=Anatomy(norm="group"),
    reference="Wu, He: Group Normalization, ECCV 2018",
)

__all__ = ["BATCH_NORM", "GROUP_NORM", "PLAIN", "SQRT_HALF", "constant_alpha", "standard"]
