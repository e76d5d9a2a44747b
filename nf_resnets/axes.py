"""What each axis of a weight is: an input, an output, a tap of a convolution, or a copy.

The axes are written as a word with one letter for each: ``HWIO`` is Flax's convolution, ``OI``
Equinox's dense layer, ``IOO`` a dense layer to ``[heads, head_dim]``, as Flax's attention has it.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

LAYOUTS = {"HWIO": "[H, W, C_in, C_out]", "OIHW": "[C_out, C_in, H, W]"}
_OTHER = {"HWIO": "OIHW", "OIHW": "HWIO"}
LETTERS = {
    "I": "an input",
    "O": "an output",
    "D": "a tap",
    "H": "a tap",
    "W": "a tap",
    "N": "a copy",
}

# The last key of a weight or of its bias vector; NNX adds a key to a Param's path.
_OWN_KEY = re.compile(r"(?:^|[/_.])(kernel|weight|w|bias|b)(?:/(?:raw_)?value)?$")
# What attention's layers are called: Flax, Haiku, Equinox, PyTorch, and the letters of the paper.
_QUERY, _KEY, _VALUE = (
    re.compile(rf"(?:w_?|to_|in_)?(?:{short}|{long})(?:_?(?:proj\w*|linear|lin|dense|net))?", re.I)
    for short, long in (("q", "query"), ("k", "key"), ("v", "value"))
)
_FUSED = re.compile(r"\w*(?:qkv|kv|query_key_value|in_proj|c_attn)\w*", re.I)
_EXPERTS = re.compile(r"expert|(?:^|[/._])moe", re.I)

# The taps of a convolution are rarely more.
_WIDEST = 11


class Reading(Protocol):
    """What is asked of a leaf here (see :class:`nf_resnets.roles.Leaf`)."""

    @property
    def path(self) -> str:
        """Its keys joined by ``/``."""

    @property
    def shape(self) -> tuple[int, ...]:
        """With the axis over branches, if it has one."""

    @property
    def stacked(self) -> bool:
        """Whether it has one."""


def own_shape(leaf: Reading) -> tuple[int, ...]:
    """The shape without the axis over branches."""
    return leaf.shape[1:] if leaf.stacked else leaf.shape


def layer_of(path: str) -> str:
    """The path without the key that tells a weight from its bias vector.

    Example:
      >>> layer_of("block_1/conv_2/kernel"), layer_of("conv_2_b"), layer_of("conv_2")
      ('block_1/conv_2', 'conv_2', 'conv_2')
    """
    return _OWN_KEY.sub("", path)


def by_layout(ndim: int, layout: str) -> str:
    """The axes of a weight with one input and one output axis.

    Example:
      >>> by_layout(4, "HWIO"), by_layout(3, "OIHW"), by_layout(2, "HWIO")
      ('HWIO', 'OIW', 'IO')
    """
    taps = "D" * max(ndim - 5, 0) + "DHW"[max(5 - ndim, 0) :]
    return taps + "IO" if layout == "HWIO" else "OI" + taps


def fans(shape: Sequence[int], axes: str) -> tuple[int, int]:
    """``(fan_in, fan_out)``: taps times inputs, taps times outputs.

    Example:
      >>> fans((3, 3, 16, 32), "HWIO"), fans((512, 8, 64), "IOO")
      ((144, 288), (512, 512))
    """
    taps = length(shape, axes, "DHW")
    return taps * length(shape, axes, "I"), taps * length(shape, axes, "O")


def length(shape: Sequence[int], axes: str, letters: str) -> int:
    """The product of the lengths of the axes with one of these letters."""
    return math.prod(n for n, axis in zip(shape, axes, strict=True) if axis in letters)


def refuse_words(axes: Any) -> tuple[tuple[str, str], ...]:
    """Refuses what are no words for axes, and returns the pairs of ``rules.axes``."""
    pairs = tuple(axes.items()) if isinstance(axes, Mapping) else axes
    well_formed = isinstance(pairs, tuple) and all(
        isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
        for pair in pairs
    )
    if not well_formed:
        raise ValueError(
            f"rules.axes={axes!r} found; expected a dict from an expression to a word such as "
            "'IOO'."
        )
    for pattern, word in pairs:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(
                f"rules.axes has {pattern!r}, which is not a regular expression: {error}."
            ) from None
        if not word or set(word) - set(LETTERS):
            raise ValueError(
                f"rules.axes={{{pattern!r}: {word!r}}} found; expected one letter for each axis: "
                "I (an input), O (an output), D, H, W (taps), N (copies that are drawn one by one)."
            )
    return pairs


def stated(leaf: Reading, words: Mapping[str, str]) -> str | None:
    """The word that ``rules.axes`` has for a leaf, the first that fits."""
    word = next((word for pattern, word in words.items() if re.search(pattern, leaf.path)), None)
    if word is not None and len(word) != len(own_shape(leaf)):
        raise ValueError(
            f"leaf {leaf.path!r} has shape {leaf.shape}, rules.axes says {word!r}; expected a "
            "letter for each axis" + (" but the stacked one." if leaf.stacked else ".")
        )
    return word


def ends_in_bias(path: str) -> bool:
    """Whether the last key of a path is that of a bias vector."""
    key = _OWN_KEY.search(path)
    return key is not None and key[1] in ("bias", "b")


def is_bias(leaf: Reading, kernel: Reading | None) -> bool:
    """Whether a leaf called ``bias`` is one: one long axis, or just the outputs of its weight."""
    own = own_shape(leaf)
    if not ends_in_bias(leaf.path):
        return False
    if sum(n > 1 for n in own) <= 1:
        return True
    return kernel is not None and _outputs(own, own_shape(kernel)) > 0


def _outputs(bias: tuple[int, ...], kernel: tuple[int, ...]) -> int:
    """How many axes of outputs a bias says that its weight ends in, 0 if it does not say it."""
    fits = 0 < len(bias) < len(kernel) and kernel[-len(bias) :] == bias and bias[-1] > 1
    return len(bias) if fits else 0


def kernels(leaves: Iterable[Reading]) -> dict[str, Reading]:
    """The weight of each layer that has one by name, by the layer's path."""
    found = {}
    for leaf in leaves:
        key = _OWN_KEY.search(leaf.path)
        if key is not None and key[1] in ("kernel", "weight", "w"):
            found[layer_of(leaf.path)] = leaf
    return found


