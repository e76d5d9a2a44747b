"""RescaleNet: constants on both paths and weights that shrink with depth keep the variance at 1."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import random, roles
from nf_resnets.init.measured import Place, measured_pass
from nf_resnets.init.tree import (
    cast_like,
    draw,
    refuse_norms,
    takes_network,
    warn_missing,
    with_deviation,
)  # fmt: skip
from nf_resnets.roles import LAYER_ROLES, Group, Leaf, Role, RoleMap, Rules
from nf_resnets.schemes import UNDECAYED, Anatomy, Scheme, SchemeWarning


@takes_network
def rescalenet(
    params: Any,
    depth: int,
    *,
    dropout: float | Sequence[float] = 0.0,
    published: bool = False,
    key: jax.Array | None = None,
    rules: Rules | RoleMap | None = None,
) -> Any:
    r"""Gives the weights RescaleNet's standard deviations, section 4 of its paper.

    The k-th of ``L`` blocks, counted from 1, is ``x_k = a_k x_{k-1} + L**-0.5 s_k F_k(x_{k-1})``
    with ``a_k = sqrt((k+L-1)/(k+L))``. Its branch is to have ``1/(k+L)`` of the variance, and so

    1. the weight layers of a branch of ``m`` layers have the standard deviation
       ``sqrt(2 / fan_in) (L/(k+L))**(1/(2m))``;
    2. stem (and the layers of a network without branches) have ``sqrt(2 / fan_in)``, shortcuts and
       head ``fan_in**-0.5``;
    3. channel biases become 0, for :func:`rescale_biases` to set from data; multipliers 1.

    Where dropout of rate ``p`` follows the layers of a branch, their standard deviation is
    multiplied by ``(1-p)**0.5``. The published code counts the blocks from 0: it has ``k + L - 1``
    for ``k + L`` (the scheme ``"rescalenet_published"`` has its constants), and draws every layer
    of VGG, the head too, from He (fan_out).

    Without ``key`` every weight given is multiplied by a number that brings its standard deviation
    (about 0; of a stacked leaf, each branch's) to the one above. With ``key`` it is drawn normally.
    Other arguments as in :func:`nf_resnets.init.fixup`.

    Args:
      params: a parameter tree of any library.
      depth: ``L``, the number of residual branches; 0 for a network without any, such as VGG.
      dropout: the rate after each layer of a branch, one or ``L``, as ``model.branch_dropout``.
      published: whether the deviations are the published code's.
      key: a JAX PRNG key to draw the weights afresh.
      rules: the roles of the leaves.

    Raises:
      ValueError: if a norm is in a branch, the network was read and does not multiply by
        ``schemes.get("rescalenet").constants(depth)``, or, without ``key``, a weight is zeros.

    Warns:
      SchemeWarning: if the tree has no channel biases or multipliers, or nothing shows the
        constants.

    Source: Shao, Hu, Wang, Xue, Raj, *Is normalization indispensable for training deep neural
    networks?*, NeurIPS 2020, its author feedback, and its code, hukkai/rescaling.

    Example:
      >>> import jax.numpy as jnp
      >>> tree = {"block_1": {"conv_1": jnp.ones((3, 3, 8, 8)), "conv_2": jnp.ones((3, 3, 8, 8))}}
      >>> rules = Rules(branch=r"block_(\d+)/conv_(\d+)")
      >>> weight = rescalenet(tree, depth=1, rules=rules)["block_1"]["conv_2"]
      >>> float(jnp.sqrt((weight**2).mean()) / (2 / 72) ** 0.5)  # (1/2)^(1/4)
      0.8409
    """
    role_map = roles.assign(params, rules)
    role_map.check_depth(depth)
    scheme = PUBLISHED if published else SCHEME
    refuse_norms(role_map, scheme.title)
    _check_constants(scheme, role_map)
    warn_missing(role_map, scheme.title, Role.CHANNEL_BIAS, "the authors set them from the data, "
                 "so that almost no neuron is dead at the start")  # fmt: skip
    warn_missing(role_map, scheme.title, Role.MULTIPLIER, "they make up for the weights that "
                 "weight decay shrinks: the author feedback")  # fmt: skip
    k = np.arange(1, int(depth) + 1) - published
    fractions, kept = int(depth) / (k + int(depth)), 1 - _rates(dropout, int(depth))
    deviation = partial(_deviation, fractions=fractions, kept=kept, published=published)

    def sample(leaf_key: jax.Array, leaf: Leaf, dtype: Any) -> jax.Array:
        return jnp.asarray(deviation(leaf), dtype) * random.normal(leaf_key, leaf.shape, dtype)

    if key is not None:
        params = draw(params, key, role_map, sample)

    def rescale(leaf: Leaf, value: Any) -> Any:
        if leaf.role is Role.CHANNEL_BIAS:
            return cast_like(value, 0)
        if leaf.role is Role.MULTIPLIER:
            return cast_like(value, 1)
        if key is None and leaf.weight and leaf.role in LAYER_ROLES[1:]:
            return with_deviation(leaf, value, deviation(leaf))
        return value

    return role_map.map(rescale, params)


def _check_constants(scheme: Scheme, role_map: RoleMap) -> None:
    """Refuses a known network that multiplies by other constants; warns of an unknown one."""
    depth = role_map.num_branches
    if role_map.is_ours:  # it has the constants of the scheme whose biases it has
        biases = [leaf for leaf in role_map.leaves if leaf.role is Role.CHANNEL_BIAS]
        seen = sum(leaf.count for leaf in biases) >= depth
    else:
        constants = scheme.constants(depth)
        seen = role_map.rules is None
        for name, expected in (("skip", constants.identity), ("branch", constants.residual)):
            factors = [(getattr(b, f"{name}_scale"), b.sum_scale) for b in role_map.branches]
            product = np.prod(np.asarray(factors, float).reshape(depth, 2), axis=1)
            # A constant that is no number is NaN; a few roundings of float32.
            seen = seen and np.allclose(product, expected, rtol=1e-5)
    if seen or not depth:
        return
    sentence = (
        f"the constants of {scheme.title}'s forward pass, residual and identity, were not "
        f"seen; expected a network that multiplies by schemes.get({scheme.name!r})"
        ".constants(depth), and network= to show it."
    )
    if role_map.is_ours or role_map.rules is None:
        raise ValueError(sentence)
    warnings.warn(f"{scheme.title}: {sentence}", SchemeWarning, stacklevel=4)


def _deviation(leaf: Leaf, fractions: np.ndarray, kept: np.ndarray, *, published: bool) -> Any:
    """The standard deviation of a weight; of a stacked leaf ``[n, 1, ..., 1]``."""
    fan_in, fan_out = roles.fans(leaf)
    if published and not len(fractions):
        return (2 / fan_out) ** 0.5
    if leaf.role in (Role.SHORTCUT, Role.HEAD):
        return fan_in**-0.5
    he = (2 / fan_in) ** 0.5
    if leaf.role is not Role.BRANCH:
        return he
    own = np.asarray(leaf.branches) - 1
    stds = he * fractions[own] ** (1 / (2 * leaf.m)) * kept[own] ** 0.5
    rows = stds.reshape(leaf.count, -1) if len(stds) % leaf.count == 0 else stds[None]
    if not np.allclose(rows, rows[:, :1]) or len(rows) < leaf.count:
        raise ValueError(
            f"leaf {leaf.path!r} {list(leaf.shape)} is in the residual branches "
            f"{', '.join(map(str, leaf.branches))}, each of which has a standard deviation of its "
            "own; expected a weight, or a slice of one, for each branch."
        )
    if not leaf.stacked:
        return float(rows[0, 0])
    return rows[:, 0].reshape(leaf.shape[: leaf.stacked] + (1,) * len(leaf.own_shape))


def _rates(dropout: float | Sequence[float], depth: int) -> np.ndarray:
    """The rate of each branch, ``[L]``."""
    rates = np.asarray(dropout, np.float64)
    if rates.shape not in ((), (depth,)) or not np.all((rates >= 0) & (rates < 1)):
        raise ValueError(
            f"dropout={dropout} found; expected one rate in [0, 1), or {depth} of them, one for "
            "each residual branch."
        )
    return np.broadcast_to(rates, (depth,))


def rescale_biases(
    params: Any,
    *,
    network: Callable[..., Any],
    inputs: tuple[Any, ...],
    rules: Rules | RoleMap | None = None,
) -> Any:
    r"""Sets every channel bias to minus the batch's mean of its channel, layer by layer.

    ``b_c = -mean(x_c)`` over the images and positions of the batch, where ``x`` has passed the
    layers before with the biases that those have found. One pass sets them all. (The published code
    averages the means of the first 8 passes of training, in which the biases learn a hundred times
    more slowly.)

    Args:
      params: an initialised tree. It is not changed.
      network: ``network(params, *inputs)``, its forward pass, of any library. It is compiled anew
        in every call: to set many networks, ``jax.jit`` the call.
      inputs: a batch, such as ``(images,)``; the authors use 128 images or more.
      rules: the roles of the leaves, by default those of this library's models.

    Returns:
      A tree of the same structure, dtypes and shardings, with other channel biases.

    Raises:
      ValueError: if there is no channel bias, or one is in no sum or in several.

    Example:
      >>> from nf_resnets import models
      >>> images = jax.random.normal(jax.random.key(1), (2, 4, 4, 3))
      >>> model = models.WideResNet(depth=10, scheme="rescalenet", stem_channels=2)
      >>> params = jax.jit(model.init)(jax.random.key(0), images)["params"]
      >>> network = lambda params, images: model.apply({"params": params}, images)
      >>> set_to = rescale_biases(params, network=network, inputs=(images,))
      >>> set_to["stage_1"]["first"]["bias_2"]["vector"].shape
      (2,)
    """
    role_map = roles.assign(params, rules)
    paths = {leaf.path for leaf in role_map.leaves if leaf.role is Role.CHANNEL_BIAS}
    if not paths:
        raise ValueError("no channel bias found in params; expected one, as of 'rescalenet'.")

    biases = measured_pass(network, params, inputs, paths, _centered)(params, inputs)
    return role_map.map(
        lambda leaf, value: (
            cast_like(value, biases[leaf.path].reshape(leaf.shape)) if leaf.path in paths else value
        ),
        params,
    )


def _centered(equation: Any, args: list[Any], place: Place) -> tuple[jax.Array, jax.Array]:
    """Adds minus the means of the channels."""
    x = args[1 - place.operand]
    # The operand's axis that is the longest one of the leaf, of equal ones the last.
    spans = [axis[-1] for axis in place.view.axes]
    lengths = [(span.size * (span.axis >= 0), span.axis) for span in spans]
    channels = lengths.index(max(lengths))
    others = [axis for axis in range(x.ndim) if axis != channels]
    bias = -x.astype(jnp.promote_types(x.dtype, jnp.float32)).mean(axis=tuple(others))
    return x + jnp.expand_dims(bias, others).astype(args[place.operand].dtype), bias


def _residual(transitions: tuple[bool, ...]) -> np.ndarray:
    return np.full(len(transitions), max(len(transitions), 1) ** -0.5)


def _identity(transitions: tuple[bool, ...], first: int = 1) -> np.ndarray:
    depth = len(transitions)
    k = np.arange(first, depth + first)
    return np.sqrt((k + depth - 1) / (k + depth))


SCHEME = Scheme(
    name="rescalenet",
    title="RescaleNet",
    init=rescalenet,
    anatomy=Anatomy(
        channel_biases=True,
        multiplier=True,
        pooled_shortcut=True,
        residual=_residual,
        identity=_identity,
    ),
    reference="Shao, Hu, Wang, Xue, Raj: Is normalization indispensable for training deep neural "
    "networks?, NeurIPS 2020, section 4",
    fits=frozenset({"pre_activation", "post_activation", "plain"}),
    calibrate=rescale_biases,
    scalar_factor=1.0,  # of no leaf: the multipliers learn as all others do
    undecayed=UNDECAYED,
)
PUBLISHED = dataclasses.replace(
    SCHEME,
    name="rescalenet_published",
    title="RescaleNet, published code",
    init=partial(rescalenet, published=True),
    anatomy=dataclasses.replace(SCHEME.anatomy, identity=partial(_identity, first=0)),
    reference="hukkai/rescaling, models/rescale.py, models/vgg.py and models/layers.py",
    undecayed=Group(UNDECAYED.roles),  # the head's bias vector is decayed
)

SCHEMES = (SCHEME, PUBLISHED)
