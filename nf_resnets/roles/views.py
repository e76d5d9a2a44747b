"""Views: which axes of which leaves a value is that is computed from leaves alone.

A kernel reaches its layer through reshapes, transposes, slices and loops. Each axis of such a value
is a product of *spans* of axes of leaves, from which a layer reads the axes of its leaf.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from nf_resnets.roles.running import Path

MOVES = frozenset({
    "broadcast_in_dim", "carry", "concatenate", "convert_element_type", "copy", "copy_p", "cut",
    "dynamic_slice", "expand_dims", "name", "optimization_barrier", "pad", "pcast", "pvary",
    "reduce_precision", "reshape", "rev", "sharding_constraint", "slice", "split", "squeeze",
    "stack", "stop_gradient", "transpose",
})  # fmt: skip
"""Steps that move numbers and compute none."""
NOT_ZERO_AT_ZERO = (
    "acos", "cos", "cosh", "erfc", "exp", "exp2", "log", "logistic", "pow", "rsqrt",
)  # fmt: skip
Factor = float | np.ndarray | None
"""A constant factor: a number, one for each turn of a loop, or None where it is neither."""
_LINEAR = MOVES | {"dot_general", "gather", "mul", "neg", "reduce_sum"}


class Span(NamedTuple):
    """``size`` steps of ``stride`` along an axis of a leaf.

    A ``stride`` of 0 says that their order is not known. Where ``axis`` is -1 there is none: the
    value repeats along it, or, with a ``stride`` of 0 or more, has the leaf at that one place, as a
    stack of leaves.
    """

    axis: int
    stride: int
    size: int


Axis = tuple[Span, ...]
"""An axis of a value: the product of its spans, the slowest first."""


@dataclasses.dataclass(frozen=True)
class View:
    """How one leaf lies in a value."""

    leaf: int  # its number among the leaves of the tree
    axes: tuple[Axis, ...]  # what each axis of the value is
    # the loops that take a slice at each turn, each with the axis that it cuts
    turns: tuple[tuple[Path, Axis], ...] = ()
    start: int = 0  # where a slice along the leaf's first axis begins
    rooted: bool = False  # whether a square root was taken, as of a running variance
    contracted: bool = False  # whether it was multiplied with another leaf, as a low-rank factor is
    exact: bool = True  # whether its axes could be followed
    linear: bool = True  # whether it was moved and multiplied alone, and no other function taken
    vanishes: bool = True  # whether the value is 0 where the leaf is, its roots aside
    normalized: bool = False  # whether it was divided by its own length or deviation
    scale: Factor = 1.0  # the constant by which it was multiplied

    def spans(self) -> list[Span]:
        """The spans along axes of the leaf."""
        return [span for axis in self.axes for span in axis if span.axis >= 0]

    @property
    def cuts(self) -> set[Path]:
        """The loops of which each turn takes another part of the leaf."""
        return {loop for loop, axis in self.turns if any(span.axis >= 0 for span in axis)}

    @property
    def size(self) -> int:
        """How many different numbers of the leaf it has."""
        return math.prod(span.size for span in self.spans())


@dataclasses.dataclass(frozen=True)
class Derived:
    """A value that is computed from leaves and constants alone."""

    views: tuple[View, ...]  # one for each leaf in it, and for each slice of one
    shape: tuple[int, ...]  # of the value
    # whether the root of a leaf or constant is a factor, as in a norm at test time
    rooted: bool = False

    @classmethod
    def of_leaf(cls, leaf: int, shape: tuple[int, ...]) -> Derived:
        """A leaf as it is."""
        axes = tuple((Span(axis, 1, size),) for axis, size in enumerate(shape))
        return cls((View(leaf, axes),), shape)

    def turn(self, loop: Path) -> Derived:
        """What a turn of a loop takes along the first axis."""
        views = tuple(
            dataclasses.replace(v, axes=v.axes[1:], turns=(*v.turns, (loop, v.axes[0])))
            for v in self.views
        )
        return Derived(views, self.shape[1:], self.rooted)


@dataclasses.dataclass
class Constant:
    """A value that depends on no leaf and no input; computed when asked for."""

    value: Any = None  # the value, if it is known
    equation: Any = None  # computes it from `args`, as output `which`
    args: tuple[Any, ...] = ()
    which: int = 0
    rooted: bool = False  # whether the root of a constant is a factor of it
    # the loop that takes it along the first axis of another constant
    turn: tuple[Path, Constant] | None = None
    backwards: bool = False  # whether that loop begins with the last slice
    # the loop that carries it, with what it begins as
    carried: tuple[Path, Constant] | None = None
    tried: bool = False  # whether it was computed before

    def get(self) -> Any:
        """The value, or None where it differs between turns of a loop or depends on a key."""
        equation = self.equation
        if self.value is None and equation is not None and not self.tried:
            self.tried = True
            args = [each.get() for each in self.args]
            if all(each is not None for each in args):
                # Some cannot be computed by themselves, as an axis index outside of its mesh.
                with contextlib.suppress(Exception), jax.ensure_compile_time_eval():
                    out = equation.primitive.bind(*args, **equation.params)
                    self.value = out[self.which] if equation.primitive.multiple_results else out
        return self.value

    @property
    def size(self) -> int:
        """How many numbers it has; of a value that a loop takes, 1 if that is not known."""
        if self.equation is not None:
            return math.prod(self.equation.outvars[self.which].aval.shape)
        return int(np.size(self.get()))

    def number(self) -> float | None:
        """The one number that the value has, however often, or None."""
        value = self.get()
        if value is None or not np.size(value) or np.iscomplexobj(value):
            return None
        array = np.asarray(value, np.float64)
        return float(array.flat[0]) if np.all(array == array.flat[0]) else None

    def counted(self) -> tuple[Path, int] | None:
        """The loop whose turns the value counts as an index, and from where, or None."""
        each = self
        while each.equation is not None:
            name = each.equation.primitive.name
            if name not in MOVES | {"select_n"}:
                return None
            each = each.args[name == "select_n"]  # of i and i + n, where i may be negative, i
        if each.carried is not None:  # by one a turn, as fori_loop does
            loop, begin = each.carried[0], each.carried[1].number()
            return None if begin is None else (loop, int(begin))
        numbers = None if each.turn is None else each.turn[1].get()
        start = None if numbers is None else _start_of_range(numbers)
        return None if start is None or each.turn is None else (each.turn[0], start)

    def factor(self, loops: tuple[tuple[Path, int], ...]) -> Factor:
        """The value as a factor of what is in some loops, turn after turn."""
        each: Constant | None = self
        length, step = 0, 1
        while each is not None and each.value is None:
            if each.turn is not None:
                step = -1 if each.backwards else 1
                loop, each = each.turn
                length = dict(loops).get(loop, 0)
                break
            varying = [a for a in each.args if a.turn or a.equation is not None or a.value is None]
            moves = each.equation is not None and each.equation.primitive.name in MOVES
            if len(varying) != 1 or not moves:
                break
            each = varying[0]
        if not length or each is None:
            return self.number()
        value = each.get()
        if value is None:
            return None
        return np.asarray(value, np.float64).reshape(length, -1)[::step, 0]


def _start_of_range(numbers: Any) -> int | None:
    """Where numbers begin that each are one more than the one before, or None."""
    flat = np.asarray(numbers).reshape(-1)
    is_range = flat.size > 0 and np.array_equal(flat, flat[0] + np.arange(flat.size))
    return int(flat[0]) if is_range else None


def times(one: Factor, two: Factor, how: str = "mul") -> Factor:
    """The product of two factors, or their quotient."""
    if one is None or two is None:
        return None
    return one * two if how == "mul" else one / two


def derive(
    equation: Any, which: int, args: list[Any], loops: tuple[tuple[Path, int], ...]
) -> Derived:
    """The views in an output of an equation whose arguments are constants and derived values."""
    shape = tuple(equation.outvars[which].aval.shape)
    name = equation.primitive.name
    views: dict[tuple[Any, ...], View] = {}
    for at, arg in enumerate(args):
        for view in arg.views if isinstance(arg, Derived) else ():
            if _is_cut_away(equation, view):
                continue
            moved = _move(equation, which, args, at, view, loops)
            key = (moved.leaf, moved.turns, moved.start)
            if key in views:
                other = views[key]
                moved = _merge(other, moved)
                if name == "div" and at == 1 and view.size < other.size:  # by a number of its own
                    moved = dataclasses.replace(moved, normalized=True)
            views[key] = moved
    rooted = name in ("sqrt", "rsqrt") or any(arg.rooted for arg in args)
    return Derived(tuple(views.values()), shape, rooted)


def _merge(one: View, two: View) -> View:
    """One view of two of the same leaf: ``v / norm(v)`` has the axes of ``v``."""
    unlike = one.size == two.size > 1 and one.axes != two.axes
    return dataclasses.replace(
        max(one, two, key=lambda view: view.size),
        exact=one.exact and two.exact and not unlike,
        vanishes=all(view.vanishes or view.rooted for view in (one, two)),
        normalized=one.rooted != two.rooted or one.normalized or two.normalized,
        rooted=one.rooted and two.rooted,
    )


def _move(
    equation: Any,
    which: int,
    args: list[Any],
    at: int,
    view: View,
    loops: tuple[tuple[Path, int], ...],
) -> View:
    """The view that an argument's becomes."""
    name, options = equation.primitive.name, equation.params
    shape, before = tuple(equation.outvars[which].aval.shape), args[at].shape
    axes: tuple[Axis, ...] | None = None
    if name == "reshape":
        order = options["dimensions"]  # of a transposition before it, as vmap makes of convolutions
        axes = _reshape(view.axes if order is None else [view.axes[p] for p in order], shape)
    elif name == "transpose":
        axes = tuple(view.axes[p] for p in options["permutation"])
    elif name == "squeeze":
        axes = _without(view.axes, options["dimensions"])
    elif name == "broadcast_in_dim":
        into = options["broadcast_dimensions"]
        kept = {q: view.axes[p] for p, q in enumerate(into) if before[p] == shape[q]}
        axes = tuple(kept.get(q, _none(n)) for q, n in enumerate(shape))
    elif name.startswith("reduce_") and "axes" in options:
        axes = _without(view.axes, options["axes"])
    elif name == "stack":
        place = (Span(-1, at, len(args)),)
        axes = (*view.axes[: options["axis"]], place, *view.axes[options["axis"] :])
    elif name in ("slice", "split", "pad", "concatenate"):
        view = dataclasses.replace(view, start=view.start + _offset(equation, which, view))
        starts, steps = [0] * len(shape), [1] * len(shape)
        if name == "slice":
            starts, steps = options["start_indices"], options["strides"] or steps
        axes = tuple(map(_resize, view.axes, shape, starts, steps))
        if name == "concatenate" and before[options["dimension"]] == 1:
            dimension = options["dimension"]
            ahead = sum(var.aval.shape[dimension] for var in equation.invars[:at])
            place = (Span(-1, ahead, shape[dimension]),)
            if view.axes[dimension][0].axis < 0:
                axes = (*axes[:dimension], place, *axes[dimension + 1 :])
        view = dataclasses.replace(view, exact=view.exact and name != "pad")
    elif name == "rev":
        back = sum((before[p] - 1) * _rows(view.axes[p]) for p in options["dimensions"])
        view = dataclasses.replace(view, start=view.start + back)
        axes = tuple(
            _reversed(axis) if p in options["dimensions"] else axis
            for p, axis in enumerate(view.axes)
        )
    elif name in ("dynamic_slice", "gather") and at == 0:
        return _index(equation, args, view, shape, loops)
    elif name == "dot_general":
        axes = _contract(options["dimension_numbers"], at, view.axes, shape)
        other = isinstance(args[1 - at], Derived)
        view = dataclasses.replace(view, contracted=view.contracted or other)
    elif before == shape:
        axes = view.axes
    elif before == ():
        axes = tuple(map(_none, shape))
    elif len(before) == len(shape) and all(a in (1, n) for a, n in zip(before, shape, strict=True)):
        axes = tuple(
            axis if m == n else _none(n)
            for axis, m, n in zip(view.axes, before, shape, strict=True)
        )
    exact = view.exact and axes is not None
    return dataclasses.replace(
        view,
        axes=tuple(map(_none, shape)) if axes is None else axes,
        exact=exact,
        rooted=view.rooted or name in ("sqrt", "rsqrt"),
        vanishes=view.vanishes and name not in NOT_ZERO_AT_ZERO,
        linear=view.linear and (name in _LINEAR or (name == "div" and at == 0)),
        scale=_scale(name, args, at, view.scale, loops),
    )


