"""What each axis of a weight is: an input, an output, a tap of a convolution, or a copy.

The axes are written as a word with one letter for each: ``HWIO`` is Flax's convolution, ``OI``
Equinox's dense layer, ``IOO`` a dense layer to ``[heads, head_dim]``, as Flax's attention has it.
They follow from the rules, from a layer's bias vector or name, or from its layout.
"""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nf_resnets.roles.layout import by_layout, is_equinox_layer, layouts
from nf_resnets.roles.leaf import LAYER_ROLES, WIDEST, Leaf, Role
from nf_resnets.roles.rules import Rules

# The last key of a weight or of its bias vector; NNX adds a key to a Param's path.
_OWN_KEY = re.compile(r"(?:^|[/_.])(kernel|weight|[wW]|bias|[bB])(?:/(?:raw_)?value)?$")
_ENDING = r"(?:_?(?:proj\w*|linear|lin|dense|net|conv\w*))?"
# What attention's layers are called: Flax, Haiku, Equinox, PyTorch, and the letters of the paper.
_QUERY, _KEY, _VALUE = (
    re.compile(rf"(?:w_?|to_|in_)?(?:{short}|{long}){_ENDING}", re.I)
    for short, long in (("q", "query"), ("k", "key"), ("v", "value"))
)
_TRIOS = (("queries", "keys", "values"), ("query", "key", "value"), ("q", "k", "v"))
_FUSED = re.compile(r"\w*(?:qkv|kv|query_key_value|in_proj|c_attn)\w*", re.I)
_QKV = re.compile(r"\w*(?:qkv|query_key_value|c_attn)\w*", re.I)
_EXPERTS = re.compile(r"expert|(?:^|[/._])moe|(?:^|/)vmap", re.I)
# Haiku's transposed convolutions have the outputs before the inputs.
_TRANSPOSED = re.compile(r"conv\w*transpose\w*/w$")


def with_axes(leaves: Sequence[Leaf], rules: Rules, params: Any, paths: Any) -> list[Leaf]:
    """Tells bias vectors of several axes from weights, and what the axes of weights are."""
    kernels = {
        layer_of(leaf.path): leaf.own_shape
        for leaf in leaves
        if leaf.weight and _own_key(leaf.path) in ("kernel", "weight", "w")
    }
    leaves = [
        dataclasses.replace(leaf, weight=False)
        if leaf.weight and _is_bias(leaf, kernels.get(layer_of(leaf.path), ()))
        else leaf
        for leaf in leaves
    ]
    words = {leaf.path: _stated(leaf, rules) or _transposed(leaf) for leaf in leaves if leaf.weight}
    biases = {
        layer_of(leaf.path): leaf.own_shape
        for leaf in leaves
        if not leaf.weight and ends_in_bias(leaf.path)
    }
    words |= _general([leaf for leaf in leaves if not words.get(leaf.path, True)], biases)
    # The axes of the others follow from the layout.
    plain = [leaf for leaf in leaves if leaf.role in LAYER_ROLES and not words.get(leaf.path, True)]
    holders = dict(zip((leaf.path for leaf in leaves), _holders(params, paths), strict=True))
    own_key = {leaf.path: _own_key(leaf.path) for leaf in plain}
    of_layer = {leaf.path: biases.get(layer_of(leaf.path)) for leaf in plain}
    values = {path: math.prod(shape) for path, shape in of_layer.items() if shape is not None}
    found = layouts(plain, rules.layout, holders, own_key, values)

    def word(leaf: Leaf) -> str:
        other = "OIHW" if is_equinox_layer(holders[leaf.path]) else "HWIO"
        layout = found.get(leaf.path, rules.layout or other)
        known = words[leaf.path] or (layout and by_layout(len(leaf.own_shape), layout))
        # Along a line, unless stacked: a stack would have a bias vector for each of its layers.
        own_bias = values.get(leaf.path) == leaf.own_shape[-1]
        if known == "WIO" and leaf.role is Role.BRANCH and own_bias:
            known = "DIO"
        return "N" * leaf.stacked + known if known else ""

    return [dataclasses.replace(leaf, axes=word(leaf)) if leaf.weight else leaf for leaf in leaves]


