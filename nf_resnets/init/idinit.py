"""IDInit: identities in every layer, repeated where widths differ, and almost zero at the end."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from nf_resnets import roles
from nf_resnets.init.identity import is_last, set_matrices
from nf_resnets.init.tree import check_positive
from nf_resnets.roles import Leaf, Role, RoleMap, Rules
from nf_resnets.schemes import Anatomy, Scheme


def idinit(
    params: Any,
    depth: int,
    *,
    tau: float = 1.0,
    epsilon: float = 1e-6,
    key: jax.Array | None = None,
    rules: Rules | RoleMap | None = None,
) -> Any:
    r"""Sets every weight to an identity that is repeated until it fills the matrix.

    ``W[i, j] = tau`` where ``i - j`` is a multiple of ``min(C_out, C_in)``, else 0, of a matrix
    ``[C_out, C_in]`` at the kernel's middle tap. The last layer of every branch and the head have
    ``epsilon`` in the place of ``tau``: they are nearly 0, and their neurons still learn. Biases
    are 0.

    Certain of the paper are the identity in every layer, its padding where a matrix is not square,
    ``tau = 1`` and ``epsilon = 1e-6``. Not certain, since its text was not at hand in full: that
    the padding is this repetition, that the head belongs to the layers near 0, and how a kernel is
    filled. The paper spreads the identity over the taps of a patch ("patch-maintain") and loosens
    it by small noise; here it stands at the middle tap, exactly.

    Args:
      params: a parameter tree; weights ``[H, W, C_in, C_out]`` or ``[C_in, C_out]``. It is not
        changed.
      depth: ``L``, the number of residual branches, checked against the tree.
      tau: the ones of the identity.
      epsilon: the same where a layer is to be nearly 0.
      key: nothing is drawn; a key is taken as every scheme takes one.
      rules: what the paths of the tree mean; by default the names of this library's models.

    Returns:
      A tree of the same structure, dtypes and shardings.

    Raises:
      ValueError: if ``depth`` is not the number of residual branches, the tree does not fit the
        rules, a kernel has an even side, or a number is not above 0.
      TypeError: if ``depth`` is not an integer or ``key`` not a PRNG key.

    Source: Pan, Wang, Wu, Wang, Zhang, Xu, *IDInit: A Universal and Stable Initialization Method
    for Neural Network Training*, ICLR 2025.

    Example:
      >>> import jax.numpy as jnp
      >>> idinit({"stem": {"kernel": jnp.zeros((2, 4))}}, 0)["stem"]["kernel"].tolist()
      [[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]]
    """
    check_positive(tau=tau, epsilon=epsilon)
    role_map = roles.assign(params, rules)
    role_map.check_depth(depth)

    def matrix(leaf: Leaf) -> np.ndarray:
        rows, columns = leaf.length("O") // leaf.groups, leaf.length("I")
        apart = np.arange(rows)[:, None] - np.arange(columns)[None, :]
        small = leaf.role is Role.HEAD or is_last(leaf)
        return (epsilon if small else tau) * (apart % min(rows, columns) == 0)

    return set_matrices(params, role_map, matrix, key)


SCHEME = Scheme(
    name="idinit",
    title="IDInit",
    init=idinit,
    anatomy=Anatomy(conv_biases=True),
    reference="Pan et al.: IDInit, ICLR 2025",
    deterministic=True,
)

__all__ = ["SCHEME", "idinit"]