def _none(size: int) -> Axis:
    return (Span(-1, -1, size),)


def _without(axes: tuple[Axis, ...], dropped: Any) -> tuple[Axis, ...]:
    return tuple(axis for p, axis in enumerate(axes) if p not in dropped)


def _resize(axis: Axis, size: int, start: int = 0, step: int = 1) -> Axis:
    """An axis of which a part was taken, or to which another was joined."""
    before = math.prod(span.size for span in axis)
    if before == size or len(axis) > 1:
        return axis
    span = axis[0]
    if span.axis >= 0:
        stride = span.stride * step if size < before else 0
    else:  # the place of one leaf of a stack
        stride = (span.stride - start) // step if span.stride >= 0 else -1
    return (Span(span.axis, stride, size),)


def _reversed(axis: Axis) -> Axis:
    """An axis from its end to its begin."""
    span = axis[0]
    if len(axis) > 1 or span.axis == span.stride == -1:
        return _shuffled(axis)
    turned = -span.stride if span.axis >= 0 else span.size - 1 - span.stride
    return (span._replace(stride=turned),)


def _reshape(axes: Sequence[Axis], shape: tuple[int, ...]) -> tuple[Axis, ...] | None:
    """The axes of a reshaped value, or None where one is no product of spans."""
    spans = [span for axis in axes for span in axis if span.size != 1][::-1]
    result = []
    for size in shape:
        taken, left = [], size
        while left > 1:
            if not spans:
                return None
            span = spans.pop()
            if left % span.size == 0:
                taken.append(span)
                left //= span.size
            elif span.size % left == 0:
                inner = span.size // left
                taken.append(Span(span.axis, span.stride * inner, left))
                spans.append(Span(span.axis, span.stride, inner))
                left = 1
            else:
                return None
        result.append(tuple(taken) or _none(1))
    return tuple(result)


