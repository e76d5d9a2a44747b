"""The plain network under muP, depth-muP and CompleteP, and schemes relative to a base network."""

from __future__ import annotations

from typing import Any

import jax

from nf_resnets import roles, schemes
from nf_resnets.init.standard import PLAIN
from nf_resnets.parametrization import COMPLETEP, DEPTH_MUP, MUP, STANDARD
from nf_resnets.roles import Leaf, RoleMap, Rules
from nf_resnets.schemes import Scheme, parametrized


def at_base(scheme: str | Scheme, base: Any, base_depth: int | None = None) -> Scheme:
    """A scheme relative to a base network, at which rates are tuned.

    Its branches are those of its parametrisation for ``L / L_base``, so that the base network is
    the standard one, and its initialisation multiplies each leaf by the factor of its standard
    deviation: the head of a network ``r`` times as wide by ``r**-1/2``. A standard scheme is
    returned as it is.

    Args:
      scheme: the scheme.
      base: shapes of the base network's parameters (``jax.eval_shape`` of ``model.init``), which
        have all leaves of the networks that will be initialised.
      base_depth: ``L_base``; by default the number of branches of ``base``.

    Example:
      >>> import jax.numpy as jnp
      >>> from nf_resnets import models
      >>> images = jnp.ones((1, 8, 8, 3))
      >>> def shapes(width):
      ...     model = models.WideResNet(depth=16, width=width, stem_channels=4)
      ...     return jax.eval_shape(model.init, jax.random.key(0), images)["params"]
      >>> scheme = at_base("completep", shapes(1), base_depth=3)
      >>> scheme.constants(6).residual.tolist()
      [0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    """
    plain = schemes.get(scheme)
    parametrization = plain.parametrization
    if parametrization == STANDARD:
        return plain
    shapes = jax.eval_shape(lambda tree: tree, base)

    def init(
        params: Any,
        depth: int,
        *,
        key: jax.Array | None = None,
        rules: Rules | RoleMap | None = None,
    ) -> Any:
        role_map = roles.assign(params, rules)
        given = roles.assign(shapes, role_map.rules)
        ratios = roles.sizes(role_map, given, base_depth)
        stds = (parametrization.factors(each, "sgd").std for each in ratios)
        factors = dict(zip(role_map.leaves, stds, strict=True))

        def rescale(leaf: Leaf, value: Any) -> Any:
            return value if factors[leaf] == 1 else (value * factors[leaf]).astype(value.dtype)

        return role_map.map(rescale, plain.init(params, depth, key=key, rules=role_map))

    texts = {name: getattr(plain, name) for name in ("name", "title", "reference")}
    depth = base_depth or roles.assign(shapes).num_branches
    return parametrized(plain, parametrization, depth, init=init, **texts)


SCHEMES = (
    parametrized(PLAIN, MUP, name="mup", title=MUP.title),
    *(
        # There must be branches.
        parametrized(PLAIN, each, name=each.name, title=each.title, fits=PLAIN.fits - {"plain"})
        for each in (DEPTH_MUP, COMPLETEP)
    ),
)
