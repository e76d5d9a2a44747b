"""What all initialisers share: how a tree is read and checked, and its leaves set or drawn."""

from __future__ import annotations

import functools
import hashlib
import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import random, roles
from nf_resnets.roles import LAYER_ROLES, Leaf, Role, RoleMap
from nf_resnets.roles.leaf import is_float
from nf_resnets.schemes import SchemeWarning

_HOST = (np.ndarray, np.generic)

Init = Callable[..., Any]


def takes_network(init: Init, *, alpha: bool = False) -> Init:
    """Adds ``network=`` and ``inputs=`` to an initialiser ``init(params, ..., rules=None)``.

    With them the roles of the tree are read off ``network(params, *inputs)``
    (:func:`nf_resnets.roles.read`), and the initialised tree is verified
    (:func:`nf_resnets.roles.verify`). ``alpha`` says that the scalar that multiplies a branch is
    the scheme's alpha.
    """

    @functools.wraps(init)
    def initialize(
        params: Any,
        *args: Any,
        network: Callable[..., Any] | None = None,
        inputs: tuple[Any, ...] = (),
        **options: Any,
    ) -> Any:
        if network is None:
            return init(params, *args, **options)
        if options.get("rules") is not None:
            raise ValueError("network= and rules= found; expected one of them.")
        role_map = roles.read(network, params, *inputs, alpha=alpha)
        result = init(params, *args, **options | {"rules": role_map})
        roles.verify(network, result, role_map, *inputs)
        return result

    signature = inspect.signature(init)
    added = inspect.signature(initialize, follow_wrapped=False).parameters
    parameters = [*signature.parameters.values(), added["network"], added["inputs"]]
    initialize.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return initialize


def refuse_norms(role_map: RoleMap, title: str, *, weights: bool = False) -> None:
    """Refuses a branch that normalizes its data, or, unless ``weights``, its weights."""
    normalized: dict[int, str | None] = {b.k: b.normalized for b in role_map.branches}
    if role_map.rules is not None:
        for leaf, ks in zip(role_map.leaves, role_map.beside, strict=True):
            if leaf.role is Role.NORM:
                # Rules of a user's own do not say whether data or weights are normalized.
                of_weights = leaf.path.endswith("/gain") if role_map.is_ours else weights
                normalized |= dict.fromkeys(ks, "weights" if of_weights else "data")
    for branch in role_map.branches:
        if normalized[branch.k] == "data":
            raise ValueError(
                f"residual branch {branch.name!r} contains a norm, and {title} is for "
                "branches without normalization; expected the norm to be taken out of the network, "
                "or its leaves to be matched by keep= if it is meant."
            )
        if normalized[branch.k] == "weights" and not weights:
            raise ValueError(
                f"residual branch {branch.name!r} normalizes its weights, and {title} "
                "scales weights, without effect there; expected plain weights, or a scheme that "
                "leaves them as they are, such as 'skipinit'."
            )


def warn_missing(role_map: RoleMap, title: str, role: Role, why: str) -> None:
    """Warns an initialiser's caller of a tree that has not a leaf of the role for each branch."""
    pairs = zip(role_map.leaves, role_map.beside, strict=True)
    count = sum(max(leaf.count, len(ks)) for leaf, ks in pairs if leaf.role is role)
    depth = role_map.num_branches
    if count < max(depth, role is Role.CHANNEL_BIAS):
        parts = f"{role.value.replace('_', ' ')}{'es' if role.value.endswith('s') else 's'}"
        branches = f" for {depth} residual branches" if depth else ""
        sentence = f"{count or 'no'} {parts} found in params{branches}; {why}."
        warnings.warn(f"{title}: {sentence}", SchemeWarning, stacklevel=4)


def cast_like(old: Any, new: Any) -> Any:
    """Returns ``new``, an array or a number, with shape, dtype, sharding and type of ``old``."""
    if isinstance(old, _HOST) and is_concrete(new):
        copy = np.broadcast_to(np.asarray(new), old.shape).astype(old.dtype)
        return copy[()] if isinstance(old, np.generic) else copy
    drawn = isinstance(new, jax.Array) and new.ndim > 0 and not new.weak_type
    if drawn and (new.shape, new.dtype) == (old.shape, old.dtype):
        value = new  # as it is, for there may be 10,000
    else:
        dtype = jax.dtypes.canonicalize_dtype(old.dtype)
        value = jnp.broadcast_to(jnp.asarray(new), old.shape).astype(dtype)
    if isinstance(old, _HOST):  # and the new value is traced
        return value
    if is_concrete(old) and is_concrete(value) and value.sharding != old.sharding:
        value = jax.device_put(value, old.sharding)
    return value


def scaled(old: Any, factor: Any) -> Any:
    """Returns ``factor * old`` in the dtype of ``old``, half precision rounded once.

    The axes of a factor that is an array are the first ones of ``old``.
    """
    dtype = _at_least_float32(old.dtype)
    if hasattr(factor, "reshape"):
        factor = factor.reshape(*factor.shape, *[1] * (old.ndim - factor.ndim))
    if isinstance(factor, np.ndarray):
        factor = factor.astype(dtype)
    return cast_like(old, old.astype(dtype) * factor)


def _at_least_float32(dtype: Any) -> Any:
    return dtype if dtype.itemsize >= 4 else np.dtype(np.float32)