def _own_key(path: str) -> str:
    """The key that tells a weight from its bias vector, in small letters, if the path has one."""
    key = _OWN_KEY.search(path)
    return key[1].lower() if key else ""


def layer_of(path: str) -> str:
    """The path without the key that tells a weight from its bias vector.

    Example:
      >>> layer_of("block_1/conv_2/kernel"), layer_of("conv_2_b"), layer_of("conv_2")
      ('block_1/conv_2', 'conv_2', 'conv_2')
    """
    return _OWN_KEY.sub("", path)


def ends_in_bias(path: str) -> bool:
    """Whether the last key of a path is that of a bias vector."""
    return _own_key(path) in ("bias", "b")


def _is_bias(leaf: Leaf, kernel: tuple[int, ...]) -> bool:
    """Whether a leaf called ``bias`` is one: one long axis, or just the outputs of its weight."""
    own = leaf.own_shape
    return ends_in_bias(leaf.path) and (sum(n > 1 for n in own) <= 1 or _outputs(own, kernel) > 0)


def _outputs(bias: tuple[int, ...], kernel: tuple[int, ...]) -> int:
    """How many axes of outputs a bias says that its weight ends in, 0 if it does not say it."""
    fits = 0 < len(bias) < len(kernel) and kernel[-len(bias) :] == bias and bias[-1] > 1
    return len(bias) if fits else 0


def _stated(leaf: Leaf, rules: Rules) -> str | None:
    """The word that ``rules.axes`` has for a leaf, the first that fits."""
    words = dict(rules.axes).items()
    word = next((word for pattern, word in words if re.search(pattern, leaf.path)), None)
    if word is not None and len(word) != len(leaf.own_shape):
        raise ValueError(
            f"leaf {leaf.path!r} has shape {leaf.shape}, rules.axes says {word!r}; expected a "
            "letter for each axis" + (" but the stacked one." if leaf.stacked else ".")
        )
    return word


def _transposed(leaf: Leaf) -> str | None:
    if not _TRANSPOSED.search(leaf.path):
        return None
    return by_layout(len(leaf.own_shape), "HWIO")[:-2] + "OI"


