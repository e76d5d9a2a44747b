r"""Which layer moves the network by how much: Theorem 3 of the Fixup paper.

A step of gradient descent changes the logits by ``-eta J dl/dz`` to first order, and ``J`` is a sum
of positive semi-definite matrices, one for each layer. They cannot cancel, so that each of ``L``
branches may contribute ``Theta(eta / L)`` only. A matrix is judged by its trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nf_resnets import random


class BranchNetwork(NamedTuple):
    """The weights of the fully-connected residual network that Theorem 3 is about.

    ``x_l = x_{l-1} + ReLU(W_l^(m) ... ReLU(W_l^(1) x_{l-1}))`` and ``f = W_L x_{L-1}``, without
    biases.

    Attributes:
      branches: for each branch its weights ``W^(1), ..., W^(m)``, each ``[n_out, n_in]``.
      head: ``W_L [c, n]``.
    """

    branches: tuple[tuple[jax.Array, ...], ...]
    head: jax.Array


def draw_network(
    key: jax.Array,
    *,
    width: int,
    num_branches: int,
    num_classes: int,
    layer_scales: Sequence[float],
) -> BranchNetwork:
    """Draws a network: He (fan_in) for the branches, times a scale for each of their layers.

    The head is drawn from ``N(0, 1 / n)`` with ``n`` the width. Fixup's scales of
    ``W^(1), ..., W^(m)`` are ``(L**(-1/(2m-2)), ..., 0)``.
    """
    keys = jax.random.split(key, (num_branches + 1, len(layer_scales)))
    shape = (width, width)
    branches = tuple(
        tuple(
            scale * (2 / width) ** 0.5 * random.normal(keys[branch, layer], shape, "float32")
            for layer, scale in enumerate(layer_scales)
        )
        for branch in range(num_branches)
    )
    head = width**-0.5 * random.normal(keys[-1, 0], (num_classes, width), "float32")
    return BranchNetwork(branches, head)


def network_logits(network: BranchNetwork, x: jax.Array) -> jax.Array:
    """The logits ``[c]`` of one input ``[n]``."""
    for branch in network.branches:
        h = x
        for weight in branch:
            h = jax.nn.relu(weight @ h)
        x = x + h
    return network.head @ x


def update_terms(network: BranchNetwork, x: jax.Array) -> BranchNetwork:
    r"""The matrices ``J_l^i`` of equation 12, by its closed form.

    ``J_l^i = ||F_l^(i-)||^2 (df/dx_l)^T F_l^(i+) (F_l^(i+))^T (df/dx_l)``, where ``F_l^(i-)`` is
    the input of layer ``i`` and ``F_l^(i+)`` leads from its pre-activation to the branch's output.
    (As printed, the paper's ``F_l^(i+)`` begins with ``W_l^(i)`` itself; a derivative by
    ``W_l^(i)``, and so its equation 13, has it without, as the paper has it in the last block.)

    Args:
      network: the weights.
      x: one input ``[n]``.

    Returns:
      A matrix ``[c, c]`` in the place of each weight.

    Source: Zhang, Dauphin, Ma, ICLR 2019, Theorem 3.

    Example:
      >>> def both(key):
      ...     network = draw_network(
      ...         key, width=4, num_branches=2, num_classes=3, layer_scales=(0.7, 0.5))
      ...     x = jnp.ones(4)
      ...     terms = update_terms(network, x), update_terms_by_jacobian(network, x)
      ...     return network_logits(network, x), *(each.branches[1][0] for each in terms)
      >>> logits, found, checked = jax.jit(both)(jax.random.key(0))
      >>> logits.shape, found.shape, bool(jnp.allclose(found, checked, rtol=1e-4))
      ((3,), (3, 3), True)
    """
    inputs: list[list[jax.Array]] = []
    actives: list[list[jax.Array]] = []
    for branch in network.branches:
        h, of_inputs, of_actives = x, [], []
        for weight in branch:
            of_inputs.append(h)
            before = weight @ h
            of_actives.append((before > 0).astype(before.dtype))
            h = of_actives[-1] * before
        inputs.append(of_inputs)
        actives.append(of_actives)
        x = x + h
    head_term = (x @ x) * jnp.eye(network.head.shape[0])

    slope = network.head  # df/dx_l, [c, n]
    terms: list[tuple[jax.Array, ...]] = []
    for branch, of_inputs, of_actives in zip(
        reversed(network.branches), reversed(inputs), reversed(actives), strict=True
    ):
        through = slope
        of_branch = []
        for weight, h, active in reversed(list(zip(branch, of_inputs, of_actives, strict=True))):
            through = through * active.reshape(1, -1)
            of_branch.append((h @ h) * through @ through.T)
            through = through @ weight
        terms.append(tuple(reversed(of_branch)))
        slope = slope + through
    return BranchNetwork(tuple(reversed(terms)), head_term)


def update_terms_by_jacobian(network: BranchNetwork, x: jax.Array) -> BranchNetwork:
    """As :func:`update_terms`, but ``(df/dvec W) (df/dvec W)^T`` by automatic differentiation."""
    jacobian = jax.jacrev(network_logits)(network, x)

    def square(block: jax.Array) -> jax.Array:
        rows = block.reshape(block.shape[0], -1)
        return rows @ rows.T

    return jax.tree.map(square, jacobian)


__all__ = [
    "BranchNetwork",
    "draw_network",
    "network_logits",
    "update_terms",
    "update_terms_by_jacobian",
]