def biases(leaves: Iterable[Reading]) -> dict[str, Reading]:
    """The leaf called ``bias`` of each layer that has one, by the layer's path."""
    return {layer_of(leaf.path): leaf for leaf in leaves if ends_in_bias(leaf.path)}


def general(weights: Sequence[Reading], vectors: Mapping[str, Reading]) -> dict[str, str]:
    """The axes, by path, of dense layers with several axes of inputs or outputs.

    Their bias says so, or, in attention, their names: query, key and value lead from ``[D]`` to
    ``[heads, head_dim]``, and the layer beside them leads back.

    Args:
      weights: the leaves that are weights.
      vectors: the bias vectors, by the path of their layer.

    Raises:
      ValueError: if the names are attention's and the shapes are of another kind, or those of
        experts and one axis may run over them.
    """
    words: dict[str, str] = {}
    modules: dict[str, dict[str, Reading]] = {}
    for leaf in weights:
        layer = layer_of(leaf.path)
        own = own_shape(leaf)
        if layer in vectors:
            count = _outputs(own_shape(vectors[layer]), own)
            if count > 1:
                words[leaf.path] = "I" * (len(own) - count) + "O" * count
        if len(own) >= 3 and not _is_convolution(own):
            if leaf.path not in words and _EXPERTS.search(leaf.path):
                raise ValueError(
                    f"leaf {leaf.path!r} {list(leaf.shape)} may have an axis that runs over "
                    "experts, by its name; expected rules.axes to say so, as in "
                    "{r'experts/': 'NIO'} for [experts, C_in, C_out], whose weights are drawn one "
                    "by one."
                )
            module, _, name = layer.replace(".", "/").rpartition("/")
            modules.setdefault(module, {})[name] = leaf
    for layers in modules.values():
        words |= _attention(layers, words)
    return words


