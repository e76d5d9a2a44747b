"""The closed form beside a measured network: its gains read off its weights and its scheme."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from nf_resnets import roles, schemes
from nf_resnets.analysis.closed_form import ClosedForm, propagate, propagate_rectified
from nf_resnets.analysis.correlation import multipliers
from nf_resnets.analysis.observe import branches
from nf_resnets.analysis.weight_norms import layer_gains, shortcut_gains
from nf_resnets.roles import Role


def predicted(
    params: Any,
    scheme: str | schemes.Scheme,
    taps: Any,
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
      taps: what the network gave for a batch, ``[B, H, W, C]`` for each block.
      family: ``"pre_activation"`` or ``"post_activation"``.
      centered: whether the channel biases are set from data; by default where there are any.

    Returns:
      The moments of every block in absolute numbers; None where there is no closed form:
      standardised weights, TensorFlow's padding, a ``beta``, Transformers, no branches, a norm
      after the sum with a ReLU behind it. GroupNorm is taken for a batch norm.

    Example:
      >>> from nf_resnets import models
      >>> from nf_resnets.analysis.observe import observe
      >>> model = models.WideResNet(depth=10, scheme="plain", stem_channels=4)
      >>> images = jax.numpy.ones((2, 8, 8, 3))
      >>> shapes = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
      >>> _, taps = jax.eval_shape(observe(model), shapes, images)
      >>> params, taps = jax.tree.map(lambda leaf: np.ones(leaf.shape), (shapes, taps))
      >>> predicted(params, "plain", taps, family="pre_activation").sum.shape
      (3,)
    """
    anatomy = schemes.get(scheme).anatomy
    if (
        family not in ("pre_activation", "post_activation")
        or anatomy.standardized
        or anatomy.same_padding
        or not anatomy.branches
        or anatomy.norm == "layer"
        or anatomy.beta != 1.0
        or (family == "post_activation" and anatomy.norm_place == "merge")
    ):
        return None
    blocks = branches(taps)
    post = family == "post_activation"
    sizes = [block["input"].shape[1:] for block in blocks]
    outputs = [block["sum"].shape[1:] for block in blocks]
    strides = [-(-h // h_out) for (h, _, _), (h_out, _, _) in zip(sizes, outputs, strict=True)]
    changes = [
        stride > 1 or c != c_out
        for stride, (_, _, c), (_, _, c_out) in zip(strides, sizes, outputs, strict=True)
    ]
    normalized = anatomy.normalized and anatomy.norm_place in ("default", "merge")
    layers = layer_gains(params) / 2
    m = layers.shape[1]
    shortcuts = shortcut_gains(params)
    convolved = ~np.isnan(shortcuts)

    constants = anatomy.constants(tuple(changes))
    scalars = multipliers(params)
    b = np.square(np.where(np.isnan(scalars), 1.0, scalars))
    a = np.ones(len(blocks))
    b = b if constants.residual is None else b * np.square(constants.residual)
    a = a if constants.identity is None else a * np.square(constants.identity)
    first = np.square(np.asarray(blocks[0]["input"], np.float64)).mean(axis=(0, 3))
    if normalized:
        b = b * (_last_scales(params, m) if post else layers[:, -1])
    else:
        b = b * np.nanprod(layers, axis=1) * (2 if post else 1)
    a = a * np.where(convolved, 1.0 if normalized and post else shortcuts / (1 if post else 2), 1.0)

    centered = anatomy.channel_biases if centered is None else centered
    kernels = (3, 3) if m == 2 else (1, 3, 1)
    if anatomy.pooled_shortcut:
        skip, entering = (_second(blocks, name) for name in ("skip", "input"))
        a = np.where(changes, skip / entering, a)
    options: dict[str, Any] = {
        "normalized": normalized,
        "centered": centered,
        "first": first,
        "size": first.shape,
        "strides": strides,
        "kernels": kernels,
    }
    if post:
        new = [
            0.0 if weighted else 1 - c / c_out
            for weighted, (*_, c), (*_, c_out) in zip(convolved, sizes, outputs, strict=True)
        ]
        form = propagate_rectified(b, a, new_channels=new, random_skips=list(convolved), **options)
    else:
        options["normalized_sum"] = normalized and anatomy.norm_place == "merge"
        # Where the skip path was measured, the ratio is one to the input.
        random_skips = convolved & (not anatomy.pooled_shortcut)
        form = propagate(b, a, random_skips=random_skips, **options)
    if not anatomy.pooled_shortcut:
        return form
    # Centring does not act on gradients, which a pool divides among s x s inputs.
    identity = 1.0 if constants.identity is None else np.square(constants.identity)
    through_skip = identity * np.nan_to_num(shortcuts) / (1 if post else 2) / np.square(strides)
    more = np.where(changes, through_skip - form.skip / form.input, 0.0)
    return form._replace(backward=form.backward + more * form.active)


def _second(blocks: list[dict[str, Any]], name: str) -> np.ndarray:
    return np.array([np.square(np.asarray(block[name], np.float64)).mean() for block in blocks])


def _last_scales(params: Any, m: int) -> np.ndarray:
    """The mean squared scale of the norm that ends each branch, ``[L]``."""
    role_map = roles.assign(params)
    found = np.ones(role_map.num_branches)
    for leaf, value in zip(role_map.leaves, jax.tree.leaves(params), strict=True):
        if leaf.role is Role.NORM and leaf.path.endswith(f"/norm_{m}/scale"):
            own = role_map.branches_of(leaf, leaf.count)
            squares = np.square(np.asarray(value, np.float64)).reshape(leaf.count, -1)
            found[[k - 1 for k in own]] = squares.mean(axis=1)
    return found


__all__ = ["predicted"]