def _shuffled(axis: Axis) -> Axis:
    """An axis in an order that is not known."""
    return tuple(span._replace(stride=0) if span.axis >= 0 else span for span in axis)


def _rows(axis: Axis) -> int:
    """By how many steps along the leaf's first axis an axis goes on."""
    return axis[0].stride if axis[0].axis == 0 and len(axis) == 1 else 0


def _is_cut_away(equation: Any, view: View) -> bool:
    """Whether a slice of a stack of leaves lacks this one."""
    if equation.primitive.name != "slice":
        return False
    options = equation.params
    bounds = zip(view.axes, options["start_indices"], options["limit_indices"], strict=True)
    return any(
        axis[0].axis < 0 <= axis[0].stride and not start <= axis[0].stride < limit
        for axis, start, limit in bounds
    )


def _offset(equation: Any, which: int, view: View) -> int:
    """How far along the leaf's first axis a slice or a part of a split begins."""
    name, options = equation.primitive.name, equation.params
    if name == "slice":
        starts = options["start_indices"]
    elif name == "split":
        before = sum(options["sizes"][:which])
        starts = [before * (p == options["axis"]) for p in range(len(view.axes))]
    else:
        return 0
    return sum(start * _rows(axis) for axis, start in zip(view.axes, starts, strict=True))


