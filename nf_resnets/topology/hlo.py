"""Reads a compiled program's text: loops, collectives, products, and bytes by memory."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute",
    "collective-broadcast", "ragged-all-to-all",
)  # fmt: skip

# What moves nothing, or whose work its partner is counted with.
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota",
    "opt-barrier", "partition-id", "replica-id",
}  # fmt: skip
_SLICES = ("slice", "dynamic-slice", "gather")
_HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_LINE = re.compile(r"\s+(ROOT )?%([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)")
_ARRAY = re.compile(r"\b([a-z]+\d*\w*)\[([\d,]*)\](?:\{([^}]*)\})?")


class Instruction(NamedTuple):
    """A line of a computation; its attributes are all that follows the operation's name."""

    name: str
    shape: str
    op: str
    operands: tuple[str, ...]
    attributes: str
    is_root: bool


Work = Counter[str]
"""What a computation does: ``flops`` of its products; ``bytes`` that its instructions read and
write, ``main_bytes`` those of them in the chip's main memory; of collectives ``count KIND`` and
``bytes KIND``, what they give on each chip."""


def work(text: str, *, repeat_loops: bool = True) -> Work:
    """What a compiled program does in one call, of the text of ``jax.stages.Compiled.as_text()``.

    A loop of a constant number of iterations counts as often, unless ``repeat_loops`` is False, as
    in the compiler's own analysis; any other once, such as the loop over training steps.
    """
    program = _Program(text, repeat_loops)
    return program.of(program.entry)


def step(text: str) -> Work:
    """As :func:`work`, but of one round of the loop over training steps.

    That is the one of unknown length that moves most; several runs, one after another, are a round
    each. A program without such a loop is a step as a whole.
    """
    program = _Program(text, repeat_loops=True)
    rounds = program.unknown(program.entry, 1)
    return max(rounds, key=lambda each: each["bytes"], default=program.of(program.entry))


def _times(work: Work, count: int) -> Work:
    return Counter({name: count * value for name, value in work.items()})


