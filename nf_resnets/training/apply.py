"""How a step calls a network: one signature for networks with and without running statistics."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax

from nf_resnets import schemes

ApplyFn = Callable[[Any, Any, jax.Array, Any], tuple[jax.Array, Any]]
"""``apply(params, batch_stats, images, keys) -> (logits, new batch_stats)``; ``keys`` are PRNG keys
``[b]``, one for each image, or None."""


def train_apply(model: Any, *, shards: int = 1) -> ApplyFn:
    """Makes the function by which a step calls a model of this library in training.

    Args:
      model: a module of :mod:`nf_resnets.models`.
      shards: over how many replicas the batch is split; each computes ``bn_groups / shards`` of
        BatchNorm's slices, so that the numbers are those of one device.

    Raises:
      ValueError: if ``model.bn_groups`` cannot be spread over the replicas; from the function, if
        the network has BatchNorm and ``batch_stats`` is empty.
    """
    if _has_batch_norm(model):
        if model.bn_groups % shards:
            raise ValueError(
                f"bn_groups={model.bn_groups} cannot be spread over {shards} devices; expected a "
                f"multiple of {shards} (one BatchNorm slice per device: bn_groups={shards})."
            )
        model = model.clone(bn_groups=model.bn_groups // shards)
    # A network that draws nothing does not look at them, and then they are not computed.
    takes_keys = "keys" in inspect.signature(type(model).__call__).parameters

    def apply(
        params: Any, batch_stats: Any, images: jax.Array, keys: Any = None
    ) -> tuple[jax.Array, Any]:
        options = {"keys": keys} if takes_keys else {}
        if not _has_batch_norm(model):
            return model.apply({"params": params}, images, train=True, **options), batch_stats
        variables = _with_statistics(params, batch_stats)
        logits, updated = model.apply(
            variables, images, train=True, mutable=["batch_stats"], **options
        )
        return logits, updated["batch_stats"]

    return apply


def eval_apply(model: Any) -> ApplyFn:
    """Makes the function by which an evaluation calls a model of this library."""

    def apply(
        params: Any, batch_stats: Any, images: jax.Array, keys: Any = None
    ) -> tuple[jax.Array, Any]:
        variables = {"params": params}
        if _has_batch_norm(model):
            variables = _with_statistics(params, batch_stats)
        return model.apply(variables, images, train=False), batch_stats

    return apply


def _has_batch_norm(model: Any) -> bool:
    return schemes.get(model.scheme).anatomy.has_batch_norm


def _with_statistics(params: Any, batch_stats: Any) -> dict[str, Any]:
    if not batch_stats:
        raise ValueError(
            "batch_stats is empty, and the network has BatchNorm; expected the statistics that "
            "model.init returns beside the parameters: create_state(..., batch_stats=...)."
        )
    return {"params": params, "batch_stats": batch_stats}


__all__ = ["ApplyFn", "eval_apply", "train_apply"]