def _index(
    equation: Any,
    args: list[Any],
    view: View,
    shape: tuple[int, ...],
    loops: tuple[tuple[Path, int], ...],
) -> View:
    """A slice at an index: a turn's of a loop, or rows of a table."""
    sizes, before = equation.params["slice_sizes"], args[0].shape
    axes, turns, start = list(view.axes), view.turns, view.start
    part = [p for p, n in enumerate(sizes) if n < before[p]]
    is_slice = equation.primitive.name == "dynamic_slice"
    place = 1 + part[0] if is_slice and len(part) == 1 else 1
    index = args[place] if isinstance(args[place], Constant) else Constant()
    fixed = index.number() if is_slice and len(part) == 1 else None
    if fixed is not None:
        start += int(fixed) * _rows(axes[part[0]])
        axes[part[0]] = _resize(axes[part[0]], sizes[part[0]])
    elif len(part) == 1 and sizes[part[0]] == 1 and loops and math.prod(shape) == math.prod(sizes):
        loop, begin = index.counted() or (loops[-1][0], None)
        start += (begin or 0) * _rows(axes[part[0]])
        turns = (*turns, (loop, _shuffled(axes[part[0]]) if begin is None else axes[part[0]]))
        axes[part[0]] = _none(1)
    if equation.primitive.name == "gather":
        numbers = equation.params["dimension_numbers"]
        kept = [axis for p, axis in enumerate(axes) if p not in numbers.collapsed_slice_dims]
        full = dict(zip(numbers.offset_dims, kept, strict=True))
        free = [q for q in range(len(shape)) if q not in full]
        if turns == view.turns and len(part) == 1 and free:
            rows, axis = index.get(), view.axes[part[0]]
            begin = None if rows is None else _start_of_range(rows)
            start += (begin or 0) * _rows(axis)
            full[free[0]] = _shuffled(axis) if begin is None else axis
        axes = [full.get(q, _none(n)) for q, n in enumerate(shape)]
    return dataclasses.replace(view, axes=tuple(axes), turns=turns, start=start)


def _contract(numbers: Any, at: int, axes: tuple[Axis, ...], shape: Any) -> tuple[Axis, ...]:
    """The axes of a product of two leaves that one of them gives."""
    contracted, batch = numbers[0][at], numbers[1][at]
    free = [axis for p, axis in enumerate(axes) if p not in (*contracted, *batch)]
    lengths = shape[len(batch) :]
    others = len(lengths) - len(free)
    blank = [_none(n) for n in (lengths[:others] if at else lengths[len(free) :])]
    return (*(axes[p] for p in batch), *(blank + free if at else free + blank))


def _scale(
    name: str, args: list[Any], at: int, scale: Factor, loops: tuple[tuple[Path, int], ...]
) -> Factor:
    """The constant by which a leaf is multiplied, with that of a product or quotient."""
    is_scaled = name == "mul" or (name == "div" and at == 0)
    if not is_scaled or not isinstance(args[1 - at], Constant):
        return scale
    return times(scale, args[1 - at].factor(loops), name)
