"""The closed form beside a measured network: its gains read off its weights and its scheme."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from nf_resnets import roles, schemes
from nf_resnets.analysis.closed_form import ClosedForm, propagate, propagate_rectified
from nf_resnets.analysis.observe import Activations
from nf_resnets.analysis.weights import by_branch, layer_gains, multipliers, shortcut_gains
from nf_resnets.roles import Role
from nf_resnets.schemes import Anatomy


def predicted(
    params: Any,
    scheme: str | schemes.Scheme,
    activations: Sequence[Activations],
    *,
    family: str,
    centered: bool | None = None,
) -> ClosedForm | None:
    """What the recursion gives for a network of this library, from the first block's input on.

    The gains are those of the very weights, so that every scheme and every scale of the
    initialisation is covered; zero padding is carried along. It holds at initialisation, where
    weights are independent: for a trained network it says what independent weights of the same
    sizes would do. A pooled shortcut averages pixels whose correlation no weight tells; there the
    measured skip path is taken instead.

    Args:
      params: the parameters, calibrated if the scheme says so.
      scheme: that of the network.
      activations: of a batch, as :func:`nf_resnets.analysis.observe` returns them.
      family: ``"pre_activation"`` or ``"post_activation"``.
      centered: whether the channel biases are set from data; by default where there are any.

    Returns:
      The moments of every block in absolute numbers; None where there is no closed form:
      standardised weights, a ``beta``, Transformers, no branches, a norm
      after the sum with a ReLU behind it. GroupNorm is taken for a batch norm.
    """
    anatomy, post = schemes.get(scheme).anatomy, family == "post_activation"
    if not _has_form(anatomy, family):
        return None
    shapes = [(block.input.shape[1:], block.sum.shape[1:]) for block in activations]
    strides = [-(-height // lower) for (height, *_), (lower, *_) in shapes]
    changes = [s > 1 or x[-1] != y[-1] for s, (x, y) in zip(strides, shapes, strict=True)]
    normalized = anatomy.normalized and anatomy.norm_place in ("default", "merge")
    layers, shortcuts = layer_gains(params) / 2, shortcut_gains(params)
    m, convolved = layers.shape[1], ~np.isnan(shortcuts)
    constants = anatomy.constants(tuple(changes))

    b = np.square(np.nan_to_num(multipliers(params), nan=1.0))
    b = b if constants.residual is None else b * np.square(constants.residual)
    if normalized:
        b = b * _norm_scales(params, f"norm_{m}") * (1.0 if post else layers[:, -1])
    else:
        b = b * np.nanprod(layers, axis=1) * (2 if post else 1)
    identity = 1.0 if constants.identity is None else np.square(constants.identity)
    through = shortcuts / (1 if post else 2)
    if normalized:
        scales = _norm_scales(params, "norm_shortcut" if post else "norm_1")
        through = scales if post else scales * through
    a = identity * np.where(convolved, through, 1.0)
    if anatomy.pooled_shortcut:
        skip, entering = (
            np.array([np.square(np.asarray(of, np.float64)).mean() for of in values])
            for values in zip(*((block.skip, block.input) for block in activations), strict=True)
        )
        a = np.where(changes, skip / entering, a)
    first = np.square(np.asarray(activations[0].input, np.float64)).mean(axis=(0, 3))
    options: dict[str, Any] = {
        "normalized": normalized,
        "centered": anatomy.channel_biases if centered is None else centered,
        "first": first,
        "strides": strides,
        "kernels": (3, 3) if m == 2 else (1, 3, 1),
    }
    if post:
        new = [
            0.0 if weighted else 1 - x[-1] / y[-1]
            for weighted, (x, y) in zip(convolved, shapes, strict=True)
        ]
        return propagate_rectified(b, a, new_channels=new, random_skips=convolved, **options)
    options["normalized_sum"] = normalized and anatomy.norm_place == "merge"
    # Where the skip path was measured, the ratio is one to the input.
    random_skips = convolved & (not anatomy.pooled_shortcut)
    return propagate(b, a, random_skips=random_skips, **options)


def _has_form(anatomy: Anatomy, family: str) -> bool:
    if family == "post_activation" and anatomy.norm_place == "merge":
        return False
    plain = anatomy.branches and anatomy.norm != "layer" and anatomy.beta == 1.0
    known = family in ("pre_activation", "post_activation")
    return known and plain and not anatomy.standardized


def _norm_scales(params: Any, name: str) -> np.ndarray:
    """The mean squared scale of the norm of that name in or beside each branch, ``[L]``."""
    role_map = roles.assign(params)
    scales = np.ones(role_map.num_branches)
    for leaf, value in role_map.items(params):
        if leaf.role is Role.NORM and re.search(rf"/{name}/(?:norm/)?scale$", leaf.path):
            squares = np.square(np.asarray(value, np.float64)).reshape(leaf.count, -1)
            at, each = by_branch(role_map, leaf, squares.mean(axis=1))
            scales[at] = each
    return scales
