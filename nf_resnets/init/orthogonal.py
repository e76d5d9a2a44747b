"""Orthogonal initialisation: weights whose matrix has orthonormal rows or columns."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import random, roles
from nf_resnets.init.from_network import takes_network
from nf_resnets.init.tree import draw
from nf_resnets.roles import Leaf, RoleMap, Rules

REFERENCE = "Saxe, McClelland, Ganguli: Exact solutions to the dynamics of learning, ICLR 2014"


@takes_network()
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
        axes, count, groups = roles.axes_of(leaf), leaf.length("N"), leaf.groups
        rows, columns = leaf.length("DHWI"), leaf.length("O") // groups
        weight = _semi_orthogonal(leaf_key, (count * groups, rows, columns), dtype)
        weight = jnp.swapaxes(weight.reshape(count, groups, rows, columns), 1, 2)
        # Copies, then taps and inputs, then the outputs of all groups.
        order = sorted(range(len(axes)), key=lambda axis: {"N": 0, "O": 2}.get(axes[axis], 1))
        weight = weight.reshape([leaf.shape[axis] for axis in order])
        return gain * jnp.transpose(weight, np.argsort(order).tolist())

    return draw(params, key, roles.assign(params, rules), sample)


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


__all__ = ["orthogonal"]
