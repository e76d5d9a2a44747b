"""An optimizer whose rates, decay and epsilon scale with width and depth as a scheme says."""

from __future__ import annotations

import operator
from typing import Any, get_args

import jax
import optax

from nf_resnets import roles, schemes
from nf_resnets.optim.groups import refuse_kept_parameters
from nf_resnets.parametrization import STANDARD, Factors, Kind
from nf_resnets.roles import RoleMap, Rules
from nf_resnets.schemes import Scheme


def factors(
    params: Any,
    scheme: str | Scheme,
    *,
    base: Any,
    kind: Kind,
    base_depth: int | None = None,
    rules: Rules | RoleMap | None = None,
) -> Any:
    """The :class:`nf_resnets.parametrization.Factors` of every leaf, as a tree.

    The arguments are those of :func:`parametrized`.

    Example:
      >>> import jax.numpy as jnp
      >>> small, large = ({"head": {"kernel": jnp.ones((n, 10))}} for n in (16, 64))
      >>> factors(large, "mup", base=small, kind="adam")["head"]["kernel"]
      Factors(learning_rate=0.25, weight_decay=4.0, eps=1.0, std=0.5)
    """
    if kind not in get_args(Kind):
        raise ValueError(f"kind={kind!r} found; expected one of {', '.join(get_args(Kind))}.")
    role_map = roles.assign(params, rules)
    base_map = base if isinstance(base, RoleMap) else roles.assign(base, rules)
    ratios = dict(zip(role_map.leaves, roles.sizes(role_map, base_map, base_depth), strict=True))
    parametrization = schemes.get(scheme).parametrization
    return role_map.map(lambda leaf, _: parametrization.factors(ratios[leaf], kind), params)


def parametrized(
    optimizer: optax.GradientTransformation,
    params: Any,
    scheme: str | Scheme,
    *,
    base: Any,
    kind: Kind,
    base_depth: int | None = None,
    rules: Rules | RoleMap | None = None,
) -> optax.GradientTransformation:
    """Scales an optimizer's rates, decay and epsilon leaf by leaf, relative to a base network.

    A rate that is best for the base network is then best for ``params``, if the scheme's
    parametrisation holds what it promises; ``analysis.coordinates`` and a plot of transfer show
    it. Of the optimizer's weight decay nothing needs to be known but that it is proportional to the
    parameters that it is given, and of its epsilon that it is added to the size of a gradient. An
    optimizer that reads the parameters or the norm of all gradients for something else, as
    adaptive clipping does, stands before this one in ``optax.chain``.

    Args:
      optimizer: any of optax or :mod:`nf_resnets.optim`, with the base network's numbers.
      params: a parameter tree; shapes are enough. Stacked kernels count as the layers in them.
      scheme: whose parametrisation it is; of a standard one ``optimizer`` is returned as it is.
      base: the base network's tree, which has all leaves of ``params``, in other sizes; shapes are
        enough. Where ``rules`` is a map of ``params``, that of the base network.
      kind: what an update is: ``"sgd"``, proportional to the gradient; ``"adam"``, of one size for
        each number (Adam, AdamW, Lion); ``"muon"``, orthogonal for the weights that
        :func:`nf_resnets.optim.muon` takes, as Adam's for the others.
      base_depth: ``L_base``, the number of residual branches at which rates are tuned; by default
        those of ``base``.
      rules: what the paths of the trees mean, or a map; by default the names of this library's
        models.

    Raises:
      ValueError: if ``kind`` is none of the three, ``base`` lacks a leaf, or the trees do not fit
        the rules; from ``update``, if it is not given the parameters.

    Source: see :mod:`nf_resnets.parametrization`.

    Example:
      >>> import jax.numpy as jnp
      >>> small, large = ({"head": {"kernel": jnp.ones((n, 10))}} for n in (16, 64))
      >>> optimizer = parametrized(optax.sgd(0.1), large, "mup", base=small, kind="sgd")
      >>> updates, _ = optimizer.update(large, optimizer.init(large), large)
      >>> round(float(updates["head"]["kernel"][0, 0]), 6)
      -0.025
    """
    if schemes.get(scheme).parametrization == STANDARD:
        return optimizer
    scales = factors(params, scheme, base=base, kind=kind, base_depth=base_depth, rules=rules)
    flat, _ = jax.tree_util.tree_flatten_with_path(
        scales, is_leaf=lambda each: isinstance(each, Factors)
    )
    by_path = dict(flat)  # for a part of the tree, as optax.masked passes it on
    if all(each[:3] == (1, 1, 1) for each in by_path.values()):
        return optimizer
    optimizer = optax.with_extra_args_support(optimizer)

    def scale(tree: Any, name: str, operation: Any = operator.mul) -> Any:
        def one(path: Any, value: Any) -> Any:
            factor = getattr(by_path[path], name)
            return value if factor == 1 else operation(value, factor)

        return jax.tree_util.tree_map_with_path(one, tree)

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        if params is None:
            raise ValueError("params=None found; expected update(gradients, state, params).")
        # Adam's m / (sqrt(v) + eps f) is that of gradients divided by f.
        updates, state = optimizer.update(
            scale(updates, "eps", operator.truediv),
            state,
            scale(params, "weight_decay"),
            **extra,
        )
        return scale(updates, "learning_rate"), state

    def init(params: Any) -> Any:
        refuse_kept_parameters(optimizer, params)
        return optimizer.init(params)

    return optax.GradientTransformationExtraArgs(init, update)