class _Program:
    """Computations by name, and the work of each."""

    def __init__(self, text: str, repeat_loops: bool) -> None:
        self._computations, self.entry = _parse(text)
        self._repeat = repeat_loops
        self.of = functools.cache(self._computation)

    def unknown(self, name: str, rounds: int) -> Iterator[Work]:
        """The rounds of each loop of unknown length, as often as a loop around it goes round."""
        for line in self._computations.get(name, {}).values():
            if line.op == "while":
                body, work, trips = self._loop(line)
                if trips is None:
                    yield _times(work, rounds)
                else:
                    yield from self.unknown(body, rounds * trips)

    def _loop(self, line: Instruction) -> tuple[str, Work, int | None]:
        """A loop's body, the work of one round, and how often it goes round, if that is known."""
        condition, body = (_named(line.attributes, what) for what in ("condition", "body"))
        lines = self._computations[condition].values()
        test = next(line for line in lines if line.is_root)
        last = self._computations[condition].get(test.operands[-1])
        is_below = test.op == "compare" and "direction=LT" in test.attributes
        is_known = is_below and last is not None and last.op == "constant"
        found = re.match(r"(\d+)\)", last.attributes) if last and is_known else None
        return body, self.of(body) + self.of(condition), int(found[1]) if found else None

    def _computation(self, name: str) -> Work:
        total: Work = Counter()
        for instruction in self._computations.get(name, {}).values():
            total += self._instruction(instruction, self._computations[name])
        return total

    def _instruction(self, this: Instruction, around: Mapping[str, Instruction]) -> Work:
        op = this.op.removesuffix("-start")
        if this.op in _FREE or this.op.endswith(("-done", "-update")):
            return Counter()
        if op == "while":
            _, work, trips = self._loop(this)
            return _times(work, (trips or 1) if self._repeat else 1)
        if op == "custom-call" and re.search(r'"(AllocateBuffer|ConcatBitcast)"', this.attributes):
            return Counter()  # names for memory
        inputs = [_arrays(around[name].shape) for name in this.operands]
        moved, inside = self._moved(op, this, inputs), Work()
        if op in COLLECTIVES:
            given = _sent(this.shape)
            if this.op.endswith("-start") and op != "all-reduce":
                # A start's tuple has the operands in it.
                given -= sum(_sent(around[name].shape) for name in this.operands)
            inside = Work({f"count {op}": 1, f"bytes {op}": given})
        elif op == "fusion":  # of which only the products and collectives count
            inside = Work(self.of(_named(this.attributes, "calls")))
            del inside["bytes"], inside["main_bytes"]
        elif op == "convolution":
            inside["flops"] = _product_flops(this, around)
        inside["bytes"] += sum(size for size, _ in moved)
        inside["main_bytes"] += sum(size for size, slow in moved if slow)
        return inside

    def _moved(
        self, op: str, this: Instruction, inputs: list[list[tuple[int, bool]]]
    ) -> list[tuple[int, bool]]:
        """What an instruction reads and writes: bytes, and whether they are in main memory."""
        outputs = _arrays(this.shape)
        if op in ("copy", *_SLICES):
            # A start gives its source as well: a slice's before the target, a copy's behind it.
            outputs = outputs[1:2] if this.op == "slice-start" else outputs[:1]
            # Of what it takes from, it reads as much as it gives.
            return [(size, slow) for size, _ in outputs for _, slow in inputs[0][:1]] + outputs
        if op == "dynamic-update-slice":
            return [*inputs[1], *((size, outputs[0][1]) for size, _ in inputs[1])]
        if op == "fusion":
            return self._fused(_named(this.attributes, "calls"), inputs, outputs)
        return [array for arrays in inputs for array in arrays] + outputs

    def _fused(
        self, name: str, inputs: list[list[tuple[int, bool]]], outputs: list[tuple[int, bool]]
    ) -> list[tuple[int, bool]]:
        """As ``_moved`` of a fusion: of an array that it takes slices from, only these count."""
        found: list[tuple[int, bool]] = []
        for index, read in self._read(name).items():
            if len(inputs[index]) == 1 and read is not None:
                found.append((min(read, inputs[index][0][0]), inputs[index][0][1]))
            else:
                found.extend(inputs[index])
        lines = self._computations[name]

        def behind(name: str) -> Instruction:
            return behind(lines[name].operands[0]) if lines[name].op == "bitcast" else lines[name]

        root = behind(next(line.name for line in lines.values() if line.is_root))
        roots = [behind(name) for name in root.operands] if root.op == "tuple" else [root]
        for array, of in itertools.zip_longest(outputs, roots[: len(outputs)]):
            if of is not None and of.op == "dynamic-update-slice":
                size = sum(each for each, _ in _arrays(lines[of.operands[1]].shape))
                found.append((size, array[1]))
            else:
                found.append(array)
        return found

    def _read(self, name: str) -> dict[int, int | None]:
        """How many bytes a fusion reads of each of its parameters; None for all."""
        lines = self._computations[name]
        found: dict[int, int | None] = {}
        for line in lines.values():
            if line.op == "parameter":
                parts = [*self._parts(line.name, lines)]
                known = [part for part in parts if part is not None]
                whole = not parts or len(known) < len(parts)
                found[int(line.attributes.partition(")")[0])] = None if whole else sum(known)
        return found

    def _parts(self, name: str, lines: Mapping[str, Instruction]) -> Iterator[int | None]:
        """How many bytes each instruction of a fusion reads of a value; None for all."""
        for user in lines.values():
            if name not in user.operands:
                continue
            if user.op == "bitcast":
                yield from self._parts(user.name, lines)
            elif user.op == "fusion":  # in this one
                inside = self._read(_named(user.attributes, "calls"))
                yield from (inside[at] for at, each in enumerate(user.operands) if each == name)
            elif user.op in _SLICES and name not in user.operands[1:]:
                yield sum(size for size, _ in _arrays(user.shape))
            elif user.op == "dynamic-update-slice" and name not in user.operands[1:]:
                yield 0
            else:
                yield None


