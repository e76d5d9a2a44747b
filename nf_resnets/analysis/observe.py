"""Looking into any network: what enters its residual branches, what they add, which gradients pass.

A network is ``network(params, *inputs)``, of any library. Its residual branches are read off its
program (:mod:`nf_resnets.roles`), which then runs with the values at their sums recorded.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nf_resnets.norm_free.rewriting import RESULT, Edits, Part, Places, run
from nf_resnets.roles.flow import NONE, Flow
from nf_resnets.roles.reading import Reading
from nf_resnets.roles.residual import Residuals
from nf_resnets.roles.running import Path

Network = Callable[..., Any]
"""``network(params, *inputs)``, the forward pass; the logits ``[B, c]`` for the losses."""


class Activations(NamedTuple):
    """The values around one residual branch.

    Attributes:
      input: what enters the block, ``[B, H, W, C]``, or as the network has it.
      skip: the skip path as it enters the sum.
      branch: the residual branch as it enters the sum.
      sum: of the two, and of branches parallel to it, before an activation or a norm that follows.
    """

    input: jax.Array
    skip: jax.Array
    branch: jax.Array
    sum: jax.Array


class Slopes(NamedTuple):
    """The gradients at one residual branch.

    Attributes:
      input: that by what enters the block, through all its paths.
      sum: that by the sum of the two.
    """

    input: jax.Array
    sum: jax.Array


def observe(
    network: Network, params: Any, *inputs: Any, **answers: Any
) -> tuple[Any, list[Activations]]:
    """Runs a network, and returns the values around its residual branches.

    A block's input is the stream that its skip path begins from. Where a shortcut's layer stands
    behind the block's first norm or activation, it is the value before them, as far behind the last
    sum as where skip paths are the identity.

    Args:
      network: ``network(params, *inputs)``, the forward pass, of any library.
      params: its parameters.
      *inputs: arrays, or trees of them.
      **answers: ``nested=`` and others of :func:`nf_resnets.roles.read`.

    Returns:
      What the network returns, and :class:`Activations` for each branch ``k = 1..L``, in the order
      of computation.

    Raises:
      ValueError: if the branches cannot be known from the computation, there are none, or one is in
        a ``cond``, ``while`` or ``shard_map``.

    Example:
      >>> def network(params, x):
      ...     for block in params:
      ...         x = x + jnp.maximum(x @ block["up"], 0) @ block["down"]
      ...     return x.sum(1)
      >>> block = {"up": jnp.ones((2, 3)), "down": jnp.ones((3, 2))}
      >>> outputs, (first, second) = observe(network, [block, block], jnp.ones((1, 2)))
      >>> first.branch.tolist(), second.input.tolist(), outputs.tolist()
      ([[6.0, 6.0]], [[7.0, 7.0]], [98.0])
    """
    return _Watched(network, params, inputs, **answers).run()


def slopes(
    readout: Callable[[Any], jax.Array], network: Network, params: Any, *inputs: Any, **answers: Any
) -> tuple[Any, list[Activations], list[Slopes]]:
    """As :func:`observe`, with the gradients of ``readout(outputs)`` by those values.

    Example:
      >>> network = lambda w, x: x + jnp.maximum(x @ w, 0) @ w
      >>> _, _, (only,) = slopes(jnp.sum, network, 2 * jnp.eye(2), jnp.ones((1, 2)))
      >>> only.input.tolist(), only.sum.tolist()
      ([[5.0, 5.0]], [[1.0, 1.0]])
    """
    watched = _Watched(network, params, inputs, **answers)

    def value(shifts: Any) -> Any:
        outputs, activations = watched.run(shifts)
        return readout(outputs), (outputs, activations)

    gradients, (outputs, activations) = jax.grad(value, has_aux=True)(watched.shifts)
    return outputs, activations, watched.slopes(gradients)


class _Watched:
    """A network's program with the places around its residual branches.

    Attributes:
      shifts: zeros to add to values; a gradient by them is one by the values.
    """

    def __init__(
        self, network: Network, params: Any, inputs: Sequence[Any], **answers: Any
    ) -> None:
        reading = Reading(network, params, inputs, **answers)
        self._trace, self._flow, residuals = reading.trace, reading.flow, reading.residuals
        traced, flow = self._trace, self._flow
        if residuals.doubts:
            raise ValueError(residuals.doubts[0])
        if not residuals.branches:
            raise ValueError("no residual branch found; expected a sum of a branch and its skip.")
        leaves = jax.tree.leaves(params)
        self._args = [leaves[at] for at in traced.positions] + jax.tree.leaves(inputs)
        self._branches = residuals.branches
        self._places = Places(traced)
        self._recorded: _Operands = collections.defaultdict(lambda: collections.defaultdict(list))
        self._shifted: _Operands = collections.defaultdict(lambda: collections.defaultdict(list))
        self.shifts: dict[tuple[str, str], jax.Array] = {}
        entries = _entries(flow, residuals)
        for place, branch, entry in zip(itertools.count(), residuals.branches, entries):
            adder = dict(residuals.summands(flow[branch.sum]))
            skip = max(branch.shortcut, default=branch.fork)
            terms = [term for term in adder if term in branch.region]
            # With the branches parallel to it, which end in the same sum.
            block = branch.shortcut | flow.between(entry, branch.fork)
            for each in residuals.branches:
                block |= each.region if each.sum == branch.sum else set()
            block |= {adder[term] for term in adder if term == skip or term in block}
            users = [(entry, user) for user in flow.users[entry] if user in block]
            self._watch(place, "input", users, shift=True)
            self._watch(place, "skip", [(skip, adder[skip])], shift=True)
            for number, term in enumerate(terms):
                self._watch(place, f"branch {number}", [(term, adder[term])])
            self._recorded[self._places.of_result(branch.sum)][RESULT].append((place, "sum"))

    def _watch(
        self, place: int, name: str, edges: Sequence[tuple[int, int]], *, shift: bool = False
    ) -> None:
        """Records a value where steps take it, and shifts it there."""
        operands = set().union(*(self._places.of_edge(*edge) for edge in edges))
        path, position = min(operands)
        self._recorded[path][position].append((place, name))
        if shift:
            node, loops = self._flow[edges[0][0]], self._branches[place].loops
            axes = tuple(range(len(node.shape)))
            part = Part(str(place), name, "add", loops, node.shape, axes)
            self.shifts[part.key] = jnp.zeros(part.turns + part.shape, node.dtype)
            for path, position in operands:
                self._shifted[path][position].append(part)

    def run(self, shifts: Any = None) -> tuple[Any, list[Activations]]:
        """What the network returns, and the values, shifted where shifts are given."""
        edits = Edits({}, {} if shifts is None else self._shifted, self._recorded)
        results, values = run(self._trace.program, self._args, edits, shifts or {})
        outputs = jax.tree.unflatten(jax.tree.structure(self._trace.result), results)
        activations = []
        for place in range(len(self._branches)):
            of = {name: value for (at, name), value in values.items() if at == place}
            first, *more = (of[name] for name in sorted(of) if name.startswith("branch"))
            branch = sum(more, start=first)
            activations.append(Activations(of["input"], of["skip"], branch, of["sum"]))
        return outputs, self._in_order(activations)

    def slopes(self, gradients: Any) -> list[Slopes]:
        """Gradients by shifts, branch by branch."""
        return self._in_order(
            Slopes(*(gradients[str(place), name] for name in ("input", "skip")))
            for place in range(len(self._branches))
        )

    def _in_order(self, stacks: Iterable[Any]) -> list[Any]:
        """One for each ``k``, out of those whose first axes are slices that loops take."""
        turns = []
        for branch, stack in zip(self._branches, stacks, strict=True):
            for turn, k in branch.numbers.items():
                at = self._trace.graph.slice_at(branch.loops, turn)
                turns.append((k, jax.tree.map(lambda x, at=at: x[at], stack)))
        return [each for _, each in sorted(turns, key=lambda pair: pair[0])]


_Operands = dict[Path, dict[int, list[Any]]]


def _entries(flow: Flow, residuals: Residuals) -> list[int]:
    """For each branch the node of the stream that enters its block."""
    sums = {branch.sum for branch in residuals.branches}

    def way_back(at: int) -> tuple[list[int], bool]:
        """The nodes back to the last sum or layer, which is true, or to a change of size."""
        way = [at]
        while way[-1] not in sums and not flow[way[-1]].is_layer:
            before = flow.above[way[-1]]
            if before == NONE or flow[before].size != flow[at].size:
                return way, False
            way.append(before)
        while len(way) > 1 and way[-2] in residuals.biases_after(way[-1]):
            way.pop()
        return way, True

    plain = [  # whose skip path is the identity, but for constants
        branch
        for branch in residuals.branches
        if flow[branch.fork].shape == flow[branch.sum].shape and not flow.layers(branch.shortcut)
    ]
    steps = 0
    for branch in plain:
        way, _ = way_back(branch.fork)
        steps = sum(flow[at].name != "carry" for at in way[:-1])
        if way[-1] in sums:
            break
        steps = min(steps, 1)  # behind a stem, of which a norm may be a part
    entries = []
    for branch in residuals.branches:
        way, is_step = way_back(branch.fork)
        entry = max(len(way) - 1 - steps * is_step, 0)
        # Not before the turn of the loop that the branch is in.
        turn = [n for n, at in enumerate(way) if branch.loops and flow[at].name == "carry"]
        entries.append(branch.fork if branch in plain else way[min([entry, *turn])])
    return entries
