"""The graph of a network's program: its steps on data, and where leaves enter them.

``trace(network, params, *inputs)`` walks the jaxpr of ``network(params, *inputs)`` and returns a
:class:`Trace`; shapes are enough. Calls (``jit``, ``remat``, custom derivatives, ``shard_map``) are
inlined, the body of a loop is walked once, and of a ``cond`` the branch with the most layers. A
value is one of three:

- an ``int``, the number of a :class:`Node`: a step whose result depends on the inputs. Nodes are
  numbered in the order of computation, so that a node comes after all that it depends on;
- a :class:`~nf_resnets.roles.views.Derived`: computed from leaves alone;
- a :class:`~nf_resnets.roles.views.Constant`: neither.

Results of equal steps are one node. ``graph.equations`` leads back to the program, by path (see
:mod:`nf_resnets.roles.running`).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import jaxprs_in_params

from nf_resnets.roles.leaf import is_numeric, path_name
from nf_resnets.roles.running import ENTERED, Path, called, enter, walk, whole_operands
from nf_resnets.roles.views import Constant, Derived, derive

Loops = tuple[tuple[Path, int], ...]
"""The loops around a step, outermost first: each one's path and length, 0 if not known."""

T = TypeVar("T")

LINEAR = ("dot_general", "conv_general_dilated")


@dataclasses.dataclass
class Node:
    """A step whose result depends on the inputs."""

    id: int  # its number, in the order of computation
    # of its primitive, or `input`; `carry`, `cut`, `stack`: what loops carry, take, put together
    name: str
    preds: tuple[int, ...]  # its data operands
    shape: tuple[int, ...]  # of the result
    dtype: Any  # of the result
    loops: Loops  # those around it
    order: tuple[int, ...] = ()  # their positions among all operands
    uses: tuple[tuple[int, Derived], ...] = ()  # the derived operands, each with its position
    constants: tuple[tuple[int, Constant], ...] = ()  # the constant ones
    options: Any = dataclasses.field(default_factory=dict)  # the parameters of the primitive
    # whether it is carried by a loop, of which it begins as a constant
    starts_as_zeros: bool = False
    kept: bool = False  # whether its leaves count as no layer
    paths: list[Path] = dataclasses.field(default_factory=list)  # of the equations that give it

    @property
    def is_layer(self) -> bool:
        """Whether it multiplies data with leaves and contracts an axis, or may."""
        return self.name in LINEAR and len(self.preds) == 1 and bool(self.uses) and not self.kept

    @property
    def is_float(self) -> bool:
        """Whether its result has a derivative."""
        return bool(jnp.issubdtype(self.dtype, jnp.inexact))

    @property
    def size(self) -> int:
        """How many numbers its result has."""
        return math.prod(self.shape)


