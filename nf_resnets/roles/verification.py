"""The check of a role map by computing, whether it was read or written as rules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets.roles.leaf import Branch, Leaf, Role, fans, is_float
from nf_resnets.roles.role_map import RoleMap

_BIAS = 0.1  # the deviation of biases; one far below 0 may leave a ReLU nothing
_TRIES = 20  # with how many keys, where random numbers may drop a branch
_STEP = 0.01  # how much a step of SGD changes a leaf's number of the largest gradient


def verify(network: Callable[..., Any], params: Any, role_map: RoleMap, *inputs: Any) -> None:
    r"""Verifies by computing that the layers of a role map are what it calls them.

    Gradients of the outputs, on values drawn from the shapes, say three things:

    1. With the last layer of every branch at 0, no other layer of a branch changes the output, but
       for those that leave it by another way. (In a branch without biases, zeros of any layer may
       pass to its end; then their order does not show.)
    2. With last layers that are not 0, each of them changes it.
    3. On the values of ``params``, with a head that is not 0, every layer of a branch of ``m``
       layers gets a gradient within ``m + 1`` steps of SGD: of two factors that are 0, neither ever
       does. Shapes have no values, and are not checked so.

    Where a leaf of ``params`` is traced, as under ``jit``, nothing is computed, and the tree's
    structure alone is checked. Otherwise the network's backward pass is compiled once and runs 2
    to ``m + 3`` times, mostly 4. Where an input is a PRNG key, a layer without a gradient is tried
    with other keys, as its branch may be dropped at random.

    Args:
      network: ``network(params, *inputs)``, its forward pass, of any library.
      params: an initialised tree, or the shapes of one. It is not changed.
      role_map: the roles of its leaves.
      *inputs: arrays, or trees of them, or their shapes; images and the like are drawn afresh.

    Raises:
      ValueError: if one of the three does not hold, naming the leaf, or the tree is another one.

    Example:
      >>> from nf_resnets import roles
      >>> block = {"up": jnp.ones((4, 8)), "b": jnp.ones((1, 8)), "down": jnp.ones((8, 4))}
      >>> tree = {"block_1": block}
      >>> def network(params, x):
      ...     block = params["block_1"]
      ...     return x + jnp.tanh(x @ block["up"] + block["b"]) @ block["down"]
      >>> x = jnp.ones((2, 4))
      >>> verify(network, tree, roles.read(network, tree, x), x)
      >>> rules = roles.Rules(branch=r"block_(\d)/(up|down)", order=("down", "up"))
      >>> by_name = roles.assign(tree, rules)
      >>> verify(network, tree, by_name, x)
      Traceback (most recent call last):
      ValueError: leaf 'block_1/down' [8, 4] changes the output ... expected ...
    """
    role_map.part(params, whole=True)
    given = jax.tree.leaves(params)
    if any(isinstance(value, jax.core.Tracer) for value in given) or not role_map.branches:
        return
    check = _Check(network, params, role_map, inputs)
    check.last_layers_make_branches_vanish()
    check.last_layers_change_the_output()
    if not any(isinstance(value, jax.ShapeDtypeStruct) for value in given):
        check.layers_get_gradients(given)


class _Check:
    """A network with values to compute with."""

    def __init__(
        self, network: Callable[..., Any], params: Any, role_map: RoleMap, inputs: Sequence[Any]
    ) -> None:
        self.map, self.leaves = role_map, role_map.leaves
        given, treedef = jax.tree.flatten(params)
        self.floats = [at for at, value in enumerate(given) if is_float(value)]
        self.random = np.random.default_rng(0)
        tables = [leaf.length("I") for leaf in self.leaves if leaf.role is Role.EMBEDDING]
        self.num_tokens = min(tables, default=2)
        self.inputs = jax.tree.map(self._input, tuple(inputs))
        self.tries = _TRIES if any(map(_is_key, jax.tree.leaves(self.inputs))) else 1
        self.drawn = [self._draw(leaf, v) for leaf, v in zip(self.leaves, given, strict=True)]
        layers = [(at, leaf) for at, leaf in enumerate(self.leaves) if leaf.role is Role.BRANCH]
        last = [(at, leaf) for at, leaf in layers if leaf.layer == leaf.m]
        self.last = [at for at, leaf in last if leaf.weight]
        self.others = [at for at, leaf in layers if leaf.weight and leaf.layer != leaf.m]
        # The bias vectors of last layers, which a gate may follow. Those that rules name may be
        # another layer's, and show it.
        self.last_biases = [at for at, leaf in last if not leaf.weight and role_map.rules is None]

        def loss(floats: Sequence[jax.Array], inputs: Any) -> jax.Array:
            values = [*self.drawn]
            for at, value in zip(self.floats, floats, strict=True):
                values[at] = value
            random = np.random.default_rng(1)  # a direction in which nothing cancels
            total = jnp.zeros(())
            for out in jax.tree.leaves(network(jax.tree.unflatten(treedef, values), *inputs)):
                if is_float(out):
                    direction = random.normal(size=out.shape).astype(np.float32)
                    total += jnp.vdot(direction, (out.real + out.imag).astype(jnp.float32))
            return total

        # Compiled here, it runs as well where a caller is being traced.
        floats = [self.drawn[at] for at in self.floats]
        self._gradient = jax.jit(jax.grad(loss)).lower(floats, self.inputs).compile()

    def gradients(self, values: Sequence[Any], turn: int = 0) -> dict[int, np.ndarray]:
        """The gradient of each floating-point leaf, with other keys in each turn."""
        inputs = jax.tree.map(lambda value: _folded(value, turn), self.inputs)
        gradients = self._gradient([values[at] for at in self.floats], inputs)
        return {at: np.asarray(each) for at, each in zip(self.floats, gradients, strict=True)}

    def _input(self, value: Any) -> Any:
        dtype = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
        traced = isinstance(value, jax.core.Tracer)
        concrete = isinstance(value, jax.Array | np.ndarray) and not traced
        if jnp.issubdtype(dtype, jax.dtypes.prng_key):
            with jax.ensure_compile_time_eval():
                return value if concrete else jax.random.key(0)
        if jnp.issubdtype(dtype, jnp.floating):
            return np.asarray(self.random.normal(size=np.shape(value)), dtype)
        if concrete and np.unique(np.asarray(value)).size > 1:
            return value
        return np.asarray(self.random.integers(0, self.num_tokens, np.shape(value)), dtype)

    def _draw(self, leaf: Leaf, given: Any) -> Any:
        """A value of a leaf that hides nothing behind zeros."""
        if not is_float(given):
            is_shape = isinstance(given, jax.ShapeDtypeStruct)
            return np.zeros(given.shape, given.dtype) if is_shape else given
        if leaf.role is Role.KEEP:
            # Of shapes alone, a matrix is taken for an adapter.
            is_zero = isinstance(given, jax.ShapeDtypeStruct) or not np.any(given)
            like = np.zeros if sum(n > 1 for n in leaf.own_shape) > 1 else np.ones
            return like(given.shape, given.dtype) if is_zero else given
        if leaf.role in (Role.MULTIPLIER, Role.ALPHA, Role.NORM):
            return np.ones(given.shape, given.dtype)
        if not leaf.weight:
            return self._small(given)
        deviation = 1.0 if leaf.role is Role.EMBEDDING else fans(leaf)[0] ** -0.5
        return np.asarray(self.random.normal(size=given.shape) * deviation, given.dtype)

    def _small(self, like: Any) -> np.ndarray:
        return np.asarray(_BIAS * self.random.normal(size=like.shape), like.dtype)

    def last_layers_make_branches_vanish(self) -> None:
        """Refuses layers that are not last and change the output beside last layers of zeros."""
        zeroed = _replaced(self.drawn, self.last + self.last_biases, np.zeros_like)
        gradients = self.gradients(zeroed)
        # Weights that a network divides by their length cannot be 0.
        if not _are_finite(gradients.values()):
            return
        for at in self.others:
            leaf = self.leaves[at]
            if np.any(gradients[at]) and not leaf.leaves_branch:
                lasts = [self.leaves[other] for other in self.last]
                beside = [repr(last.path) for last in lasts if {*last.branches} & {*leaf.branches}]
                raise ValueError(
                    f"leaf {leaf.path!r} {list(leaf.shape)} changes the output while "
                    f"{', '.join(beside[:3])} is zero, the last layer of its residual branch by "
                    "the roles; expected the last layers to be those that the network computes "
                    "last."
                )

    def last_layers_change_the_output(self) -> None:
        """Refuses a branch whose last layer does nothing."""
        scale = self.map.num_branches**-0.5  # so that the signal of many branches stays finite
        values = _replaced(self.drawn, self.last, lambda v: (v * scale).astype(v.dtype))
        kept = [at for at in self.floats if self.leaves[at].role is Role.KEEP]
        hidden = [at for at in kept if not np.any(values[at])]  # such a gate would hide all
        values = _replaced(values, hidden, self._small)
        idle = self._idle_layer(self.last, values, self.tries)
        if idle is None:
            return
        at, row = idle
        raise ValueError(
            f"leaf {self.leaves[at].path!r} {list(self.leaves[at].shape)}, the last layer of "
            f"residual branch {self._branch(at, row).name!r}, does not change the output; expected "
            "a layer of the network."
        )

    def layers_get_gradients(self, given: Sequence[Any]) -> None:
        """Refuses a layer that gets no gradient in ``m + 1`` steps of SGD."""
        values = _replaced(given, self.floats, np.asarray)
        for at, leaf in enumerate(self.leaves):
            if leaf.role is Role.HEAD and leaf.weight:
                values[at] = self.drawn[at]
        turns = max(branch.m for branch in self.map.branches) + self.tries
        idle = self._idle_layer(self.others + self.last, values, turns, trained=True)
        if idle is None:
            return
        leaf, branch = self.leaves[idle[0]], self._branch(*idle)
        zero = [repr(other.path) for other in self._zero_factors(branch.k, values)]
        if not zero:
            return  # the gradient is too small for the dtype
        raise ValueError(
            f"leaf {leaf.path!r} {list(leaf.shape)} of residual branch {branch.name!r} "
            f"gets no gradient in {leaf.m + self.tries} steps of SGD, with zeros in "
            f"{', '.join(zero[:4])}; expected one zero factor in a branch at most."
        )

    def _zero_factors(self, k: int, values: Sequence[Any]) -> list[Leaf]:
        """The leaves beside a branch that are zero there, biases aside."""
        zero = []
        for leaf, branches, value in zip(self.leaves, self.map.beside, values, strict=True):
            biases = (Role.SCALAR_BIAS, Role.CHANNEL_BIAS, *(() if leaf.weight else (Role.BRANCH,)))
            if k in branches and is_float(value) and leaf.role not in biases:
                row = branches.index(k) * leaf.count // len(branches)
                zero += [leaf] * (not np.any(value.reshape(leaf.count, -1)[row]))
        return zero

    def _idle_layer(
        self, places: Iterable[int], values: Sequence[Any], turns: int, *, trained: bool = False
    ) -> tuple[int, int] | None:
        """A leaf, and its row in a stack, that gets no gradient in some turns, trained or not."""
        waiting = {(at, row) for at in places for row in range(self.leaves[at].count)}
        for turn in range(turns):
            gradients = self.gradients(values, turn)
            rows = {at: gradients[at].reshape(self.leaves[at].count, -1) for at, _ in waiting}
            waiting = {(at, row) for at, row in waiting if not rows[at][row].any()}
            if not waiting or not _are_finite(gradients.values()):
                return None
            if trained:
                values = [
                    _stepped(value, gradients[at]) if at in gradients else value
                    for at, value in enumerate(values)
                ]
        return min(waiting)

    def _branch(self, at: int, row: int) -> Branch:
        k = self.leaves[at].branches[row if self.leaves[at].stacked else 0]
        return self.map.branches[k - 1]


def _replaced(
    values: Sequence[Any], places: Iterable[int], make: Callable[[Any], Any]
) -> list[Any]:
    """The values with those at some places made anew."""
    result = [*values]
    for at in places:
        result[at] = make(values[at])
    return result


def _are_finite(arrays: Iterable[np.ndarray]) -> bool:
    return all(bool(np.isfinite(array).all()) for array in arrays)


def _is_key(value: Any) -> bool:
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return True
    return value.dtype == np.uint32 and value.shape == (2,)


def _folded(value: Any, turn: int) -> Any:
    """The key of a turn; other values, and the key of turn 0, are as they are."""
    if not turn or not _is_key(value):
        return value
    fold = functools.partial(jax.random.fold_in, data=turn)
    for _ in range(0 if value.dtype == np.uint32 else value.ndim):
        fold = jax.vmap(fold)
    with jax.ensure_compile_time_eval():
        return fold(value)


def _stepped(value: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """A step of SGD whose largest change is ``_STEP``."""
    largest = np.abs(gradient).max(initial=0)
    return (value - _STEP / (largest or 1) * gradient).astype(value.dtype)
