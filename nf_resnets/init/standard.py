"""Standard initialisations, and the baselines that have nothing else.

What sets the baselines apart is the draw, or a constant on the branch or on both paths.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import random, roles
from nf_resnets.init.tree import draw as draw_leaves
from nf_resnets.init.tree import takes_network
from nf_resnets.roles import Leaf, Role, RoleMap, Rules
from nf_resnets.schemes import FAMILIES, Anatomy, Scheme


@takes_network
def he(
    params: Any,
    key: jax.Array,
    *,
    mode: Literal["fan_in", "fan_out"] = "fan_in",
    rules: Rules | RoleMap | None = None,
) -> Any:
    r"""Draws every weight from ``N(0, 2 / fan)``, He et al.'s equations 10 and 14.

    With ``fan_in = H W C_in`` the forward signal keeps its second moment through a convolution and
    a ReLU, with ``fan_out = H W C_out`` the backward one does. The head, which no ReLU follows, has
    the standard deviation ``fan_in**-0.5`` in either mode. Embeddings ``[V, D]`` are drawn from
    ``N(0, 1 / D)``. Bias vectors of layers become 0, and all else stays as it is.

    Args:
      params: a parameter tree of any library, or the shapes of one.
      key: a JAX PRNG key.
      mode: which fan to divide by.
      rules: the roles of the leaves; by default those of this library's models.
      network: in place of rules, ``network(params, *inputs)``, whose roles are read and verified.
      inputs: of the network, such as ``(images,)``; shapes are enough.

    Returns:
      A tree of the same structure, dtypes and shardings.

    Source: He, Zhang, Ren, Sun, *Delving Deep into Rectifiers*, ICCV 2015.

    Example:
      >>> tree = {"stem": {"kernel": jnp.zeros((3, 3, 64, 128))}}
      >>> weight = he(tree, jax.random.key(0))["stem"]["kernel"]
      >>> round(float(weight.std() * (9 * 64 / 2) ** 0.5), 1)
      1.0
    """
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"mode={mode!r} found; expected 'fan_in' or 'fan_out'.")

    def sample(leaf_key: jax.Array, leaf: Leaf, dtype: Any) -> jax.Array:
        fan_in, fan_out = roles.fans(leaf)
        he = (2 / (fan_in if mode == "fan_in" else fan_out)) ** 0.5
        std = fan_in**-0.5 if leaf.role is Role.HEAD else he
        return std * random.normal(leaf_key, leaf.shape, dtype)

    return draw_leaves(params, key, roles.assign(params, rules), sample)


@takes_network
def xavier(params: Any, key: jax.Array, *, rules: Rules | RoleMap | None = None) -> Any:
    r"""Draws every weight from ``[-a, a]``, ``a = sqrt(6 / (fan_in + fan_out))``: equation 16.

    Arguments and all other leaves as in :func:`nf_resnets.init.he`.

    Source: Glorot, Bengio, *Understanding the difficulty of training deep feedforward neural
    networks*, AISTATS 2010.

    Example:
      >>> weight = xavier({"head": {"kernel": jnp.zeros((64, 10))}}, jax.random.key(0))
      >>> bool(jnp.abs(weight["head"]["kernel"]).max() <= (6 / 74) ** 0.5)
      True
    """

    def sample(leaf_key: jax.Array, leaf: Leaf, dtype: Any) -> jax.Array:
        std = (2 / sum(roles.fans(leaf))) ** 0.5
        return random.uniform(leaf_key, leaf.shape, dtype, 3**0.5 * std)

    return draw_leaves(params, key, roles.assign(params, rules), sample)


@takes_network
def orthogonal(
    params: Any, key: jax.Array, *, gain: float = 1.0, rules: Rules | RoleMap | None = None
) -> Any:
    r"""Draws every weight as ``gain`` times a random (semi-)orthogonal matrix.

    Arguments and all other leaves as in :func:`nf_resnets.init.he`. A convolution is drawn as its
    matrix ``[H W C_in, C_out]``, attention's ``[D, heads, head_dim]`` as ``[D, heads head_dim]``:
    its columns are orthonormal if there are no more of them than rows, else its rows are. Stacked
    weights are drawn one matrix for each branch, grouped convolutions one for each group. A
    ``gain`` of ``2**0.5`` keeps the second moment through a ReLU.

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

    return draw_leaves(params, key, roles.assign(params, rules), sample)


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
    """QR decompositions of ``[n, rows, columns]``, one after another."""
    # On two cores a program with several batched ones may wait for itself forever (jax 0.10).
    if matrices.shape[0] == 1:
        return jnp.linalg.qr(matrices)
    return jax.lax.map(jnp.linalg.qr, matrices)


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


@takes_network
def standard(
    params: Any,
    depth: int,
    *,
    draw: Callable[..., Any] = default_init,
    key: jax.Array | None = None,
    rules: Rules | RoleMap | None = None,
) -> Any:
    r"""Leaves a standard initialisation as it is, or, with ``key``, draws one.

    ``draw(params, key, rules=)`` is by default He (fan_in), in a tree with embeddings, a
    Transformer's, Xavier. All else as in :func:`nf_resnets.init.fixup`.

    Example:
      >>> tree = {"block_1": {"conv_1": jnp.ones((3, 3, 4, 4))}}
      >>> rules = Rules(branch=r"block_(\d+)/conv_(\d)")
      >>> drawn = standard(tree, depth=1, key=jax.random.key(0), rules=rules)
      >>> round(float(drawn["block_1"]["conv_1"].std()), 1)  # sqrt(2 / 36)
      0.2
    """
    role_map = roles.assign(params, rules)
    role_map.check_depth(depth)
    if key is not None:
        return draw(params, key, rules=role_map)
    return role_map.map(lambda leaf, value: value, params)


# Networks with bias vectors in their layers and nothing else.
_bare = partial(Scheme, anatomy=Anatomy(conv_biases=True), fits=frozenset(FAMILIES))
PLAIN = _bare(
    name="plain",
    title="plain residual",
    init=standard,
    reference="He, Zhang, Ren, Sun: Deep Residual Learning, CVPR 2016, without normalization",
)
SCHEMES = (
    PLAIN,
    Scheme(
        name="sqrt_half",
        title="(x + F)/√2",
        init=standard,
        anatomy=Anatomy(conv_biases=True, residual=0.5**0.5, identity=0.5**0.5),
        reference="Balduzzi et al.: The Shattered Gradients Problem, ICML 2017",
    ),
    _bare(
        name="xavier",
        title="Xavier",
        init=partial(standard, draw=xavier),
        reference="Glorot, Bengio: Understanding the difficulty of training deep networks, AISTATS "
        "2010",
        own_draw=True,
    ),
    _bare(
        name="orthogonal",
        title="orthogonal",
        init=partial(standard, draw=orthogonal),
        reference="Saxe, McClelland, Ganguli: Exact solutions to the dynamics of learning, ICLR "
        "2014",
        own_draw=True,
    ),
)