@dataclasses.dataclass
class Graph:
    """The steps of a program (see the module)."""

    nodes: list[Node] = dataclasses.field(default_factory=list)  # all of them; `nodes[i].id == i`
    # the paths of the loops that run from the last slice to the first
    reversed_loops: set[Path] = dataclasses.field(default_factory=set)
    carried: dict[Path, set[int]] = dataclasses.field(default_factory=dict)  # what loops carry
    passed_on: set[int] = dataclasses.field(default_factory=set)  # what a turn gives to the next
    # the loops whose turns stand side by side, as of a batch; `Residuals` finds them
    side_by_side: set[Path] = dataclasses.field(default_factory=set)
    # the leaves in branches of a `cond`, in those that are not walked too
    in_choices: set[int] = dataclasses.field(default_factory=set)
    # by path, an equation with the values that go in and come out
    equations: dict[Path, tuple[Any, list[Any], list[Any]]] = dataclasses.field(
        default_factory=dict
    )
    _known: dict[Any, int] = dataclasses.field(default_factory=dict)

    def add(self, name: str, preds: Sequence[int], aval: Any, loops: Loops, **fields: Any) -> int:
        """Adds a node and returns its number."""
        at, shape = len(self.nodes), tuple(aval.shape)
        self.nodes.append(Node(at, name, tuple(preds), shape, aval.dtype, loops, **fields))
        return at

    def whole(self, path: Path, entered: Collection[str] = ENTERED) -> Path:
        """The outermost call around an equation that is not entered, or the equation itself."""
        calls = (path[:end] for end in range(1, len(path)))
        names = ((call, self.equations[call][0].primitive.name) for call in calls)
        return next((call for call, name in names if name not in entered), path)

    def in_turn(self, loops: tuple[tuple[Path, T], ...]) -> tuple[tuple[Path, T], ...]:
        """The loops of which each turn goes on from the one before, with what stands beside."""
        return tuple(each for each in loops if each[0] not in self.side_by_side)

    def slice_at(self, loops: Loops, turn: Sequence[int]) -> tuple[int | slice, ...]:
        """Which slices of stacks loops take in a turn of each, all where turns are side by side."""

        def slice_of(loop: Path, length: int, step: int) -> int | slice:
            if loop in self.side_by_side:
                return slice(None)
            return length - 1 - step if loop in self.reversed_loops else step

        return tuple(slice_of(*each, step) for each, step in zip(loops, turn, strict=True))

    def walk(self, program: Any, args: list[Any], loops: Loops = (), path: Path = ()) -> list[Any]:
        """Adds the steps of a jaxpr, given the values of its arguments, and returns its results."""

        def step(equation: Any, args: list[Any], path: Path) -> list[Any]:
            out = self._step(equation, args, loops, path)
            self.equations[path] = equation, args, out
            return out

        jaxpr, consts, given = enter(program, args)
        return walk(jaxpr, consts, given, path, step, _constant)

    def _step(self, equation: Any, args: list[Any], loops: Loops, path: Path) -> list[Any]:
        name, options = equation.primitive.name, equation.params
        if name == "scan":
            return self._scan(equation, args, loops, path)
        if name == "while":
            return self._while(equation, args, loops, path)
        if name == "cond":  # of platforms, of stochastic depth
            program = max(options["branches"], key=lambda each: _count_layers(each.jaxpr))
            for other in options["branches"]:
                self.in_choices |= _leaves_used(other.jaxpr, args[1:])
            return self.walk(program, args, loops, path)
        if (program := called(equation)) is not None:
            return self.walk(program, args, loops, path)
        outputs = range(len(equation.outvars))
        if any(isinstance(arg, int) for arg in args):
            made = [self._node(equation, which, args, loops) for which in outputs]
            for at in {*made}:
                self.nodes[at].paths.append(path)
            return made
        if any(isinstance(arg, Derived) for arg in args):
            return [derive(equation, which, args, loops) for which in outputs]
        rooted = name in ("sqrt", "rsqrt") or any(arg.rooted for arg in args)
        return [Constant(None, equation, tuple(args), which, rooted) for which in outputs]

    def _node(self, equation: Any, which: int, args: list[Any], loops: Loops) -> int:
        name, options = equation.primitive.name, equation.params
        order = tuple(at for at, arg in enumerate(args) if isinstance(arg, int))
        preds = [args[at] for at in order]
        uses = tuple((at, arg) for at, arg in enumerate(args) if isinstance(arg, Derived))
        constants = tuple((at, arg) for at, arg in enumerate(args) if isinstance(arg, Constant))
        if name in ("scatter-add", "scatter_add") and {0, 2} <= {*order}:
            # Where it adds has no derivative.
            name, preds, order = "add", [args[0], args[2]], (0, 2)
        key = None
        if not uses and not constants:  # x + h, written twice, is one value
            elementwise = name in ("add", "mul", "sub")
            said = "" if elementwise else str(sorted(options.items(), key=lambda item: item[0]))
            key = (name, which, tuple(preds), said)
            if key in self._known:
                return self._known[key]
        made = self.add(
            name, preds, equation.outvars[which].aval, loops, order=order, uses=uses,
            constants=constants, options=options,
        )  # fmt: skip
        if key:
            self._known[key] = made
        return made

    def _scan(self, equation: Any, args: list[Any], loops: Loops, path: Path) -> list[Any]:
        options = equation.params
        body = options["jaxpr"].jaxpr
        consts, carried = whole_operands(equation)
        if options["reverse"]:
            self.reversed_loops.add(path)
        inside = (*loops, (path, options["length"]))
        xs = args[carried:]
        carry = self._carry(body, args, consts, carried, loops, path)
        slices: list[Any] = []
        for x, var in zip(xs, body.invars[carried:], strict=True):
            if isinstance(x, int):
                slices.append(self.add("cut", [x], var.aval, inside))
            elif isinstance(x, Derived):
                slices.append(x.turn(path))
            else:
                slices.append(
                    Constant(rooted=x.rooted, turn=(path, x), backwards=options["reverse"])
                )
        given = [*args[:consts], *carry, *slices]
        out = self.walk(options["jaxpr"], given, inside, path)
        self.passed_on |= {each for each in out[: len(carry)] if isinstance(each, int)}
        stacked = [
            self.add("stack", [y], var.aval, loops) if isinstance(y, int) else y
            for y, var in zip(out[len(carry) :], equation.outvars[len(carry) :], strict=True)
        ]
        return [*out[: len(carry)], *stacked]

    def _while(self, equation: Any, args: list[Any], loops: Loops, path: Path) -> list[Any]:
        options = equation.params
        args, consts = args[options["cond_nconsts"] :], options["body_nconsts"]
        program = options["body_jaxpr"]
        carry = self._carry(program.jaxpr, args, consts, len(args), loops, path)
        out = self.walk(program, [*args[:consts], *carry], (*loops, (path, 0)), path)
        self.passed_on |= {each for each in out if isinstance(each, int)}
        return out

    def _carry(
        self, body: Any, args: list[Any], start: int, end: int, loops: Loops, path: Path
    ) -> list[Any]:
        """What a loop carries: data if it begins as data or becomes it in a turn."""
        flags = [isinstance(arg, int) for arg in args]
        while True:
            out = _depending(body, flags)[: end - start]
            data = [a or b for a, b in zip(flags[start:end], out, strict=True)]
            if data == flags[start:end]:
                break
            flags[start:end] = data
        others = [arg for arg in (*args[end:], *args[:start]) if isinstance(arg, int)]
        carry: list[Any] = []
        for arg, is_data, var in zip(args[start:end], data, body.invars[start:end], strict=True):
            if not is_data:
                carry.append(arg if isinstance(arg, Derived) else Constant(carried=(path, arg)))
            elif isinstance(arg, int):
                carry.append(self.add("carry", [arg], var.aval, loops))
            else:  # it depends on what the turns take
                leaf = isinstance(arg, Derived)
                fields = {"uses": ((0, arg),) if leaf else (), "starts_as_zeros": not leaf}
                carry.append(self.add("carry", others, var.aval, loops, **fields))
        self.carried[path] = {each for each in carry if isinstance(each, int)}
        return carry