def float_leaves(params: Any) -> tuple[list[jax.Array], Callable[..., Any]]:
    """The leaves of a tree that have a derivative, and the function that makes a tree of others.

    Half precision becomes float32. ``put(values, rest=True)`` is the tree with these in their
    place; the rest, as functions of an Equinox module, stays as it is; without ``rest`` it is None.
    """
    leaves, treedef = jax.tree.flatten(params)
    at = [at for at, leaf in enumerate(leaves) if is_float(leaf)]
    if not at:
        raise TypeError(
            f"params is a {type(params).__name__} without a floating-point array; expected a tree "
            "of parameters."
        )

    def put(values: Sequence[Any], *, rest: bool = True) -> Any:
        filled = [*leaves] if rest else [None] * len(leaves)
        for place, value in zip(at, values, strict=True):
            filled[place] = value
        return jax.tree.unflatten(treedef, filled)

    values = [jnp.asarray(leaves[place]) for place in at]
    return [value.astype(_at_least_float32(value.dtype)) for value in values], put


def with_deviation(leaf: Leaf, old: Any, std: Any) -> Any:
    """Returns ``old`` times the number above 0 that makes its deviation about 0 equal to ``std``.

    ``sqrt(mean(old**2))`` is taken over the whole leaf, of a stacked one over each branch, whose
    ``std`` is ``[n, 1, ..., 1]``. A concrete leaf of zeros is refused; under ``jit`` it stays one.
    """
    numpy: Any = np if isinstance(old, _HOST) else jnp
    values = old.astype(_at_least_float32(old.dtype))
    axes = tuple(range(leaf.stacked, values.ndim))
    rms = (_rms if numpy is np else _compiled_rms)(numpy, values, axes)
    if is_concrete(rms) and not bool(numpy.all((rms > 0) & numpy.isfinite(rms))):
        raise ValueError(
            f"leaf {leaf.path!r} has the standard deviation {float(rms.min())!r}; expected drawn "
            "weights to rescale, or key= to draw them."
        )
    factor = numpy.asarray(std, values.dtype) / numpy.where(rms == 0, 1, rms).astype(values.dtype)
    return scaled(old, factor.reshape(factor.shape if leaf.stacked else (1,) * values.ndim))


def _rms(numpy: Any, values: Any, axes: tuple[int, ...]) -> Any:
    # Of the largest number first, for the square of a small one would be 0 in float32.
    largest = numpy.max(numpy.abs(values), axis=axes, keepdims=True)
    divisor = numpy.where(largest == 0, 1, largest).astype(largest.dtype)
    squares = numpy.square(numpy.abs(values) / divisor)
    return largest * numpy.sqrt(numpy.mean(squares, axis=axes, keepdims=True))


# One call for a leaf, compiled once for a shape, and not seven.
_compiled_rms = jax.jit(_rms, static_argnums=(0, 2))


def is_concrete(value: Any) -> bool:
    """Whether the values of a leaf can be looked at (it is not traced)."""
    return not isinstance(value, jax.core.Tracer)


def all_zero(value: Any) -> bool:
    """Whether a concrete array holds nothing but zeros, asked inside ``jit`` too."""
    on_host = not isinstance(value, jax.Array) or (
        value.is_fully_addressable and all(each.platform == "cpu" for each in value.devices())
    )
    if on_host:  # without a copy, and without a program for each shape
        return not np.any(np.asarray(value))
    with jax.ensure_compile_time_eval():
        return not bool(jnp.any(value != 0))


def draw(
    params: Any,
    key: jax.Array,
    role_map: RoleMap,
    sample: Callable[[jax.Array, Leaf, Any], jax.Array],
    layers: tuple[Role, ...] = LAYER_ROLES,
) -> Any:
    """Draws the weights of ``layers`` by ``sample(key, leaf, dtype)``; sets bias vectors to 0.

    Embeddings ``[V, D]`` are drawn from ``N(0, 1 / D)`` by every scheme. Each leaf's randomness
    comes from the key and the leaf's own path, so that it does not change when others come or go.
    """
    if not any(leaf.role in LAYER_ROLES and leaf.weight for leaf in role_map.leaves):
        path = role_map.leaves[0].path
        raise ValueError(f"no layer's weight found to draw, beside leaves like {path!r}.")

    def fill(leaf: Leaf, value: Any) -> Any:
        if leaf.role not in layers:
            return value
        if not leaf.weight:
            return cast_like(value, 0)
        # Half-precision weights are drawn in float32 and rounded once.
        dtype = jax.dtypes.canonicalize_dtype(_at_least_float32(value.dtype))
        # 64 bits of the path's hash; 32 would meet twice among 10,000 paths.
        digest = hashlib.blake2b(leaf.path.encode(), digest_size=8).digest()
        leaf_key = _folded(key, np.frombuffer(digest, "<u4"))
        if leaf.role is Role.EMBEDDING:
            drawn = leaf.length("O") ** -0.5 * random.normal(leaf_key, leaf.shape, dtype)
        else:
            drawn = sample(leaf_key, leaf, dtype)
        return cast_like(value, drawn)

    return role_map.map(fill, params)


@jax.jit
def _folded(key: jax.Array, words: jax.Array) -> jax.Array:
    return jax.random.fold_in(jax.random.fold_in(key, words[0]), words[1])


def check_positive(**numbers: Any) -> None:
    """Refuses numbers that are not finite and above 0."""
    for name, value in numbers.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name}={value!r} found; expected a finite number above 0.")
