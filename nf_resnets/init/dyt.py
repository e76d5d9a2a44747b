"""DyT and Derf: a tanh or an error function of a learnable scale in the place of every norm."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax

from nf_resnets import roles
from nf_resnets.init.from_network import takes_network
from nf_resnets.init.standard import standard
from nf_resnets.init.tree import cast_like, check_positive
from nf_resnets.roles import Leaf, Role, RoleMap, Rules
from nf_resnets.roles.rules import compiled
from nf_resnets.schemes import Anatomy, Scheme


@takes_network()
def dyt(
    params: Any,
    depth: int,
    *,
    alpha: float = 0.5,
    attention: float | None = None,
    alphas: str = r"/norm/input_scale$",
    key: jax.Array | None = None,
    rules: Rules | RoleMap | None = None,
) -> Any:
    r"""Sets the input scales of DyT, ``gamma tanh(alpha x) + beta``, or Derf: section 4.

    All other leaves stay as they are (``gamma`` is 1 and ``beta`` 0 as a model's ``init`` has
    them), or, with ``key``, weights are drawn from Xavier (uniform), in a tree without embeddings
    from He (fan_in). Language models are said to want a larger ``alpha`` before attention than
    elsewhere, and smaller ones the wider they are.

    Args:
      params: a parameter tree with such functions in the place of norms. It is not changed.
      depth: ``L``, the number of residual branches, checked against the tree.
      alpha: what every input scale starts from.
      attention: what those start from whose path has "attention" or "attn" in it; by default
        ``alpha``.
      alphas: a regular expression that finds the paths of the input scales; ``rules.norm`` must
        match them too.
      key: a JAX PRNG key to draw the weights afresh.
      rules: what the paths of the tree mean; by default the names of this library's models.
      network: in place of rules, ``network(params, *inputs)``, whose roles are read and verified.
      inputs: of the network, such as ``(images,)``; shapes are enough.

    Returns:
      A tree of the same structure, dtypes and shardings.

    Raises:
      ValueError: if ``depth`` is not the number of residual branches, ``alpha`` or ``attention`` is
        not above 0, ``alphas`` is no regular expression or finds nothing, or the tree does not fit
        the rules.

    Source: Zhu, Chen, He, LeCun, Liu, *Transformers without Normalization*, CVPR 2025; Chen, Lu,
    Zhu, Sun, Liu, *Stronger Normalization-Free Transformers*, 2025.

    Example:
      >>> import jax.numpy as jnp
      >>> mlp = {"w1": jnp.ones((8, 16)), "w2": jnp.ones((16, 8)), "dyt": {"alpha": jnp.ones(1)}}
      >>> rules = Rules(branch=r"(\w+)/(w\d)$", norm=r"/dyt/")
      >>> dyt({"mlp": mlp}, 1, alphas=r"/dyt/alpha", rules=rules)["mlp"]["dyt"]["alpha"].tolist()
      [0.5]
    """
    attention = alpha if attention is None else attention
    check_positive(alpha=alpha, attention=attention)
    role_map = roles.assign(params, rules)
    params = standard(params, depth, key=key, rules=role_map)
    pattern, near = compiled("alphas", alphas), compiled("attention", r"attention|attn")

    def is_alpha(leaf: Leaf) -> bool:
        return leaf.role is Role.NORM and pattern.search(leaf.path) is not None

    if not any(map(is_alpha, role_map.leaves)):
        raise ValueError(
            f"no input scale of DyT found by alphas={alphas!r}; expected one in the place of every "
            "norm (rules.norm names them too)."
        )

    def fill(leaf: Leaf, value: Any) -> Any:
        if not is_alpha(leaf):
            return value
        return cast_like(value, attention if near.search(leaf.path) else alpha)

    return role_map.map(fill, params)


SCHEME = Scheme(
    name="dyt",
    title="DyT",
    init=dyt,
    anatomy=Anatomy(conv_biases=True, norm="dyt", norm_place="pre"),
    reference="Zhu, Chen, He, LeCun, Liu: Transformers without Normalization, CVPR 2025, section 4",
    fits=frozenset({"transformer"}),
)
DERF = dataclasses.replace(
    SCHEME,
    name="derf",
    title="Derf",
    anatomy=dataclasses.replace(SCHEME.anatomy, norm="derf"),
    reference="Chen, Lu, Zhu, Sun, Liu: Stronger Normalization-Free Transformers, 2025",
)

__all__ = ["DERF", "SCHEME", "dyt"]
