"""A pass of a batch in which a network's leaves are set, each on what those before it give."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nf_resnets.roles import running
from nf_resnets.roles.flow import Flow
from nf_resnets.roles.graph import LINEAR, Loops, Trace, trace
from nf_resnets.roles.running import Path
from nf_resnets.roles.views import View

Measure = Callable[..., tuple[jax.Array, jax.Array]]
"""``measure(equation, args, place)`` gives the result of a step with the leaf set, and the number,
or vector, that sets it."""


class Place(NamedTuple):
    """The step in which a leaf meets the data."""

    view: View  # the leaf in the operand
    operand: int  # which one that is
    loops: Loops  # those around the step


def measured_pass(
    network: Callable[..., Any],
    params: Any,
    inputs: Sequence[Any],
    leaves: Collection[str],
    measure: Measure,
) -> Callable[..., dict[str, jax.Array]]:
    """Compiles the pass of a batch in which leaves are measured.

    Args:
      network: ``network(params, *inputs)``, its forward pass, of any library.
      params: its parameters, or their shapes.
      inputs: of the network, or their shapes.
      leaves: the paths of those to be set, which layers multiply by or which are added to data.
      measure: see :data:`Measure`.

    Returns:
      ``run(params, inputs)`` gives what sets each leaf, by path; of a stacked one ``[n, ...]``.

    Raises:
      ValueError: if a leaf takes part in no step, or in several.
    """
    traced = trace(network, params, *inputs)
    places = _places(traced, leaves)

    def change(
        equation: Any, args: list[Any], path: Path, values: Any, proceed: Any
    ) -> tuple[list[Any], dict[Path, jax.Array]]:
        result, number = measure(equation, args, places[path])
        return [result], {path: number}

    @jax.jit
    def run_arrays(arrays: Sequence[Any], inputs: Any) -> dict[str, jax.Array]:
        given = [*arrays, *jax.tree.leaves(inputs)]
        _, numbers = running.run(traced.program, given, places, change)
        of_leaf: dict[int, list[tuple[Place, jax.Array]]] = {}
        for path, place in places.items():
            of_leaf.setdefault(place.view.leaf, []).append((place, numbers[path]))
        return {
            traced.paths[leaf]: _joined(traced.paths[leaf], traced.shapes[leaf], some)
            for leaf, some in of_leaf.items()
        }

    def run(params: Any, inputs: Any) -> dict[str, jax.Array]:
        leaves = jax.tree.leaves(params)  # some may be no arrays
        return run_arrays([leaves[at] for at in traced.positions], inputs)

    return run


def _places(traced: Trace, leaves: Collection[str]) -> dict[Path, Place]:
    """The steps that leaves take part in, by path."""
    flow = Flow(traced)
    places: dict[Path, Place] = {}
    for node in flow.nodes:
        if node.name not in (*LINEAR, "add") or len(node.preds) != 1:
            continue
        for operand, use in node.uses:
            view = max(use.views, key=lambda view: view.size, default=None)
            if view is None or (node.name == "add" and not _is_itself(view)):
                continue  # what is added is another number than the leaf
            if traced.paths[view.leaf] in leaves:
                path = traced.graph.whole(node.paths[0])
                out = traced.graph.equations[path][2][0]
                # A choice by platform stays whole, if it gives what the step does.
                if flow.behind_moves(out) == node.id:
                    places[path] = Place(view, operand, node.loops)
    idle = set(leaves) - {traced.paths[place.view.leaf] for place in places.values()}
    if idle:
        raise ValueError(f"leaf {min(idle)!r} meets the data in no layer or sum; expected one.")
    return places


def _is_itself(view: View) -> bool:
    """Whether a leaf is moved alone."""
    return view.linear and isinstance(view.scale, float) and view.scale == 1


def _joined(
    path: str, shape: tuple[int, ...], some: Sequence[tuple[Place, jax.Array]]
) -> jax.Array:
    """What sets a leaf, of its parts at several steps."""
    # Each turn of the loops around must take another part.
    is_whole = all(
        loop in place.view.cuts or length == 1 for place, _ in some for loop, length in place.loops
    )
    place, number = some[0]
    loops = len(place.loops)
    if is_whole and len(some) == 1 and number.shape[:loops] == shape[:loops]:
        return number
    in_order = sorted(some, key=lambda each: each[0].view.start)
    rows = [number.reshape(-1, *number.shape[len(place.loops) :]) for place, number in in_order]
    number = jnp.concatenate(rows)
    starts = {place.view.start for place, _ in some}
    if not is_whole or len(number) != shape[0] or len(starts) < len(some):
        raise ValueError(
            f"leaf {path!r} takes part in several steps; expected one, whose output it is set by."
        )
    return number
