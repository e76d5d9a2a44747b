"""What the tests know of a network: its tree, its rules, and by hand what each leaf is."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets.init import Rules

CLASSES = 5
IMAGES = jax.ShapeDtypeStruct((2, 4, 4, 3), jnp.float32)


@dataclasses.dataclass(frozen=True)
class Network:
    """``ends`` says what each array is, by the end of its path, without the library's rules.

    These are ``inner`` and ``last`` weights of a branch, their bias vectors ``inner_bias`` and
    ``last_bias``, ``stem``, ``shortcut``, ``head``, their bias vectors ``bias`` and ``head_bias``,
    the scalars ``scalar_bias``, ``multiplier`` and ``alpha``.
    """

    params: Any
    rules: Rules | None
    ends: dict[str, str]
    branches: int

    @functools.cached_property
    def kinds(self):
        """What each array is, by its path: the longest end that fits counts."""
        ends = sorted(self.ends, key=len)
        return {path: self.ends[[end for end in ends if path.endswith(end)][-1]]
                for path in by_path(self.params)}  # fmt: skip


def by_path(tree):
    """The arrays of a tree by path; NNX ends a path in ``/value`` in some versions."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="/").removesuffix("/value"): leaf
        for path, leaf in flat
        if hasattr(leaf, "shape")
    }


def pairs(*trees):
    """``(path, leaf of each)`` for every array of trees that are alike."""
    found = [by_path(tree) for tree in trees]
    assert all(each.keys() == found[0].keys() for each in found)
    return [(path, *(each[path] for each in found)) for path in found[0]]


def filled(tree, seed=0):
    """The tree with every array drawn from N(0, 0.09), so that no value is 0 or 1 by chance."""
    rng = np.random.default_rng(seed)

    def draw(leaf):
        if not hasattr(leaf, "shape"):
            return leaf
        return jnp.asarray(0.3 * rng.standard_normal(leaf.shape), leaf.dtype)

    return jax.tree.map(draw, tree)


def replaced(tree, values):
    """The tree with the arrays at the given paths replaced."""
    flat, treedef = jax.tree_util.tree_flatten_with_path(tree)
    leaves = []
    for path, leaf in flat:
        name = jax.tree_util.keystr(path, simple=True, separator="/").removesuffix("/value")
        leaves.append(values.get(name, leaf))
    return treedef.unflatten(leaves)
