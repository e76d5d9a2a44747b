"""Which of the two layouts the weights of a tree have: inputs and outputs last, or first.

``HWIO`` is ``[H, W, C_in, C_out]``, ``OIHW`` is ``[C_out, C_in, H, W]``. Where shapes speak for the
other layout than names or rules say, the tree is refused.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from nf_resnets.roles.leaf import WIDEST, Leaf, Role, length
from nf_resnets.roles.rules import LAYOUTS

_OTHER = {"HWIO": "OIHW", "OIHW": "HWIO"}


def by_layout(ndim: int, layout: str) -> str:
    """The axes of a weight with one input and one output axis.

    Example:
      >>> by_layout(4, "HWIO"), by_layout(3, "OIHW"), by_layout(2, "HWIO")
      ('HWIO', 'OIW', 'IO')
    """
    taps = "D" * max(ndim - 5, 0) + "DHW"[max(5 - ndim, 0) :]
    return taps + "IO" if layout == "HWIO" else "OI" + taps


def layouts(
    leaves: Sequence[Leaf],  # those with one axis of inputs and one of outputs
    stated: str | None,  # rules.layout
    holders: Mapping[str, Any],  # the Equinox module that holds a leaf, by the leaf's path
    own_key: Mapping[str, str],  # the last key of a path, such as "kernel"
    bias_values: Mapping[str, int],  # how many values the bias vector of a weight has
) -> dict[str, str | None]:
    """The layout of each weight by its path, None where nothing says it.

    Flax's ``kernel`` and Haiku's ``w`` have the outputs last, and a tree written by hand is taken
    to have them there. Of arrays in an Equinox module of the user's own nothing is known, nor of a
    ``weight``, as PyTorch calls what has the outputs first: their shapes may allow one layout only.
    """
    found: dict[str, str | None] = {}
    said, unsaid = [], []
    for leaf in leaves:
        holder = holders[leaf.path]
        if is_equinox_layer(holder):
            _refuse_unlike_equinox(leaf, type(holder).__name__, holder, stated)
            found[leaf.path] = "OIHW"
        elif stated is None and (holder is not None or own_key[leaf.path] == "weight"):
            unsaid.append(leaf)
        elif leaf.role is not Role.EMBEDDING:
            said.append(leaf)

    def fault(leaf: Leaf, layout: str) -> str | None:
        return _fault(leaf.own_shape, layout, bias_values.get(leaf.path))

    allowed = [name for name in LAYOUTS if not any(fault(leaf, name) for leaf in unsaid)]
    found |= dict.fromkeys(
        (leaf.path for leaf in unsaid), allowed[0] if len(allowed) == 1 else None
    )
    layout = stated or "HWIO"
    for leaf in said:
        if (wrong := fault(leaf, layout)) is not None:
            raise ValueError(
                f"leaf {leaf.path!r} {list(leaf.shape)} {wrong} in the layout {layout!r}, "
                f"{LAYOUTS[layout]}; expected rules.layout={_OTHER[layout]!r}, or rules.axes to "
                "say that it is meant."
            )
    return found


def is_equinox_layer(holder: Any) -> bool:
    """Whether what holds a leaf is one of Equinox's own layers, which have the outputs first."""
    return any(base.__module__.startswith("equinox.nn") for base in type(holder).__mro__)


def _refuse_unlike_equinox(leaf: Leaf, name: str, holder: Any, stated: str | None) -> None:
    """Refuses a weight of other axes than Equinox's layer has, as of layers made by ``vmap``."""
    known = name == "Linear" or hasattr(holder, "num_spatial_dims")
    expected = 2 if name == "Linear" else getattr(holder, "num_spatial_dims", 0) + 2
    if known and len(leaf.own_shape) != expected:
        raise ValueError(
            f"leaf {leaf.path!r} {list(leaf.shape)} has {len(leaf.own_shape)} axes"
            f"{' but the stacked one' if leaf.stacked else ''}, of which Equinox's {name} has "
            f"{expected}; expected rules.stacked to match it just if its first axis runs over "
            "branches."
        )
    if stated == "HWIO":
        raise ValueError(
            f"leaf {leaf.path!r} is held by Equinox's {name}, whose weights are [C_out, C_in, ...],"
            " and rules.layout is 'HWIO'; expected 'OIHW'."
        )


@functools.cache
def _fault(own: tuple[int, ...], layout: str, values: int | None) -> str | None:
    """What speaks against a layout and for the other one, None if nothing."""
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
        if unequal or max(taps) > WIDEST:
            return f"would have {' x '.join(map(str, taps))} taps"
    return None


def refuse_broken_chain(leaves: Sequence[Leaf]) -> None:
    """Refuses a layout in which branches, embedding and head do not fit, where the other does."""
    for layout, other in _OTHER.items():

        def plain(leaf: Leaf, layout: str = layout) -> bool:
            return leaf.weight and leaf.axes[int(leaf.stacked) :] == _axes(leaf, layout)

        branches: dict[tuple[int, ...], list[Leaf]] = {}
        for leaf in leaves:
            if leaf.role is Role.BRANCH and plain(leaf):
                branches.setdefault(leaf.branches, []).append(leaf)
        chain = [sorted(branches[k], key=lambda leaf: leaf.layer) for k in sorted(branches)]
        if not chain or any(_fault(leaf.own_shape, other, None) for of in chain for leaf in of):
            continue
        links = [pair for layers in chain for pair in itertools.pairwise(layers)]
        heads = [leaf for leaf in leaves if leaf.role is Role.HEAD and plain(leaf)]
        if len(heads) == 1 and len(heads[0].shape) == 2:
            links.append((chain[-1][-1], heads[0]))
        tables = [leaf for leaf in leaves if leaf.role is Role.EMBEDDING and leaf.weight]
        if len({leaf.shape[-1] for leaf in tables}) == 1:
            links.append((tables[0], chain[0][0]))
        if not links or not all(_gives(one, other) == _takes(two, other) for one, two in links):
            continue
        for one, two in links:
            given, taken = _gives(one, layout), _takes(two, layout)
            # A multiple may be a fused weight, a gate, or positions that are flattened.
            if given % taken and taken % given:
                raise ValueError(
                    f"leaf {one.path!r} gives {given} channels and {two.path!r} takes {taken} in "
                    f"the layout {layout!r}, where all layers fit in {other!r}; expected "
                    f"rules.layout={other!r}."
                )


def _axes(leaf: Leaf, layout: str) -> str:
    return by_layout(len(leaf.own_shape), layout)


def _gives(leaf: Leaf, layout: str) -> int:
    if leaf.role is Role.EMBEDDING:
        return leaf.shape[-1]
    return length(leaf.own_shape, _axes(leaf, layout), "O")


def _takes(leaf: Leaf, layout: str) -> int:
    return length(leaf.own_shape, _axes(leaf, layout), "I")


__all__ = ["by_layout", "is_equinox_layer", "layouts", "refuse_broken_chain"]
