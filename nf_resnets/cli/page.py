"""What a page says of a network: the measures of each residual branch, for one batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from nf_resnets import roles, schemes
from nf_resnets.analysis.bounds import excess_loss, refuse_inhomogeneous
from nf_resnets.analysis.closed_form import ClosedForm
from nf_resnets.analysis.observe import Activations, Network, observe
from nf_resnets.analysis.predicted import predicted
from nf_resnets.analysis.signal import eta, gradient_norms, signal_of
from nf_resnets.analysis.weights import multipliers, random_head
from nf_resnets.roles import Role, RoleMap
from nf_resnets.training.program import quick_compile

CLOSED = ("skip", "branch", "sum", "share")
"""What the closed form has of a block."""


@dataclasses.dataclass(frozen=True)
class Page:
    """The measures of a network.

    Attributes:
      rows: one for each residual block. ``squared_mean`` and ``variance`` are the sum's, the
        columns ``closed_`` the closed form's, ``start_`` those before training.
      notes: sentences about the whole network.
    """

    rows: list[dict[str, Any]]
    notes: list[str]


def start(model: Any, scheme: schemes.Scheme, images: jax.Array, keys: jax.Array) -> Any:
    """Parameters and batch statistics of a network at initialisation."""

    def drawn(key: jax.Array, draw_key: jax.Array) -> Any:
        variables = dict(model.init(key, images[:1]))
        params = scheme.init(variables["params"], model.num_branches, key=draw_key)
        return {**variables, "params": params}

    def network(params: Any, images: jax.Array) -> Any:
        return model.apply({"params": params}, images)

    variables = _quickly(drawn)(keys[0], keys[1])
    if scheme.calibrate is not None:
        params = scheme.calibrate(variables["params"], network=network, inputs=(images,))
        variables["params"] = params
    return variables


def measure_model(
    model: Any, family: str, variables: Any, images: jax.Array, labels: jax.Array, key: jax.Array
) -> Page:
    """Measures a network of this library, beside its closed form."""
    params = variables["params"]
    rest = {name: tree for name, tree in variables.items() if name == "batch_stats"}

    def network(params: Any, images: jax.Array) -> jax.Array:
        state = {"params": params, **rest}
        return model.apply(state, images, train=bool(rest), mutable=list(rest))[0]

    def form_of(blocks: list[Activations]) -> ClosedForm | None:
        return predicted(params, model.scheme, blocks, family=family)

    page = measure(network, params, (images,), labels, roles.assign(params), key, form_of)
    note = "Closed form: none is known for this scheme in this network."
    if "closed_sum" in page.rows[0]:
        note = (
            "Closed form: the recursion for independent wide layers with these weights' sizes and "
            "this padding, from the first block's input on"
            + (", with the ReLU after every sum." if family == "post_activation" else ".")
        )
    return Page(page.rows, [*page.notes, note])


def measure(
    network: Network,
    params: Any,
    inputs: Any,
    labels: Any,
    role_map: RoleMap,
    key: jax.Array,
    form_of: Callable[[list[Activations]], ClosedForm | None] = lambda blocks: None,
) -> Page:
    """Sends a batch through a network and back; ``form_of(blocks)`` is its closed form."""
    notes, shown = [], params
    heads = [v for leaf, v in role_map.items(params) if leaf.role is Role.HEAD and leaf.weight]
    if heads and not any(np.any(np.asarray(value)) for value in heads):
        shown = random_head(params, key, rules=role_map)
        notes.append(
            "Backward: the scheme starts the head at 0, which lets no gradient through; here it is "
            "drawn from N(0, 1/fan_in)."
        )

    def measures(params: Any) -> Any:
        logits, blocks = observe(network, params, *inputs)
        norms = gradient_norms(network, params, *inputs, labels=labels)
        return blocks, signal_of(blocks), eta(blocks), norms, excess_loss(logits, labels).mean()

    blocks, signal, etas, norms, excess = jax.device_get(_quickly(measures)(shown))
    form, scalars = form_of(blocks), multipliers(params, rules=role_map)
    homogeneous = _is_homogeneous(params, role_map)
    if homogeneous:
        notes.append(
            f"Theorem 1: excess loss l - H = {excess:.3g}; the norm of the gradient at a block's "
            "input is at least that over the norm of the input."
        )
    rows = []
    for at, (branch, block) in enumerate(zip(role_map.branches, blocks, strict=True)):
        norm = (block.input.size * float(signal.input.second[at])) ** 0.5
        values = {
            **{name: getattr(signal, name).second[at] for name in signal._fields},
            "share": signal.share[at],
            "squared_mean": signal.sum.squared_mean[at],
            "variance": signal.sum.variance[at],
            "gradient_norm": norms[at],
            "bound": excess / norm if homogeneous else np.nan,
            "eta": etas[at],
            "scalar": scalars[at],
        }
        if form is not None:
            values |= {f"closed_{name}": getattr(form, name)[at] for name in CLOSED}
            # The form says how gradients grow from the last block on.
            values["closed_gradient"] = norms[-1] * form.gradient[at] / form.gradient[-1]
        transition = block.input.shape != block.sum.shape
        row = {"k": at + 1, "name": branch.name, "transition": transition}
        rows.append(row | {name: _number(value) for name, value in values.items()})
    return Page(rows, notes)


def _quickly(function: Any) -> Any:
    # Everything runs once: what counts is how long it takes to compile.
    return jax.jit(function, compiler_options=quick_compile(jax.devices()[0]))


def _is_homogeneous(params: Any, role_map: RoleMap) -> bool:
    try:
        refuse_inhomogeneous(params, role_map)
    except ValueError:
        return False
    return True


def _number(value: Any) -> Any:
    return "" if np.isnan(value) else float(f"{float(value):.6g}")


__all__ = ["Page", "measure", "measure_model", "start"]
