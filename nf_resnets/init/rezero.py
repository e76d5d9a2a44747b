"""ReZero: SkipInit's scalar at 0 in a network that has no biases beside it."""

from __future__ import annotations

from typing import Any

import jax

from nf_resnets.init.from_network import takes_network
from nf_resnets.init.skipinit import SCHEME as SKIPINIT
from nf_resnets.init.skipinit import with_alphas
from nf_resnets.roles import RoleMap, Rules
from nf_resnets.schemes import Anatomy, Scheme


@takes_network(alpha=True)
def rezero(
    params: Any, depth: int, *, key: jax.Array | None = None, rules: Rules | RoleMap | None = None
) -> Any:
    r"""Sets the scalar of every branch, ``y = x + alpha F(x)``, to 0: equation 1 of the paper.

    As :func:`nf_resnets.init.skipinit` with ``alpha=0``; ReZero's networks have no biases.

    Source: Bachlechner, Majumder, Mao, Cottrell, McAuley, *ReZero is All You Need: Fast
    Convergence at Large Depth*, UAI 2021.

    Example:
      >>> import jax.numpy as jnp
      >>> tree = {"block_1": {"conv_1": jnp.ones((3, 3, 8, 8)), "alpha": jnp.ones(())}}
      >>> rules = Rules(branch=r"block_(\d+)/conv_(\d+)", alpha="alpha")
      >>> float(rezero(tree, depth=1, rules=rules)["block_1"]["alpha"])
      0.0
    """
    return with_alphas(SCHEME, params, depth, alpha=0.0, key=key, rules=rules)


SCHEME = Scheme(
    name="rezero",
    title="ReZero",
    init=rezero,
    anatomy=Anatomy(alpha=True),
    reference="Bachlechner et al.: ReZero is All You Need, UAI 2021, equation 1",
    fits=frozenset({"pre_activation", "post_activation", "transformer"}),
    needs=SKIPINIT.needs,
    norm_free=True,
)

__all__ = ["SCHEME", "rezero"]
