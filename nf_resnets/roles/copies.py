"""The axes of kernels along which they are copies of a layer, as those of experts.

Along such an output axis a later layer takes its input slice by slice, or shares, as of a softmax,
weigh the slices that a later layer adds up. Otherwise, as with heads, they are outputs.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

from nf_resnets.roles.flow import Flow
from nf_resnets.roles.graph import Node

_Tag = tuple[int, int]
"""What is known of an axis of a value: the layer and the axis of its kernel that give it, or:"""
_PLAIN = (-1, 0)
_SHARES = (-1, 1)  # along it the numbers add up to 1, or one is 1
_WEIGHED = (-1, 2)  # along it are copies, each multiplied by a share


class Copies:
    """What is known of the axes of a network's values.

    Attributes:
      found: by node, the axes of kernels that are copies.
    """

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._tags: dict[int, list[_Tag]] = {}  # by node, for each axis
        self.found: dict[int, set[int]] = collections.defaultdict(set)
        for node in flow.nodes:
            self._tags[node.id] = self._after(node)

    def of_kernel(self, at: int) -> set[int]:
        """The axes of a value that a layer's kernel gives."""
        return {p for p, tag in enumerate(self._tags[at]) if tag not in (_PLAIN, _SHARES)}

    def _after(self, node: Node) -> list[_Tag]:
        """The tags of a step's result."""
        before = [self._tags[pred] for pred in node.preds]
        if node.name == "dot_general" and node.is_layer:
            return self._after_layer(node, before[0])
        if node.name == "dot_general" and len(before) == 2:
            return self._after_product(node, *before)
        if node.name == "transpose":
            return [before[0][p] for p in node.options["permutation"]]
        if node.name == "reduce_sum":
            return [before[0][p] for p in _free(before[0], node.options["axes"])]
        tags = [_PLAIN] * len(node.shape)
        if node.name == "broadcast_in_dim" and before:
            for p, q in enumerate(node.options["broadcast_dimensions"]):
                if self._flow[node.preds[0]].shape[p] == node.shape[q]:
                    tags[q] = before[0][p]
            return tags
        for pred, others in zip(node.preds, before, strict=True):
            lengths = self._flow[pred].shape
            for p, length in enumerate(node.shape if len(lengths) == len(tags) else ()):
                if lengths[p] == length and node.name == "mul":
                    tags[p] = self._weighed(tags[p], others[p], before)
                elif lengths[p] == length and tags[p] == _PLAIN:
                    tags[p] = others[p]
        for p in self._shares(node):
            tags[p] = _SHARES
        return tags

    def _after_layer(self, node: Node, before: list[_Tag]) -> list[_Tag]:
        contracted, batch = node.options["dimension_numbers"]
        data, kernel = node.order[0], node.uses[0][0]
        for p in batch[data]:
            self._note(before[p])
        for p, q in zip(contracted[data], contracted[kernel], strict=True):
            if before[p] == _WEIGHED and len(contracted[data]) > 1:
                self.found[node.id].add(q)
        of_data = [before[p] for p in _free(before, contracted[data], batch[data])]
        outputs = _free(node.uses[0][1].shape, contracted[kernel], batch[kernel])
        of_kernel = [(node.id, q) for q in outputs]
        free = of_data + of_kernel if data == 0 else of_kernel + of_data
        return [before[p] for p in batch[data]] + free

    def _after_product(self, node: Node, one: list[_Tag], two: list[_Tag]) -> list[_Tag]:
        """The tags of a product of data; which kernel gave an axis is not followed further."""
        contracted, batch = node.options["dimension_numbers"]
        tags = [self._weighed(one[p], two[q], [one, two]) for p, q in zip(*batch, strict=True)]
        tags += [one[p] for p in _free(one, contracted[0], batch[0])]
        tags += [two[p] for p in _free(two, contracted[1], batch[1])]
        return [tag if tag in (_SHARES, _WEIGHED) else _PLAIN for tag in tags]

    def _weighed(self, one: _Tag, two: _Tag, operands: list[list[_Tag]]) -> _Tag:
        """The tag of an axis of a product; shares weigh layers that give another axis, too."""
        if one in (_PLAIN, _SHARES):
            one, two = two, one
        outputs = (sum(tag[0] == one[0] for tag in tags) for tags in operands)
        if two != _SHARES or one[0] < 0 or max(outputs) < 2:
            return two if one == _PLAIN else one
        self._note(one)
        return _WEIGHED

    def _note(self, tag: _Tag) -> None:
        if tag[0] >= 0:
            self.found[tag[0]].add(tag[1])

    def _shares(self, node: Node) -> Sequence[int]:
        """The axes along which a step's numbers are shares: divided by their sum, or one-hot."""
        flow = self._flow
        if node.name == "div" and len(node.preds) == 2:
            at = flow.behind_moves(node.preds[1])
            is_sum = flow[at].name == "reduce_sum" and flow[at].preds[0] == node.preds[0]
            return flow[at].options["axes"] if is_sum else ()
        if node.name == "eq" and len(node.preds) == 1 and node.constants:
            lengths = zip(flow[node.preds[0]].shape, node.shape, strict=False)  # none of scalars
            return [p for p, (before, after) in enumerate(lengths) if before < after]
        return ()


def _free(axes: Sequence[object], *taken: Sequence[int]) -> list[int]:
    return [p for p in range(len(axes)) if all(p not in some for some in taken)]
