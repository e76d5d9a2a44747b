"""ZerO: identities, Hadamard transforms where widths grow, zeros at the end of branches."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal

import jax
import numpy as np

from nf_resnets import roles
from nf_resnets.init.identity import is_last, set_matrices
from nf_resnets.init.zeros import refuse_zero_heads
from nf_resnets.roles import Leaf, Role, RoleMap, Rules
from nf_resnets.schemes import Anatomy, Scheme


def zero(
    params: Any,
    depth: int,
    *,
    c: Literal["paper", "notebook"] = "paper",
    key: jax.Array | None = None,
    rules: Rules | RoleMap | None = None,
) -> Any:
    r"""Sets every weight to zeros and ones, up to a constant: the paper's algorithms 1 and 2.

    A matrix ``[C_out, C_in]`` stands at the kernel's middle tap: the identity if it is square, its
    first rows if ``C_out < C_in``, and ``c I* H I*`` if ``C_out > C_in``, the part of that size of
    a Hadamard matrix ``H`` of side ``2^m``, ``m = ceil(log2 C_out)``. (A part of the identity would
    hold the rank of what is learnt at ``C_in``.) Biases are 0.

    The last layer of every branch and the head are 0, so that branches begin silent. The authors'
    residual network does the same by other means: it has a shortcut around every convolution, all
    of which are 0, and another around the stem; ours has the shortcuts of the architecture. All
    channels behind an image of one channel start equal.

    Args:
      params: a parameter tree; weights ``[H, W, C_in, C_out]`` or ``[C_in, C_out]``. It is not
        changed.
      depth: ``L``, the number of residual branches, checked against the tree.
      c: ``"paper"`` is ``2^(-(m - 1) / 2)``, which makes up for the half that a ReLU takes;
        ``"notebook"`` is ``2^(-m / 2)``, as the authors' notebook has it: ``c H`` is orthogonal.
      key: nothing is drawn; a key is taken as every scheme takes one.
      rules: what the paths of the tree mean; by default the names of this library's models.

    Returns:
      A tree of the same structure, dtypes and shardings.

    Raises:
      ValueError: if ``depth`` is not the number of residual branches, the tree does not fit the
        rules, a kernel has an even side, the head has two layers, or ``c`` is neither of the two.
      TypeError: if ``depth`` is not an integer or ``key`` not a PRNG key.

    Source: Zhao, Schaefer, Anandkumar, *ZerO Initialization: Initializing Neural Networks with only
    Zeros and Ones*, TMLR 2022.

    Example:
      >>> import jax.numpy as jnp
      >>> result = zero({"stem": {"kernel": jnp.ones((2, 4))}}, 0, c="notebook")
      >>> result["stem"]["kernel"].tolist()
      [[0.5, 0.5, 0.5, 0.5], [0.5, -0.5, 0.5, -0.5]]
    """
    if c not in ("paper", "notebook"):
        raise ValueError(f"c={c!r} found; expected 'paper' or 'notebook'.")
    role_map = roles.assign(params, rules)
    role_map.check_depth(depth)

    def matrix(leaf: Leaf) -> np.ndarray:
        rows, columns = leaf.length("O") // leaf.groups, leaf.length("I")
        if leaf.role is Role.HEAD or is_last(leaf):
            return np.zeros((rows, columns))
        if rows <= columns:
            return np.eye(rows, columns)
        m = math.ceil(math.log2(rows))
        return 2 ** (((c == "paper") - m) / 2) * hadamard(m)[:rows, :columns]

    result = set_matrices(params, role_map, matrix, key)
    refuse_zero_heads("ZerO", result, role_map)
    return result


def hadamard(m: int) -> np.ndarray:
    """Sylvester's Hadamard matrix ``[2^m, 2^m]``: ``H = [[H', H'], [H', -H']]`` from ``[[1]]``."""
    found = np.ones((1, 1))
    for _ in range(m):
        found = np.block([[found, found], [found, -found]])
    return found


SCHEME = Scheme(
    name="zero",
    title="ZerO",
    init=zero,
    anatomy=Anatomy(conv_biases=True),
    reference="Zhao, Schaefer, Anandkumar: ZerO Initialization, TMLR 2022",
    deterministic=True,
)
PUBLISHED = Scheme(
    name="zero_published",
    title="ZerO, published code",
    init=partial(zero, c="notebook"),
    anatomy=Anatomy(conv_biases=True),
    reference="github.com/jiaweizzhao/ZerO-initialization, example_mnist.ipynb",
    deterministic=True,
)

__all__ = ["PUBLISHED", "SCHEME", "hadamard", "zero"]
