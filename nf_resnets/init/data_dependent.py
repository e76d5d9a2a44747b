"""What a pass of a batch finds for the parameters of a network, by their paths."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets.init.tree import is_concrete, refuse_not_finite
from nf_resnets.roles import path_name


def measuring(
    apply_fn: Callable[..., Any], batch: Any, collection: str, *, parts: int = 1
) -> Callable[[Any], dict[str, jax.Array]]:
    """Compiles the pass of a batch in which the layers of a network find what they are to find.

    Args:
      apply_fn: Flax's ``model.apply``.
      batch: images ``[B, H, W, C]``.
      collection: in which the layers put what they find (see :mod:`nf_resnets.calibration`).
      parts: into how many equal parts the batch is cut, which pass one after another, each with
        what was found before it.

    Returns:
      A function from the tree under ``"params"`` to a dict from path to array, in the order of the
      layers, empty if none found anything.

    Raises:
      ValueError: if the batch has fewer than 2 images in each part, or cannot be cut into so many;
        from the function, if ``params`` is a tree of all variables.
      TypeError: if ``apply_fn`` is no function.
    """
    check_apply(apply_fn)
    try:
        inspect.signature(apply_fn).bind({}, batch, mutable=[collection])
    except TypeError:
        raise TypeError(
            "apply_fn does not take (variables, images, mutable=[...]); expected model.apply of a "
            "Flax network whose layers find the numbers, as those of nf_resnets.models do."
        ) from None
    count = jnp.shape(batch)[0] if jnp.ndim(batch) else 0
    if count < 2:
        raise ValueError(f"a batch of {count} images found; expected at least 2, better 128.")
    if parts < 1 or count % parts or count < 2 * parts:
        raise ValueError(
            f"parts={parts} found; expected a batch of {count} images to be cut into equal parts "
            "of 2 or more."
        )

    in_order: list[str] = []

    @jax.jit
    def one_pass(params: Any, images: Any, before: Any) -> Any:
        given = {"params": params} | ({collection: before} if before else {})
        _, found = apply_fn(given, images, mutable=[collection])
        found = found.get(collection, {})
        # The layers as they were computed: jit returns dicts with their keys sorted.
        in_order[:] = _paths(found)
        return found

    def measure(params: Any) -> dict[str, jax.Array]:
        if isinstance(params, Mapping) and "params" in params:
            raise ValueError("params has the key 'params'; expected the tree under it.")
        refuse_not_finite(params)
        last: Any = {}
        for images in jnp.split(batch, parts) if parts > 1 else [batch]:
            last = one_pass(params, images, last)
        flat, _ = jax.tree_util.tree_flatten_with_path(last)
        found = {path_name(path): value for path, value in flat}
        return {path: found[path] for path in in_order}

    return measure


def _paths(tree: Any) -> list[str]:
    """The paths of a tree of dicts, in the order in which the keys were set."""
    return [
        "/".join(filter(None, (name, path)))
        for name, below in tree.items()
        for path in (_paths(below) if isinstance(below, Mapping) else [""])
    ]


def check_apply(apply_fn: Any) -> None:
    """Refuses what is no function of variables and images: parameters, or a model itself."""
    if not callable(apply_fn) or hasattr(apply_fn, "apply"):
        raise TypeError(f"apply_fn is a {type(apply_fn).__name__}; expected model.apply.")


def check_finite(found: Mapping[str, jax.Array], what: str) -> None:
    """Refuses what is not finite; of traced values nothing can be said.

    Args:
      found: from path to array.
      what: what the numbers are, in the plural.

    Raises:
      ValueError: if a number is not finite.
    """
    wrong = [
        path
        for path, value in found.items()
        if is_concrete(value) and not bool(jnp.isfinite(value).all())
    ]
    if wrong:
        more = f" (and of {len(wrong) - 1} others)" if wrong[1:] else ""
        raise ValueError(
            f"the batch's {what} at leaf {wrong[0]!r}{more} are not finite; expected finite images "
            "and weights under which the signal neither overflows nor is NaN."
        )


def check_labels(logits: Any, labels: Any) -> None:
    """Refuses labels that are not one class for each example; traced values are not looked at.

    Raises:
      TypeError: if the logits are no array.
      ValueError: if they are of another shape or dtype, as one-hot labels are, or out of range.
    """
    check_logits(logits)
    shape, count = list(logits.shape[:-1]), logits.shape[-1]
    found = labels if hasattr(labels, "dtype") else np.asarray(labels)
    expected = f"expected one integer from 0 to {count - 1} for each example, of shape {shape}."
    if list(found.shape) != shape or not jnp.issubdtype(found.dtype, jnp.integer):
        raise ValueError(
            f"labels of shape {list(found.shape)} and dtype {found.dtype} found; {expected}"
        )
    if is_concrete(found):
        wrong = np.asarray(found)[(np.asarray(found) < 0) | (np.asarray(found) >= count)]
        if wrong.size:
            raise ValueError(f"labels has the value {wrong.flat[0]}; {expected}")


def check_logits(logits: Any) -> None:
    """Refuses what is not one array, as of a network of several heads.

    Raises:
      TypeError: if it is none.
    """
    if not hasattr(logits, "shape"):
        raise TypeError(
            f"the network gives a {type(logits).__name__}; expected one array of logits [B, c], so "
            "pass a function that takes it out."
        )


def check_paths(found: Mapping[str, Any], params: Any) -> None:
    """Refuses what was measured at paths that the tree does not have.

    Raises:
      ValueError: that names one of them.
    """
    there = {path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)}
    counts = {f"{path}_count" for path in found}  # of the passes, which are no parameters
    for path in found:
        if path not in there | counts:
            raise ValueError(
                f"the network has {path!r}, and params has no such leaf; expected params as "
                "apply_fn passes them on, without another level of names."
            )


def by_path(params: Any, change: Callable[[str, Any], Any]) -> Any:
    """Applies ``change(path, leaf)`` to every leaf and returns a tree of the same kind."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: change(path_name(path), leaf), params
    )


__all__ = [
    "by_path", "check_apply", "check_finite", "check_labels", "check_logits", "check_paths",
    "measuring",
]  # fmt: skip