def _general(weights: Sequence[Leaf], biases: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """The axes, by path, of dense layers with several axes of inputs or outputs.

    Their bias says so, or, in attention, their names: query, key and value lead from ``[D]`` to
    ``[heads, head_dim]``, and the layer beside them leads back.
    """
    words: dict[str, str] = {}
    modules: dict[str, dict[str, Leaf]] = {}
    for leaf in weights:
        if leaf.role is Role.EMBEDDING or leaf.role not in LAYER_ROLES:
            continue
        layer, own = layer_of(leaf.path), leaf.own_shape
        count = _outputs(biases.get(layer, ()), own)
        if count > 1:
            words[leaf.path] = "I" * (len(own) - count) + "O" * count
        if len(own) >= 3 and not _is_convolution(own):
            if leaf.path not in words and _EXPERTS.search(leaf.path):
                raise ValueError(
                    f"leaf {leaf.path!r} {list(leaf.shape)} may have an axis that runs over "
                    "experts or copies, by its name; expected rules.axes to say so, as in "
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

    Query, key and value, or key and value, may be one layer.

    Example:
      >>> attention_order(["key", "linear", "query", "value"])
      ('query', 'key', 'value', 'linear')
      >>> attention_order(["proj", "qkv"]), attention_order(["conv_1", "conv_2"])
      (('qkv', 'proj'), None)
      >>> attention_order(["c_k", "c_proj", "c_q", "c_v"])
      ('c_q', 'c_k', 'c_v', 'c_proj')
    """
    names = list(names)
    rest = {name.rpartition("/")[2]: name for name in names}
    if len(rest) < len(names):  # of several modules
        return None
    fused = {2: (_FUSED,), 3: (_QUERY, _FUSED)}.get(len(rest), ())
    found = _separate(list(rest)) if len(rest) == 4 else _fitting(list(rest), fused)
    order = list(dict.fromkeys(short for each in found if len(each) == 1 for short in each))
    out = [short for short in rest if short not in order]
    if not found or len(order) < len(found) or len(out) != 1:
        return None
    return tuple(rest[short] for short in (*order, *out))


def _fitting(names: Sequence[str], patterns: Sequence[re.Pattern[str]]) -> list[list[str]]:
    return [[name for name in names if each.fullmatch(name)] for each in patterns]


def _separate(names: Sequence[str]) -> list[list[str]]:
    """Those of query, key and value: one by one, or by what else is in all three names."""
    found = _fitting(names, (_QUERY, _KEY, _VALUE))
    if all(found):
        return found
    for name in names:
        for query, key, value in _TRIOS:
            for place in re.finditer(query, name):
                before, after = name[: place.start()], name[place.end() :]
                trio = [name, before + key + after, before + value + after]
                if set(trio) <= set(names):
                    return [[each] for each in trio]
    return [[], [], []]


def names_of_attention(names: Sequence[str]) -> list[str]:
    """Query, key and value among names, if all are, or those of layers that are two or all three.

    Example:
      >>> names_of_attention(["attn/q", "attn/k", "attn/v", "attn/out", "mlp/fc1"])
      ['attn/q', 'attn/k', 'attn/v']
    """
    last = [re.split(r"[/.]", name)[-1] for name in names]
    separate = _fitting(last, (_QUERY, _KEY, _VALUE))
    found = separate if all(separate) else _fitting(last, (_QKV,))
    parts = list(zip(names, last, strict=True))
    return [name for fitting in found for name, each in parts if each in fitting]


def _is_convolution(own: tuple[int, ...]) -> bool:
    """Whether a weight is plainly one: pointwise, or of the few equal taps of one in a plane."""
    widest = 1 if len(own) == 3 else WIDEST
    fields = (own[:-2], own[2:])  # of either layout
    return any(len(set(field)) == 1 and field[0] <= widest for field in fields)


def _attention(layers: Mapping[str, Leaf], known: Mapping[str, str]) -> dict[str, str]:
    """The axes of one module's weights of three axes or more, where they are an attention's."""
    words = {leaf.path: known[leaf.path] for leaf in layers.values() if leaf.path in known}
    order = attention_order(layers)
    separate = order is not None and len(order) == 4
    if order and separate and not all(layers[name].path in words for name in order):
        query, key, value, out = (layers[name].own_shape for name in order)
        heads = len(query) == len(key) == len(value) == len(out) == 3
        # Keys and values may have fewer heads, each of which serves several queries'.
        if not (heads and query[1] == out[0] and value[2] == out[1] and query[2] == key[2]):
            raise _unlike_attention([layers[name] for name in order])
        words |= {layers[name].path: "IOO" for name in order[:3]}
        words[layers[order[3]].path] = "IIO"
    heads_of = {leaf.own_shape[-2:] for leaf in layers.values() if leaf.path in words}
    for name, leaf in layers.items():
        if leaf.path in words:
            continue
        own = leaf.own_shape
        if len(own) == 3 and own[:2] in heads_of and own[1:] not in heads_of:
            words[leaf.path] = "IIO"
        elif heads_of or _FUSED.fullmatch(name):
            raise _unlike_attention([leaf])
    return words


def _unlike_attention(leaves: Sequence[Leaf]) -> ValueError:
    shown = ", ".join(f"{leaf.path!r} {list(leaf.shape)}" for leaf in leaves)
    return ValueError(
        f"the axes of {shown} cannot be told from the names; expected rules.axes to say which are "
        "inputs and which outputs, as in {r'(query|key|value)/kernel': 'IOO', r'out/kernel': "
        "'IIO'} for [D, heads, head_dim] and [heads, head_dim, D], or rules.stacked if the first "
        "axis runs over branches."
    )


def _holders(tree: Any, paths: Iterable[tuple[Any, ...]]) -> list[Any]:
    """The Equinox module that holds each leaf, None for what no such module holds."""
    module = getattr(sys.modules.get("equinox"), "Module", None)
    return [None if module is None else _holder(tree, path, module) for path in paths]


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


__all__ = ["attention_order", "ends_in_bias", "layer_of", "names_of_attention", "with_axes"]
