"""Networks made norm-free: the norms taken out, the parts of a scheme put in.

``norm_free`` is a transformation of functions, like ``jax.grad``. It reads the structure of a
network off its program (:mod:`nf_resnets.roles`), and runs that program with changed operands
(:mod:`nf_resnets.rewritten`):

1. The statistics of every norm become their values on data of mean 0 and variance 1, its scale
   becomes 1 and its shift 0, so that the norm is the identity.
2. A branch is multiplied by a learnable scalar, or both paths by constants, and biases stand before
   layers and activations, as the scheme's anatomy has them.
3. The new network is read in turn: no norm may be left, and every part must be what it is meant to
   be.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import roles, schemes
from nf_resnets.norms import MOVED, Norm, norms_of
from nf_resnets.rewritten import CUSTOM, ENTERED, Edits, Part, Path, run
from nf_resnets.roles import Leaf, Role, RoleMap
from nf_resnets.roles.flow import ELEMENTWISE, NONE, Flow
from nf_resnets.roles.graph import Node, Trace, called, trace
from nf_resnets.roles.residual import Residual, Residuals
from nf_resnets.roles.uses import Kind, Place, Use, bias_owner, uses_of
from nf_resnets.schemes import Scheme

ACTIVATIONS = frozenset({
    "clamp", "cos", "erf", "erfc", "exp", "exp2", "expm1", "log1p", "logistic", "max", "min",
    "select_n", "sin", "tanh",
})  # fmt: skip
"""The steps by which an activation is known."""
STEPS_OF_ACTIVATIONS = (ELEMENTWISE | ACTIVATIONS | {"pow", "sign", "erf_inv"}) - {
    "carry", "concatenate", "cut", "stack",
}  # fmt: skip
_MOST_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class NormFree:
    """A network without norms.

    Attributes:
      apply: ``apply(params, *inputs)``, its forward pass.
      params: ``{"network": ..., "parts": ...}``: the given tree, with None for the leaves of norms,
        and what was put in, each initialised.
      roles: the roles of ``params``, for optimizers and checks.
      norms: the norms that were taken out, by the paths of their leaves, or the layer before them.
    """

    apply: Callable[..., Any]
    params: Any
    roles: RoleMap
    norms: tuple[str, ...]

    def __str__(self) -> str:
        lines = [f"{len(self.norms)} norms taken out", *(f"  {name}" for name in self.norms)]
        places = self.params["parts"]
        lines.append(f"{sum(map(len, places.values()))} parts put in")
        for place, parts in places.items():
            shapes = (f"{name} {list(jnp.shape(value))}" for name, value in parts.items())
            lines.append(f"  {place}: {', '.join(shapes)}")
        return "\n".join([*lines, str(self.roles)])


def norm_free(
    network: Callable[..., Any],
    params: Any,
    *inputs: Any,
    scheme: str | Scheme = "fixup",
    depth: int,
    keep: str | None = None,
    key: jax.Array | None = None,
    **answers: Any,
) -> NormFree:
    """Takes the norms out of a residual network, and puts a scheme's parts in.

    The network is traced at every call of ``apply``, so that it may close over arrays that change,
    and take batches of any size; within ``jax.jit`` that costs nothing.

    Args:
      network: ``network(params, *inputs)``, its forward pass, of any library.
      params: its parameters. They are not changed.
      *inputs: arrays, or trees of them; shapes are enough.
      scheme: which initialisation, with the parts that it needs.
      depth: ``L``, the number of residual branches, checked against the network.
      keep: a regular expression for norms that stay, by the paths of their leaves, or of the layer
        before a norm without any; ``""`` keeps none. By default those stay that no layer follows,
        as in L2-normalised embeddings.
      key: a JAX PRNG key to draw the weights afresh; without it they are rescaled.
      **answers: ``nested=``, ``projections=`` and ``parts=`` of :func:`nf_resnets.roles.read`.

    Returns:
      The :class:`NormFree` network, initialised.

    Raises:
      ValueError: if the structure cannot be known, ``depth`` is another, ``keep`` matches no norm,
        the scheme needs what cannot be put in, a norm or a branch is in a ``cond``, ``while`` or
        ``shard_map``, or a norm is of a form that cannot be taken out.

    Example:
      >>> block = {"up": jnp.full((4, 8), 0.5), "down": jnp.ones((8, 4)), "scale": jnp.ones((1, 4))}
      >>> tree = {"block_1": block, "block_2": block}
      >>> def network(params, x):
      ...     for block in params.values():
      ...         h = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True)) * block["scale"]
      ...         x = x + jax.nn.relu(h @ block["up"]) @ block["down"]
      ...     return x
      >>> x = jnp.ones((1, 4))
      >>> net = norm_free(network, tree, x, scheme="fixup", depth=2)
      >>> net.apply(net.params, x).tolist()
      [[1.0, 1.0, 1.0, 1.0]]
      >>> net.norms
      ('block_1/scale', 'block_2/scale')
      >>> list(net.params["parts"]["branch_1"])
      ['bias_activation_1', 'bias_layer_1', 'bias_layer_2', 'multiplier']
    """
    chosen = schemes.get(scheme) if isinstance(scheme, str) else scheme
    _refuse_scheme(chosen)
    roles.read(network, params, *inputs, **answers).check_depth(depth)
    leaves, treedef = jax.tree.flatten(params)
    shapes = [_shape(leaf) for leaf in leaves]
    answers = {"nested": None, "projections": None, "parts": None, **answers}

    def plan(tree: Any, inputs: Any) -> _Plan:
        return _Plan(trace(network, tree, *inputs), chosen, keep, answers)

    first = plan(params, inputs)

    def apply(params: Any, *inputs: Any) -> Any:
        given = treedef.flatten_up_to(params["network"])
        given = [shapes[at] if at in first.gone else leaf for at, leaf in enumerate(given)]
        now = plan(treedef.unflatten(given), inputs)
        if now.expected != first.expected:
            raise ValueError(
                f"for these inputs the network has the parts {_differing(now, first)}; expected "
                f"{_differing(first, now)}, as for the inputs that it was made with."
            )
        traced = now.trace
        # Nothing depends on a leaf that is gone.
        arrays = [
            jnp.ones(given[at].shape, given[at].dtype) if at in first.gone else given[at]
            for at in traced.positions
        ]
        values = {part.key: now.value(part, params["parts"]) for part in now.parts}
        results = run(traced.program, [*arrays, *jax.tree.leaves(inputs)], now.edits, values)
        return jax.tree.unflatten(jax.tree.structure(traced.result), results)

    kept = [None if at in first.gone else leaf for at, leaf in enumerate(leaves)]
    new = {"network": treedef.unflatten(kept), "parts": first.initial()}
    role_map = _checked(apply, new, inputs, first, answers)
    role_map.check_depth(depth)
    options: dict[str, Any] = (
        {"constants": chosen.constants(depth)} if callable(chosen.anatomy.identity) else {}
    )
    made = chosen.init(new, depth, key=key, rules=role_map, **options)
    return NormFree(apply, made, role_map, tuple(norm.name for norm in first.removed))


def _refuse_scheme(scheme: Scheme) -> None:
    anatomy = scheme.anatomy
    wanted = {
        "norms": anatomy.normalized,
        "standardised weights": anatomy.standardized,
        "dropout": anatomy.dropout,
        "networks without branches": not anatomy.branches,
        "constants before the branches": anatomy.beta != 1,
    }
    for what, is_wanted in wanted.items():
        if is_wanted:
            raise ValueError(
                f"scheme={scheme.name!r} is for {what}; expected one whose parts can be put into a "
                "network, such as 'fixup', 'skipinit', 'rezero' or 'rescalenet'."
            )


def _shape(leaf: Any) -> Any:
    is_array = hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) if is_array else leaf


def _differing(one: _Plan, two: _Plan) -> list[str]:
    return ["/".join(key) for key in one.expected if key not in two.expected][:3]


def _checked(apply: Any, new: Any, inputs: Any, plan: _Plan, answers: Any) -> RoleMap:
    """The roles of the new network, if it is what it is meant to be."""
    traced = trace(apply, new, *inputs)
    flow = Flow(traced)
    left = [flow[at] for at in sorted(flow.normalized)]
    if len(left) > plan.num_kept:
        raise ValueError(
            f"{len(left) - plan.num_kept} divisions by the root of a statistic are left, such as "
            f"{left[0].name} {list(left[0].shape)}; expected norms of one input each."
        )
    role_map = roles.read(apply, new, *inputs, alpha=plan.scheme.anatomy.alpha, **answers)
    parts = {"/".join(("parts", *part.key)): part for part in plan.parts}
    views = (view for node in flow.nodes for _, use in node.uses for view in use.views)
    used = {traced.paths[view.leaf] for view in views}
    leaves = [_known(leaf, parts.get(leaf.path), used) for leaf in role_map.leaves]
    branches = tuple(
        dataclasses.replace(branch, normalized=None) if branch.normalized == "data" else branch
        for branch in role_map.branches
    )
    return dataclasses.replace(role_map, leaves=tuple(leaves), branches=branches)


def _known(leaf: Leaf, part: Part | None, used: set[str]) -> Leaf:
    """A leaf as it is read, but for what is known of it."""
    if part is None:
        # A norm that is left is meant, and a scalar of the network itself is no alpha.
        other = {Role.NORM: Role.KEEP, Role.ALPHA: Role.MULTIPLIER}
        return dataclasses.replace(leaf, role=other.get(leaf.role, leaf.role))
    is_scalar = part.operation == "multiply"
    if leaf.path not in used or (is_scalar and leaf.role != part.name):
        does = f"is read as {leaf.role.value!r}" if leaf.path in used else "does nothing"
        raise ValueError(
            f"the new part {leaf.path!r} {does}; expected a network whose branches are each a "
            "product with one last layer."
        )
    if is_scalar or part.name.startswith("bias_vector"):
        return leaf
    role = Role.CHANNEL_BIAS if part.shape else Role.SCALAR_BIAS
    return Leaf(leaf.path, role, leaf.shape, leaf.stacked)


class _Plan:
    """What changes in a program.

    Attributes:
      trace: the program.
      scheme: whose parts are put in.
      removed: the norms that are taken out.
      num_kept: how many divisions by roots belong to norms that stay.
      gone: the leaves, as ``jax.tree.leaves`` numbers them, on which nothing depends any more.
      parts: those that are put in, in the order of computation.
      edits: the changed operands.
    """

    def __init__(self, traced: Trace, scheme: Scheme, keep: str | None, answers: Any) -> None:
        self.trace, self.scheme = traced, scheme
        self._flow = flow = Flow(traced)
        self._residuals = Residuals(traced, flow, **answers)
        self._uses = uses_of(traced, flow, self._residuals)
        norms = norms_of(traced, flow, self._uses)
        kept = _kept(norms, keep)
        self.removed = [norm for norm in norms if norm not in kept]
        self.num_kept = sum(len(flow.normalized & norm.nodes) for norm in kept)
        self.parts: list[Part] = []
        self._edges: dict[tuple[int, int], list[Part]] = collections.defaultdict(list)
        self._add_parts()
        places = _Places(traced, flow)
        numbers: dict[Path, dict[int, float]] = collections.defaultdict(dict)
        for norm in self.removed:
            for path, at, number in places.of_norm(norm):
                numbers[path][at] = number
        parts: dict[Path, dict[int, list[Part]]] = collections.defaultdict(dict)
        for (value, step), some in self._edges.items():
            for path, at in places.of_edge(value, step):
                there = parts[path].setdefault(at, [])
                there += [part for part in some if part not in there]
        self.edits = Edits(numbers, parts, traced.graph.loop_at)
        replaced = {key for norm in self.removed for key in norm.leaves}
        self.gone = {
            traced.positions[leaf]
            for leaf, uses in enumerate(self._uses)
            if uses and all(self._is_replaced(use, replaced) for use in uses)
        }

    def _is_replaced(self, use: Use, replaced: set[tuple[int, int]]) -> bool:
        operands = [at for at, each in self._flow[use.node].uses if use.view in each.views]
        return all((use.node, at) in replaced for at in operands)

    @property
    def expected(self) -> dict[tuple[str, str], tuple[int, ...]]:
        """The shapes of the learnt parts."""
        return {
            part.key: ((math.prod(part.turns),) if part.loops else ()) + part.shape
            for part in self.parts
            if part.constant is None
        }

    def initial(self) -> dict[str, dict[str, jax.Array]]:
        """The learnt parts: zeros, and multipliers of 1."""
        tree: dict[str, dict[str, jax.Array]] = {}
        for (place, name), shape in self.expected.items():
            tree.setdefault(place, {})[name] = jnp.full(shape, float(name == "multiplier"))
        return tree

    def value(self, part: Part, tree: Any) -> jax.Array:
        """A part's value, an axis for each loop."""
        if part.constant is not None:
            return jnp.asarray(part.constant)
        value = jnp.asarray(tree[part.place][part.name])
        return value.reshape(part.turns + part.shape)

    # The parts that a scheme needs, each at an edge: a value, and a step that takes it.

    def _part(self, place: str, name: str, operation: Any, node: Node, **more: Any) -> Part:
        part = Part(place, name, operation, node.loops, **more)
        self.parts.append(part)
        return part

    def _put(self, part: Part, edges: Iterable[tuple[int, int]]) -> None:
        for edge in edges:
            if part not in self._edges[edge]:
                self._edges[edge].append(part)

    def _add_parts(self) -> None:
        anatomy, branches = self.scheme.anatomy, self._residuals.branches
        constants = anatomy.constants((False,) * self._residuals.count)
        if anatomy.scalar_biases:
            self._add_biases_of_activations()
        for branch in branches:
            if anatomy.scalar_biases:
                self._add_biases_of_layers(branch)
            for at in branch.in_order:
                if anatomy.channel_biases:
                    self._add_vector(branch, at, before=True)
                if anatomy.conv_biases:
                    self._add_vector(branch, at, before=False)
            terms = self._residuals.summands(self._flow[branch.sum])
            ends = [edge for edge in terms if edge[0] in branch.region]
            skips = [e for e in terms if e[0] == branch.fork or e[0] in branch.shortcut]
            scalar = "multiplier" if anatomy.multiplier else "alpha" if anatomy.alpha else ""
            node = self._flow[branch.sum]
            if scalar:
                self._put(self._part(self._name(branch), scalar, "multiply", node), ends)
            for name, edges in (("residual", ends), ("identity", skips)):
                values = getattr(constants, name)
                if values is not None:
                    constant = self._by_turn(branch, values)
                    part = self._part(self._name(branch), name, "multiply", node, constant=constant)
                    self._put(part, edges)
        if anatomy.scalar_biases:
            self._add_bias_of_head()

    def _name(self, branch: Residual | None) -> str:
        return f"branch_{min(branch.numbers.values())}" if branch else "outside"

    def _numbered(self, place: str, name: str) -> str:
        alike = [p for p in self.parts if p.place == place and p.name.startswith(name)]
        return f"{name}_{len(alike) + 1}"

    def _by_turn(self, branch: Residual, values: np.ndarray) -> np.ndarray:
        """Constants of branches, in the order in which the loops around one cut them."""
        lengths = tuple(length for _, length in branch.loops)
        result = np.empty(lengths, np.float32)
        for turn, k in branch.numbers.items():
            index = tuple(
                length - 1 - at if loop in self.trace.graph.reversed_loops else at
                for (loop, length), at in zip(branch.loops, turn, strict=True)
            )
            result[index] = values[k - 1]
        return result

    def _add_biases_of_activations(self) -> None:
        """A scalar bias before every activation, in branches and outside."""
        flow, made = self._flow, {}
        gates = set().union(*(branch.gates for branch in self._residuals.branches))
        for node in flow.nodes:
            value = self._activated(node)
            if value is None or self._layer_of(value) in gates:
                continue
            if value not in made:
                inside = [b for b in self._residuals.branches if node.id in b.region]
                place = self._name(inside[0] if inside else None)
                name = self._numbered(place, "bias_activation")
                made[value] = self._part(place, name, "add", node)
            way = flow.between(value, self._end(value, node.id))
            self._put(made[value], ((value, user) for user in flow.users[value] if user in way))

    def _activated(self, node: Node) -> int | None:
        """The value that an activation takes, of which a step is a part; None of other steps."""
        flow, at = self._flow, node.id
        by_mask = node.name == "select_n" and 0 not in node.order  # dropout
        if node.name not in ACTIVATIONS or at in flow.in_norm or by_mask or not node.is_float:
            return None
        while (above := flow.above[at]) != NONE:
            way = flow.between(above, at)
            if flow.layers(way):
                return at if at != node.id else None  # where paths with layers meet
            if any(flow[each].name.startswith("reduce_") for each in way):
                return None  # a softmax is none
            at, step = above, flow[above]
            if step.uses or at in flow.normalized:
                return at
            if step.name not in STEPS_OF_ACTIVATIONS:
                is_plain = step.name in ("carry", "concatenate", "cut")
                return at if is_plain or step.name.startswith("reduce_window") else None
        return None

    def _end(self, value: int, at: int) -> int:
        """The last step of an activation, as the product in ``x * sigmoid(x)``."""
        flow = self._flow
        while len(flow.users[at]) == 1:
            (user,) = flow.users[at]
            is_step = flow[user].name in STEPS_OF_ACTIVATIONS and not flow[user].uses
            if not is_step or flow.layers(flow.between(value, user)):
                break
            at = user
        return at

    def _layer_of(self, at: int) -> int:
        """The layer whose output a value is, moved and shifted."""
        flow = self._flow
        while at != NONE and not flow[at].is_layer and len(flow[at].preds) == 1:
            at = flow[at].preds[0]
        return at

    def _add_biases_of_layers(self, branch: Residual) -> None:
        """A scalar bias before every layer of a branch; parallel ones share it."""
        place, made = self._name(branch), {}
        for at in branch.in_order:
            value, step = self._before_moves(branch, at)
            if value not in made:
                name = self._numbered(place, "bias_layer")
                made[value] = self._part(place, name, "add", self._flow[at])
            self._put(made[value], [(value, step)])
            if value == branch.fork:  # the block's input, which the shortcut takes, too
                users = (user for user in self._flow.users[value] if user in branch.shortcut)
                self._put(made[value], ((value, user) for user in users))

    def _before_moves(self, branch: Residual, at: int) -> tuple[int, int]:
        """The edge to a layer before padding and casts: zeros at the border stay zeros."""
        flow = self._flow
        value, step = flow[at].preds[0], at
        while value in branch.region and flow[value].name in MOVED | {"pad"}:
            users = {*flow.users[value]} - {step}
            if len(flow[value].preds) != 1 or not users <= branch.region:
                break
            value, step = flow[value].preds[0], value
        return value, step

    def _add_bias_of_head(self) -> None:
        for use in (use for uses in self._uses for use in uses):
            if use.kind is Kind.WEIGHT and use.place is Place.HEAD and not use.follows:
                (value,) = self._flow[use.node].preds
                name = self._numbered("head", "bias_layer")
                part = self._part("head", name, "add", self._flow[use.node])
                self._put(part, [(value, use.node)])

    def _add_vector(self, branch: Residual, at: int, *, before: bool) -> None:
        """A vector along the channels before a layer, or behind one that has none."""
        flow, node, place = self._flow, self._flow[at], self._name(branch)
        value = node.preds[0] if before else at
        axes = _channels(node, before=before)
        shape = tuple(flow[value].shape[axis] for axis in axes)
        if not before and at in self._biased:
            return
        name = self._numbered(place, "bias_layer" if before else "bias_vector")
        part = self._part(place, name, "add", node, shape=shape, axes=axes)
        self._put(part, [(value, at)] if before else [(at, user) for user in flow.users[at]])

    @functools.cached_property
    def _biased(self) -> set[int | None]:
        """The layers with a bias vector of their own that stays."""
        shifts = {key[0] for norm in self.removed for key in norm.leaves}
        uses = (use for uses in self._uses for use in uses if use.kind is Kind.BIAS)
        return {bias_owner(self._flow, use) for use in uses if use.node not in shifts}


