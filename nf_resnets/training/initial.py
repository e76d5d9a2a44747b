"""The state of a run before its first step: drawn, changed by a scheme, set from data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from nf_resnets import init, roles, schemes
from nf_resnets.training.state import OptimizerFn, TrainState, create_state

CALIBRATION_EXAMPLES = 128
"""Examples that data-dependent schemes look at; RescaleNet's authors found that many to be
enough."""

Draw = Literal["fan_in", "fan_out", "own", "model"]


def draw_params(model: Any, scheme: schemes.Scheme, params: Any, key: Any, draw: Draw) -> Any:
    """The weights of a network as a scheme initialises them, of those of its own initialisers.

    ``draw`` is what all schemes that are no draw of their own change: ``"fan_in"`` or
    ``"fan_out"``, He's draw; ``"model"``, the parameters given. Or ``"own"``: each as it was
    published.
    """
    if draw == "own" or scheme.own_draw:
        return scheme.init(params, model.num_branches, key=key)
    if draw == "model":
        return scheme.init(params, model.num_branches)
    return scheme.init(init.he(params, key, mode=draw), model.num_branches)


def refuse_other_anatomy(model: Any, scheme: schemes.Scheme) -> None:
    """Refuses a scheme whose networks have other parts: this one would train all the same."""
    there = schemes.get(model.scheme)
    for name, expected in vars(there.anatomy).items():
        given = getattr(scheme.anatomy, name)
        # Two functions of the branches may give the same constants.
        if given != expected and not (callable(given) and callable(expected)):
            raise ValueError(
                f"scheme={scheme.name!r} with {name}={given} found for a network of "
                f"{there.name!r}; expected one with its anatomy, {name}={expected}."
            )


def refuse_other_params(model: Any, example: tuple[Any, ...], params: Any) -> None:
    """Refuses parameters of another network: Flax takes leaves that a network does not have."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), *example)["params"]
    given, expected = (
        {
            (roles.path_name(path), leaf.shape)
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        }
        for tree in (params, shapes)
    )
    for name, shape in sorted(given ^ expected):
        where, other = ("params", "network") if (name, shape) in given else ("network", "params")
        raise ValueError(f"leaf {name!r} {list(shape)} is in the {where} and not in the {other}.")


def make_initial(
    model: Any,
    example: tuple[Any, ...],
    optimizer: OptimizerFn,
    *,
    draw: Draw = "fan_in",
    average_decay: float | None = None,
) -> Callable[..., TrainState]:
    """Makes the function that traces the state of a run before its first step.

    Of ``initial(scheme, seed, hyper, alpha, branch_scale, batch)``, ``alpha`` is NaN where the
    scheme says what its scalars start from; ``batch`` are the images that a data-dependent scheme
    looks at, None for another scheme, or to leave that out. ``example`` are arguments of the
    network's call, of any batch size; for ``draw`` see :func:`draw_params`.
    """

    def initial(
        scheme: schemes.Scheme, seed: Any, hyper: Any, alpha: Any, branch_scale: Any, batch: Any
    ) -> TrainState:
        refuse_other_anatomy(model, scheme)
        key = jax.random.key(seed)
        variables = model.init(key, *example)
        params = draw_params(model, scheme, variables["params"], key, draw)
        if scheme.calibrate is not None and batch is not None:

            def network(params: Any, images: Any) -> Any:
                return model.apply({"params": params}, images)

            params = scheme.calibrate(params, network=network, inputs=(batch,))

        def rescale(leaf: roles.Leaf, value: jax.Array) -> jax.Array:
            if leaf.role is roles.Role.ALPHA:
                return jnp.where(jnp.isnan(alpha), value, alpha.astype(value.dtype))
            if leaf.role is roles.Role.BRANCH:
                return value * branch_scale.astype(value.dtype)
            return value

        params = roles.assign(params).map(rescale, params)
        return create_state(
            params,
            optimizer,
            hyper,
            batch_stats=variables.get("batch_stats"),
            seed=seed,
            average_decay=average_decay,
        )

    return initial
