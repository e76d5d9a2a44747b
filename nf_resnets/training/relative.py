"""A network relative to a base network, at which its rates were tuned."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import optax

from nf_resnets import init, optim, schemes

DEPTHS = ("depth", "num_layers", "encoder_layers", "decoder_layers")
"""The fields of networks that say how deep they are."""


def relative_to(
    model: Any, base_model: Any, *example: Any
) -> tuple[Any, Callable[..., optax.GradientTransformation]]:
    """A network, and what scales its optimizers, relative to the network of the tuned rates.

    The widths are compared with those of ``base_model`` at the depth of ``model``, so that both
    have the same leaves.

    ``example`` are arguments of a network's call, or their shapes.

    Returns:
      The network, whose scheme (``init.at_base``) knows the base network, and
      ``parametrize(optimizer, kind=...)``, which scales the rates of an optimizer for it, as
      :func:`nf_resnets.optim.parametrized`.

    Raises:
      ValueError: if the base is of another class, or has no leaf for one of the network's.

    Example:
      >>> import jax.numpy as jnp
      >>> from nf_resnets import models
      >>> deep, base = (models.WideResNet(depth=depth, scheme="completep") for depth in (28, 10))
      >>> model, _ = relative_to(deep, base, jnp.ones((1, 8, 8, 3)))
      >>> float(model.scheme.constants(12).residual[0])
      0.25
    """

    def shapes(of: Any) -> Any:
        return jax.eval_shape(of.init, jax.random.key(0), *example)["params"]

    if type(base_model) is not type(model):
        raise ValueError(
            f"a base network of class {type(base_model).__name__} found; expected "
            f"{type(model).__name__}."
        )
    depths = {name: getattr(model, name) for name in DEPTHS if hasattr(model, name)}
    base = shapes(base_model.clone(scheme=model.scheme, **depths))
    depth = base_model.num_branches or None
    scheme = init.at_base(model.scheme, base, depth)
    parametrize = partial(
        optim.parametrized, params=shapes(model), scheme=scheme, base=base, base_depth=depth
    )
    parametrize(optax.identity(), kind="sgd")  # refuses a base that lacks a leaf
    same = scheme == schemes.get(model.scheme)
    return model if same else model.clone(scheme=scheme), parametrize