def _count_layers(program: Any) -> int:
    """The dot products and convolutions of a jaxpr, those of its calls too."""
    own = sum(equation.primitive.name in LINEAR for equation in program.eqns)
    inner = (each for equation in program.eqns for each in jaxprs_in_params(equation.params))
    return own + sum(map(_count_layers, inner))


def _leaves_used(program: Any, args: Sequence[Any]) -> set[int]:
    """The leaves that steps of a jaxpr take."""
    used = {id(atom) for equation in program.eqns for atom in equation.invars}
    pairs = zip(program.invars, args, strict=True)
    derived = (arg for var, arg in pairs if id(var) in used and isinstance(arg, Derived))
    return {view.leaf for arg in derived for view in arg.views}


def _depending(program: Any, flags: list[bool]) -> list[bool]:
    """Which results depend on flagged arguments; a call passes on all that any argument has."""

    def step(equation: Any, args: list[Any], path: Path) -> list[Any]:
        return [any(args)] * len(equation.outvars)

    return walk(program, [False] * len(program.constvars), flags, (), step, lambda _: False)


def _constant(value: Any) -> Constant:
    """A constant of the program; a traced array that a network closes over has no value yet."""
    return Constant(None if isinstance(value, jax.core.Tracer) else value)


@dataclasses.dataclass(frozen=True)
class Trace:
    """A network's program as a graph."""

    graph: Graph  # its steps
    outputs: tuple[int, ...]  # the nodes that it returns
    # of the arrays among the leaves, as `jax.tree.leaves` orders them; a view's `leaf` is an index
    paths: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]  # of those arrays
    positions: tuple[int, ...]  # of those arrays among all leaves
    program: Any  # the closed jaxpr; it takes those arrays, then the leaves of the inputs
    result: Any  # the tree that the network returns, of shapes


def trace(
    network: Callable[..., Any], params: Any, *inputs: Any, streams: str | None = None
) -> Trace:
    """Traces ``network(params, *inputs)``, of arrays or shapes; nothing is computed.

    The leaves whose paths ``streams`` matches are data, as the inputs are.
    """
    flat, treedef = jax.tree_util.tree_flatten_with_path(params)
    positions = tuple(at for at, (_, leaf) in enumerate(flat) if is_numeric(leaf))
    leaves = [flat[at][1] for at in positions]
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]

    def call(arrays: Any, inputs: Any) -> Any:
        filled = [leaf for _, leaf in flat]
        for at, array in zip(positions, arrays, strict=True):
            filled[at] = array
        return network(jax.tree.unflatten(treedef, filled), *inputs)

    closed, result = jax.make_jaxpr(call, return_shape=True)(shapes, inputs)
    graph = Graph()
    paths = tuple(path_name(flat[at][0]) for at in positions)
    data = matching(paths, "streams", streams)
    given: list[Any] = [
        graph.add("input", (), each, ()) if at in data else Derived.of_leaf(at, each.shape)
        for at, each in enumerate(shapes)
    ]
    for var in closed.jaxpr.invars[len(shapes) :]:
        key = jnp.issubdtype(var.aval.dtype, jax.dtypes.prng_key)
        given.append(Constant() if key else graph.add("input", (), var.aval, ()))
    out = graph.walk(closed, given)
    outputs = tuple(each for each in out if isinstance(each, int))
    sizes = tuple(tuple(each.shape) for each in shapes)
    return Trace(graph, outputs, paths, sizes, positions, closed, result)


def matching(paths: Sequence[str], name: str, pattern: str | None) -> set[int]:
    """The leaves whose paths an argument matches, one or more."""
    if pattern is None:
        return set()
    found = {at for at, path in enumerate(paths) if re.search(pattern, path)}
    if not found:
        raise ValueError(
            f"{name}={pattern!r} matches no leaf; expected one of paths like "
            f"{', '.join(map(repr, paths[:3]))}."
        )
    return found