def attention_order(names: Iterable[str]) -> tuple[str, ...] | None:
    """Query, key, value and out among the names of a branch's layers, if that is what they are.

    Example:
      >>> attention_order(["key", "linear", "query", "value"])
      ('query', 'key', 'value', 'linear')
      >>> attention_order(["conv_1", "conv_2"])
    """
    rest = {name.rpartition("/")[2]: name for name in names}
    order = []
    for pattern in (_QUERY, _KEY, _VALUE):
        fitting = [short for short in rest if pattern.fullmatch(short)]
        if len(fitting) != 1:
            return None
        order.append(rest.pop(fitting[0]))
    return (*order, *rest.values()) if len(rest) == 1 else None


def _is_convolution(own: tuple[int, ...]) -> bool:
    """Whether a weight is plainly one: pointwise, or of the few equal taps of one in a plane."""
    widest = 1 if len(own) == 3 else _WIDEST
    fields = (own[:-2], own[2:])  # of either layout
    return any(len(set(field)) == 1 and field[0] <= widest for field in fields)


def _attention(layers: Mapping[str, Reading], known: Mapping[str, str]) -> dict[str, str]:
    """The axes of one module's weights of three axes or more, where they are an attention's."""
    words = {leaf.path: known[leaf.path] for leaf in layers.values() if leaf.path in known}
    order = attention_order(layers)
    if order is not None and not all(layers[name].path in words for name in order):
        query, key, value, out = (own_shape(layers[name]) for name in order)
        heads = len(query) == len(key) == len(value) == len(out) == 3
        # Keys and values may have fewer heads, each of which serves several queries'.
        if not (heads and query[1] == out[0] and value[2] == out[1] and query[2] == key[2]):
            raise _unlike_attention([layers[name] for name in order])
        words |= {layers[name].path: "IOO" for name in order[:3]}
        words[layers[order[3]].path] = "IIO"
    heads_of = {own_shape(leaf)[-2:] for leaf in layers.values() if leaf.path in words}
    for name, leaf in layers.items():
        if leaf.path in words:
            continue
        own = own_shape(leaf)
        if len(own) == 3 and own[:2] in heads_of and own[1:] not in heads_of:
            words[leaf.path] = "IIO"
        elif heads_of or _FUSED.fullmatch(name):
            raise _unlike_attention([leaf])
    return words


def _unlike_attention(leaves: Sequence[Reading]) -> ValueError:
    shown = ", ".join(f"{leaf.path!r} {list(leaf.shape)}" for leaf in leaves)
    return ValueError(
        f"the axes of {shown} cannot be told from the names; expected rules.axes to say which are "
        "inputs and which outputs, as in {r'(query|key|value)/kernel': 'IOO', r'out/kernel': "
        "'IIO'} for [D, heads, head_dim] and [heads, head_dim, D], or rules.stacked if the first "
        "axis runs over branches."
    )


