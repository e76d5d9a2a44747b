"""Orthogonal initialisation: weights whose matrix has orthonormal rows or columns."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import random, roles
from nf_resnets.init.identity import at_central_tap, by_place
from nf_resnets.init.tree import draw
from nf_resnets.roles import Leaf, RoleMap, Rules

REFERENCE = "Saxe, McClelland, Ganguli: Exact solutions to the dynamics of learning, ICLR 2014"


def orthogonal(
    params: Any, key: jax.Array, *, gain: float = 1.0, rules: Rules | RoleMap | None = None
) -> Any:
    r"""Draws every weight as ``gain`` times a random (semi-)orthogonal matrix.

    As :func:`nf_resnets.init.he`, but a convolution is drawn as its matrix ``[H W C_in, C_out]``,
    attention's ``[D, heads, head_dim]`` as ``[D, heads head_dim]``: its columns are orthonormal if
    there are no more of them than rows, else its rows are. Stacked weights are drawn one matrix for
    each branch, grouped convolutions one for each group. A ``gain`` of ``2**0.5`` keeps the second
    moment through a ReLU.

    Source: Saxe, McClelland, Ganguli, *Exact solutions to the nonlinear dynamics of learning in
    deep linear neural networks*, ICLR 2014, section 3.

    Example:
      >>> weight = orthogonal({"head": {"kernel": jnp.zeros((64, 10))}}, jax.random.key(0))
      >>> matrix = weight["head"]["kernel"]
      >>> bool(jnp.allclose(matrix.T @ matrix, jnp.eye(10), atol=1e-5))
      True
    """

    def sample(leaf_key: jax.Array, leaf: Leaf, dtype: Any) -> jax.Array:
        order = by_place(roles.axes_of(leaf))
        weight = _of_groups(leaf_key, leaf, leaf.length("DHWI"), dtype)
        weight = weight.reshape([leaf.shape[axis] for axis in order])
        return gain * jnp.transpose(weight, np.argsort(order).tolist())

    return draw(params, key, roles.assign(params, rules), sample)


def delta_orthogonal(
    params: Any, key: jax.Array, *, gain: float = 1.0, rules: Rules | RoleMap | None = None
) -> Any:
    r"""Draws every weight at its central tap alone, as a scaled (semi-)orthogonal matrix.

    As :func:`orthogonal`, but a convolution is 0 beside the centre of its kernel, where it has
    ``gain max(1, sqrt(C_out / C_in))`` times a uniformly distributed (semi-)orthogonal ``[C_in,
    C_out]``: it keeps the second moment of its input, exactly where there are no fewer outputs than
    inputs, and at the border of an image too. It is the draw of DKS and TAT.

    Raises:
      ValueError: as :func:`orthogonal`, and if a kernel has an even side.

    Source: Martens et al., *Rapid training of deep neural networks without skip connections or
    normalization layers using Deep Kernel Shaping*, 2021, "Parameter distributions"; Xiao et al.,
    *Dynamical Isometry and a Mean Field Theory of CNNs*, ICML 2018.

    Example:
      >>> tree = {"stem": {"kernel": jnp.zeros((3, 3, 4, 16))}}
      >>> kernel = delta_orthogonal(tree, jax.random.key(0))["stem"]["kernel"]
      >>> bool(jnp.allclose(kernel[1, 1] @ kernel[1, 1].T, 4 * jnp.eye(4), atol=1e-5))
      True
    """

    def sample(leaf_key: jax.Array, leaf: Leaf, dtype: Any) -> jax.Array:
        c_in, c_out = leaf.length("I"), leaf.length("O") // leaf.groups
        weight = _of_groups(leaf_key, leaf, c_in, dtype)
        return gain * max(1.0, (c_out / c_in) ** 0.5) * at_central_tap(leaf, weight)

    return draw(params, key, roles.assign(params, rules), sample)


def _of_groups(key: jax.Array, leaf: Leaf, rows: int, dtype: Any) -> jax.Array:
    """``[n, rows, C_out]``, for each copy and each group of outputs a matrix of its own."""
    count, groups, c_out = leaf.length("N"), leaf.groups, leaf.length("O")
    weight = _semi_orthogonal(key, (count * groups, rows, c_out // groups), dtype)
    weight = weight.reshape(count, groups, rows, c_out // groups)
    return jnp.swapaxes(weight, 1, 2).reshape(count, rows, c_out)


def _semi_orthogonal(key: jax.Array, shape: tuple[int, int, int], dtype: Any) -> jax.Array:
    """Uniformly distributed ``[n, fan_in, c_out]`` with orthonormal columns, or else rows."""
    count, fan_in, c_out = shape
    rows, columns = max(fan_in, c_out), min(fan_in, c_out)
    matrix, triangle = _qr(random.normal(key, (count, rows, columns), dtype))
    # With the signs of R's diagonal moved into Q, Q is uniformly distributed.
    signs = jnp.sign(jnp.diagonal(triangle, axis1=1, axis2=2))
    matrix = matrix * signs[:, None, :]
    return jnp.swapaxes(matrix, 1, 2) if fan_in < c_out else matrix


@jax.jit
def _qr(matrices: jax.Array) -> tuple[jax.Array, jax.Array]:
    """QR decompositions of ``[n, rows, columns]``.

    One after another: on a CPU of two cores a program with several batched ones, which share its
    threads, may wait for itself forever (jax 0.10).
    """
    if matrices.shape[0] == 1:
        return jnp.linalg.qr(matrices)
    return jax.lax.map(jnp.linalg.qr, matrices)


__all__ = ["delta_orthogonal", "orthogonal"]
