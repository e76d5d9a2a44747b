"""How an initialiser gives a leaf a new value without changing what kind of leaf it is."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets.roles import LAYER_ROLES, Leaf, RoleMap


def like(old: Any, new: Any) -> Any:
    """Returns ``new`` with the dtype, sharding and array type of ``old``.

    Args:
      old: the leaf as it was: a NumPy array, a JAX array or a traced value.
      new: its new value, of the same shape or a scalar.
    """
    if isinstance(old, np.ndarray | np.generic):
        return np.broadcast_to(np.asarray(new), old.shape).astype(old.dtype)
    value = jnp.broadcast_to(jnp.asarray(new), old.shape).astype(old.dtype)
    if is_concrete(old) and is_concrete(value) and value.sharding != old.sharding:
        value = jax.device_put(value, old.sharding)
    return value


def scaled(old: Any, factor: Any) -> Any:
    """Returns ``factor * old`` in the dtype of ``old``."""
    return like(old, old * factor)


def is_concrete(value: Any) -> bool:
    """Whether the values of a leaf can be looked at (it is not traced)."""
    return not isinstance(value, jax.core.Tracer)


def all_zero(value: Any) -> bool:
    """Whether a concrete array holds nothing but zeros."""
    return not bool(np.any(value)) if isinstance(value, np.ndarray) else not bool(jnp.any(value))


def draw(
    params: Any,
    key: jax.Array,
    role_map: RoleMap,
    sample: Callable[[jax.Array, Leaf, Any], jax.Array],
) -> Any:
    """Draws every weight of stem, branches, shortcuts and head; sets their bias vectors to 0.

    Each leaf's randomness comes from the key and the leaf's own path, so that it does not change
    when other leaves come or go.

    Args:
      params: the tree whose leaves give shapes and dtypes.
      key: a JAX PRNG key.
      role_map: the roles of the tree.
      sample: ``sample(key, leaf, dtype) -> [*leaf.shape]``.

    Raises:
      TypeError: if ``key`` is not a PRNG key.
    """
    check_key(key)

    def fill(leaf: Leaf, value: Any) -> Any:
        if leaf.role not in LAYER_ROLES:
            return value
        if not leaf.weight:
            return like(value, 0)
        # Half-precision weights are drawn in float32 and rounded once.
        dtype = jnp.promote_types(value.dtype, jnp.float32)
        dtype = jax.dtypes.canonicalize_dtype(dtype)
        leaf_key = jax.random.fold_in(key, zlib.crc32(leaf.path.encode()))
        return like(value, sample(leaf_key, leaf, dtype))

    return role_map.map(fill, params)


def check_key(key: Any) -> None:
    """Refuses what is not a JAX PRNG key (typed, or a raw uint32 pair)."""
    dtype = getattr(key, "dtype", None)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and key.shape == ()
    raw = dtype == np.uint32 and getattr(key, "ndim", 0) == 1
    if not typed and not raw:
        found = (
            f"{type(key).__name__} {key!r}"
            if not hasattr(key, "shape")
            else (f"array of {dtype} {list(key.shape)}")
        )
        raise TypeError(f"key is a {found}; expected one PRNG key, such as jax.random.key(0).")


__all__ = ["all_zero", "check_key", "draw", "is_concrete", "like", "scaled"]