def holders(tree: Any, paths: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The Equinox module that holds each leaf, None for what no such module holds."""
    module = getattr(sys.modules.get("equinox"), "Module", None)
    if module is None:
        return [None] * len(paths)
    return [_holder(tree, path, module) for path in paths]


def _holder(node: Any, path: tuple[Any, ...], module: type) -> Any:
    holder = node if isinstance(node, module) else None
    for key in path[:-1]:
        try:
            if hasattr(key, "name"):
                node = getattr(node, key.name)
            else:
                node = node[key.key if hasattr(key, "key") else key.idx]
        except (AttributeError, KeyError, IndexError, TypeError):
            break
        holder = node if isinstance(node, module) else holder
    return holder


def of_equinox(holder: Any) -> bool:
    """Whether a module is one of Equinox's own layers, whose weights have the outputs first."""
    return any(base.__module__.startswith("equinox.nn") for base in type(holder).__mro__)


def refuse_other_rank(leaf: Reading, holder: Any) -> None:
    """Refuses a weight with more axes than Equinox's layer has, as of layers made by ``vmap``."""
    name = type(holder).__name__
    expected = {"Linear": 2}.get(name, getattr(holder, "num_spatial_dims", 0) + 2)
    own = own_shape(leaf)
    if (name == "Linear" or hasattr(holder, "num_spatial_dims")) and len(own) != expected:
        raise ValueError(
            f"leaf {leaf.path!r} {list(leaf.shape)} has {len(own)} axes"
            f"{' but the stacked one' if leaf.stacked else ''}, of which Equinox's {name} has "
            f"{expected}; expected rules.stacked to match it just if its first axis runs over "
            "branches."
        )


def has_unsaid_layout(path: str, holder: Any) -> bool:
    """Whether neither a leaf's container nor its name tells its layout.

    Flax's ``kernel`` and Haiku's ``w`` have the outputs last, and a tree written by hand is taken
    to have them there. Of arrays in a module of the user's own nothing is known, nor of a
    ``weight``, as PyTorch calls what has the outputs first.
    """
    key = _OWN_KEY.search(path)
    return holder is not None or (key is not None and key[1] == "weight")


def fault(leaf: Reading, layout: str, bias: Reading | None) -> str | None:
    """What speaks against reading a weight in a layout and for the other one, None if nothing."""
    values = None if bias is None else math.prod(own_shape(bias))
    return _fault(own_shape(leaf), layout, values)


@functools.cache
def _fault(own: tuple[int, ...], layout: str, values: int | None) -> str | None:
    here, there = (by_layout(len(own), name) for name in (layout, _OTHER[layout]))
    outputs, others = (length(own, axes, "O") for axes in (here, there))
    if values not in (None, 1, outputs) and values == others:
        return f"has a bias vector of {values} and would have {outputs} outputs"
    if len(own) < 4:
        return None
    taps, instead = (
        [n for n, axis in zip(own, axes, strict=True) if axis in "DHW"] for axes in (here, there)
    )
    # Small equal taps in the other layout, and here taps that are channels by their looks.
    if len(set(instead)) == 1 and max(taps) > instead[0]:
        unequal = len(set(taps)) > 1 and min(taps) > 1
        if unequal or max(taps) > _WIDEST:
            return f"would have {' x '.join(map(str, taps))} taps"
    return None


def looks_stacked(shape: Sequence[int], axes: str) -> bool:
    """Whether what would be a convolution in space looks like a stack of those in a plane."""
    return axes == "DHWIO" and shape[0] > _WIDEST and shape[1] == shape[2] <= _WIDEST


def looks_general(shape: Sequence[int], axes: str) -> bool:
    """Whether what would be a convolution along a line has too many taps for a head."""
    return axes == "WIO" and shape[0] > _WIDEST


_Ends = tuple[int, int]


def refuse_chain(pairs: Sequence[tuple[str, str, _Ends, _Ends]], layout: str) -> None:
    """Refuses a layout in which layers do not fit one another, where all do in the other.

    Args:
      pairs: of layers that follow each other: their paths, then what the first gives and the second
        takes, in this layout and in the other.
      layout: this one.
    """
    if not pairs or not all(given == taken for *_, (given, taken) in pairs):
        return
    for first, second, (given, taken), _ in pairs:
        # A multiple may be a fused weight, a gate, or positions that are flattened.
        if given % taken and taken % given:
            raise ValueError(
                f"leaf {first!r} gives {given} channels and {second!r} takes {taken} in the layout "
                f"{layout!r}, where all layers fit in {_OTHER[layout]!r}; expected "
                f"rules.layout={_OTHER[layout]!r}."
            )


__all__ = [
    "LAYOUTS",
    "Reading",
    "attention_order",
    "biases",
    "by_layout",
    "ends_in_bias",
    "fans",
    "fault",
    "general",
    "has_unsaid_layout",
    "holders",
    "is_bias",
    "kernels",
    "layer_of",
    "length",
    "looks_general",
    "looks_stacked",
    "of_equinox",
    "own_shape",
    "refuse_chain",
    "refuse_other_rank",
    "refuse_words",
    "stated",
]