def _channels(layer: Node, *, before: bool) -> tuple[int, ...]:
    """The axes of a layer's input that it contracts, or those of its output that it makes."""
    numbers = layer.options["dimension_numbers"]
    if layer.name == "conv_general_dilated":
        return ((numbers.lhs_spec if before else numbers.out_spec)[1],)
    (contracted, batch), side = numbers, layer.order[0]
    if before:
        return tuple(sorted(contracted[side]))
    free = len(layer.uses[0][1].shape) - len(contracted[1 - side]) - len(batch[0])
    start = len(layer.shape) - free if side == 0 else len(batch[0])
    return tuple(range(start, start + free))


def _kept(norms: list[Norm], keep: str | None) -> list[Norm]:
    if keep is None:
        return [norm for norm in norms if not norm.is_followed]
    kept = [norm for norm in norms if keep and any(re.search(keep, path) for path in norm.paths)]
    if keep and not kept:
        shown = ", ".join(repr(norm.paths[0]) for norm in norms[:_MOST_SHOWN])
        raise ValueError(f"keep={keep!r} matches no norm; expected one of paths like {shown}.")
    return kept


class _Places:
    """Which operands of which equations nodes and edges are."""

    def __init__(self, traced: Trace, flow: Flow) -> None:
        self._traced, self._equations = traced, traced.graph.equations
        self._paths: dict[int, list[Path]] = collections.defaultdict(list)
        for path, (equation, _, results) in self._equations.items():
            is_call = called(equation) is not None or equation.primitive.name in _LOOPS
            for result in [] if is_call else results:
                if isinstance(result, int) and result in flow.above:
                    self._paths[result].append(path)

    def of_norm(self, norm: Norm) -> Iterable[tuple[Path, int, float]]:
        """The operands that become numbers, each with its path and position."""
        for (node, pred), number in norm.statistics.items():
            for path in self._paths[node]:
                self._refuse_closed(path, f"the norm {norm.name!r}")
                for at, arg in enumerate(self._equations[path][1]):
                    if isinstance(arg, int) and arg == pred:
                        yield path, at, number
        for (node, at), number in norm.leaves.items():
            for path in self._paths[node]:
                self._refuse_closed(path, f"the norm {norm.name!r}")
                yield path, at, number

    def of_edge(self, value: int, step: int) -> set[tuple[Path, int]]:
        """The operands in which a step takes a value, before a call that must stay whole."""
        places = set()
        for path in self._paths[step]:
            calls = (path[:end] for end in range(1, len(path)))
            whole = next(
                (c for c in calls if self._is_whole(c) and self._positions(c, value)), path
            )
            self._refuse_closed(whole, f"a branch, between {list(self._shape(value))} values,")
            places |= {(whole, at) for at in self._positions(whole, value)}
        if not places:
            raise ValueError(
                f"no equation takes the value {list(self._shape(value))} that a part is to change; "
                "expected sums and layers that are written as such."
            )
        return places

    def _shape(self, value: int) -> tuple[int, ...]:
        return self._traced.graph.nodes[value].shape

    def _is_whole(self, path: Path) -> bool:
        name = self._equations[path][0].primitive.name
        return name in CUSTOM or name not in ENTERED

    def _positions(self, path: Path, value: int) -> list[int]:
        args = self._equations[path][1]
        return [at for at, arg in enumerate(args) if isinstance(arg, int) and arg == value]

    def _refuse_closed(self, path: Path, what: str) -> None:
        for end in range(1, len(path)):
            name = self._equations[path[:end]][0].primitive.name
            if name not in ENTERED:
                raise ValueError(
                    f"{what} is in a {name}; expected it in plain code, jax.jit, jax.checkpoint or "
                    "jax.lax.scan."
                )


_LOOPS = ("scan", "while", "cond")

__all__ = ["NormFree", "norm_free"]
