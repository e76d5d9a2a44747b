"""Admin: LayerNorm after a sum whose skip path is enlarged with the number of branches."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np

from nf_resnets import roles
from nf_resnets.init import needs
from nf_resnets.init.from_network import takes_network
from nf_resnets.init.standard import standard
from nf_resnets.roles import RoleMap, Rules
from nf_resnets.schemes import Anatomy, Need, Scheme


@takes_network()
def admin(
    params: Any, depth: int, *, key: jax.Array | None = None, rules: Rules | RoleMap | None = None
) -> Any:
    r"""Leaves a Transformer as it is, or, with ``key``, draws it from Xavier (uniform).

    As :func:`nf_resnets.init.standard`; Admin is in the forward pass, ``x_k = LN(omega x_{k-1} +
    F_k(x_{k-1}))``, whose constants (:func:`omega`) this library's Transformer has. For another one
    they are ``schemes.get("admin").constants(depth, transitions).identity``, with True where the
    decoder begins. A tree without norms is refused.

    Source: Liu, Liu, Gao, Chen, Han, *Understanding the Difficulty of Training Transformers*, EMNLP
    2020; admin_torch, ``admin.py``.

    Example:
      >>> import numpy as np
      >>> layer = {"dense_1": np.ones((4, 8)), "dense_2": np.ones((8, 4)), "norm": np.ones(4)}
      >>> rules = Rules(branch=r"layer_(\d+)/dense_(\d)", norm=r"/norm$")
      >>> found = admin({"layer_1": layer}, depth=1, rules=rules)
      >>> all((found["layer_1"][name] == layer[name]).all() for name in layer)
      True
      >>> from nf_resnets import schemes
      >>> schemes.get("admin").constants(4, (False,) * 4).identity.round(3).tolist()
      [1.451, 1.451, 1.451, 1.451]
    """
    role_map = roles.assign(params, rules)
    result = standard(params, depth, key=key, rules=role_map)
    needs.check_parts(SCHEME, role_map)
    return result


def omega(branches: int) -> float:
    r"""``sqrt((n + 1) / ln(n + 1) - 1)``, by which a stack of ``n`` branches enlarges its skips.

    In ``x_k = LN(omega x_{k-1} + F_k(x_{k-1}))`` a branch of variance 1 has the share ``1 / (1 +
    omega**2) = ln(n + 1) / (n + 1)`` of its sum, so that the shares of all come to about ``ln n``,
    where ``omega = 1`` gives ``n / 2``.

    Args:
      branches: ``n``: ``2 N`` of an encoder, ``3 M`` of a decoder.

    Source: admin_torch, ``admin.py``; in the paper it is made of variances measured on a batch.

    Example:
      >>> round(omega(12), 3)
      2.017
    """
    return math.sqrt((branches + 1) / math.log(branches + 1) - 1) if branches else 1.0


def _omega(transitions: tuple[bool, ...]) -> np.ndarray:
    in_decoder = np.logical_or.accumulate(np.asarray(transitions, bool))
    return np.where(in_decoder, omega(int(sum(in_decoder))), omega(int(sum(~in_decoder))))


SCHEME = Scheme(
    name="admin",
    title="Admin",
    init=admin,
    anatomy=Anatomy(conv_biases=True, norm="layer", norm_place="post", identity=_omega),
    reference="Liu et al.: Understanding the Difficulty of Training Transformers, EMNLP 2020; "
    "constants of admin_torch",
    fits=frozenset({"transformer"}),
    needs=(Need("norm", "fails", "every sum enlarges the skip path by omega, above 1"),),
)

__all__ = ["SCHEME", "admin", "omega"]