def _arrays(shape: str) -> list[tuple[int, bool]]:
    """The arrays of a shape: bytes with their tiles filled up, and whether in main memory."""
    found = []
    for kind, sides, layout in _ARRAY.findall(shape):
        bits = re.search(r"\d+", kind)
        width = 8 if kind == "pred" or bits is None else int(bits[0])
        lengths = [int(side) for side in sides.split(",") if side]
        order, _, tiles = layout.partition(":")
        if order:
            lengths = [lengths[int(axis)] for axis in reversed(order.split(","))]
        tile = re.match(r"T\(([\d,]+)\)", tiles)
        if tile and lengths:
            # A TPU keeps the last two axes in tiles such as 8 x 128, however little is in them.
            each = [int(side) for side in tile[1].split(",")]
            lengths = [1] * (len(each) - len(lengths)) + lengths
            kept = len(lengths) - len(each)
            filled = zip(lengths[kept:], each, strict=True)
            lengths = lengths[:kept] + [-(-length // side) * side for length, side in filled]
        found.append((-(-math.prod(lengths) * width // 8), "S(" not in layout))
    return found


def _sent(shape: str) -> int:
    """The bytes of a shape without what fills up tiles."""
    return sum(size for size, _ in _arrays(re.sub(r"\{[^}]*\}", "", shape)))


def _product_flops(this: Instruction, around: Mapping[str, Instruction]) -> int:
    """Of a convolution, as TPUs have all products, a multiplication and an addition being two.

    Positions of a window that lie in the padding, or in the holes of a dilated input, do not count.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", this.attributes)
    assert labels is not None
    x, kernel = (_sides(around[name].shape) for name in this.operands[:2])
    out = _sides(this.shape)
    flops = 2 * kernel[labels[2].index("i")]
    flops *= out[labels[3].index("b")] * out[labels[3].index("f")]
    found = re.search(r"window=\{([^}]*)\}", this.attributes)
    window = {
        # Of the padding, what comes before.
        key: [int(each.split("_")[0]) for each in values.split("x")]
        for key, values in re.findall(r"(\w+)=([\d_x\-]+)", found[1] if found else "")
    }
    for axis in range(len(labels[1]) - 2):
        size, stride, low, base, dilation = (
            window[key][axis] if key in window else default for key, default in _WINDOW
        )
        outputs = stride * np.arange(out[labels[3].index(str(axis))])[:, None]
        # Pairs of an output and a kernel position that meet an input, and no hole.
        at = outputs + dilation * np.arange(size) - low
        last = (x[labels[1].index(str(axis))] - 1) * base
        flops *= int(((at >= 0) & (at <= last) & (at % base == 0)).sum())
    return flops


_WINDOW = (("size", 1), ("stride", 1), ("pad", 0), ("lhs_dilate", 1), ("rhs_dilate", 1))


def _sides(shape: str) -> list[int]:
    found = _ARRAY.search(shape)
    return [int(side) for side in found[2].split(",") if side] if found else []


def _named(attributes: str, what: str) -> str:
    found = re.search(rf"{what}=%([\w.\-]+)", attributes)
    assert found is not None
    return found[1]


def _parse(text: str) -> tuple[dict[str, dict[str, Instruction]], str]:
    """The computations by name, and the name of the first one to run."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry = ""
    for line in re.sub(r"/\*.*?\*/", "", text).splitlines():
        if header := _HEADER.match(line):
            current = computations.setdefault(header[2], {})
            entry = header[2] if header[1] else entry
        elif found := _LINE.match(line):
            root, name, shape, op, rest = found.groups()
            operands = tuple(re.findall(r"%([\w.\-]+)", rest.partition("), ")[0]))
            current[name] = Instruction(name, shape, op, operands, rest, bool(root))
    return computations, entry
