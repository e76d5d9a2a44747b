"""How a step calls a network: one signature for networks with and without running statistics."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
from flax import linen as nn

from nf_resnets import schemes

ApplyFn = Callable[[Any, Any, jax.Array, Any], tuple[jax.Array, Any]]
"""``apply(params, batch_stats, images, keys) -> (logits, new batch_stats)``; ``keys`` are PRNG keys
``[b]``, one for each image, or None."""


def train_apply(model: Any, *, shards: int = 1) -> ApplyFn:
    """Makes the function by which a step calls a network in training; an ``ApplyFn`` stays.

    Of ``shards`` replicas that split the batch each computes ``bn_groups / shards`` of BatchNorm's
    slices, so that the numbers are those of one device.
    """
    if has_batch_norm(model):
        if model.bn_groups % shards:
            raise ValueError(
                f"bn_groups={model.bn_groups} cannot be spread over {shards} parts of a batch "
                f"(devices, times micro-batches); expected a multiple of {shards} (one BatchNorm "
                f"slice per part: bn_groups={shards})."
            )
        model = model.clone(bn_groups=model.bn_groups // shards)
    return _module_apply(model, train=True) if isinstance(model, nn.Module) else model


def eval_apply(model: Any) -> ApplyFn:
    """As :func:`train_apply`, but in a test, where ``keys`` are None."""
    return _module_apply(model, train=False) if isinstance(model, nn.Module) else model


class Functions(NamedTuple):
    """Any network as two functions.

    Attributes:
      init: ``init(key, images)`` draws ``{"params": ...}``, and ``"batch_stats"`` where there are
        any.
      apply: see ``ApplyFn``; in a test ``keys`` are None.
    """

    init: Callable[[jax.Array, jax.Array], Mapping[str, Any]]
    apply: ApplyFn


def functions_of(network: Any) -> Functions:
    """The functions of a Flax module, or of a pair of functions without running statistics.

    A ``Functions`` stays as it is.

    Args:
      network: a Flax module, which is called with ``train=`` where its ``__call__`` takes it and
        may have dropout and BatchNorm, whose statistics are of each replica's and micro-batch's
        part of a batch; or ``(init, apply)``, where ``init(key)`` draws the
        parameters and ``apply(params, images)`` gives logits ``[B, classes]``.
    """
    if isinstance(network, Functions):
        return network
    if isinstance(network, nn.Module):
        in_test: dict[str, Any] = {"train": False} if "train" in _call_names(network) else {}
        init = jax.jit(lambda key, images: network.init(key, images, **in_test))
        return Functions(init, _module_apply(network, train=None))
    if isinstance(network, tuple) and len(network) == 2 and all(map(callable, network)):
        draw, call = network
        return Functions(
            lambda key, images: {"params": draw(key)},
            lambda params, batch_stats, images, keys: (call(params, images), batch_stats),
        )
    raise TypeError(
        f"network is a {type(network).__name__}; expected a Flax module, or a pair of functions "
        "(init, apply)."
    )


def _call_names(module: nn.Module) -> Collection[str]:
    return inspect.signature(type(module).__call__).parameters


def _module_apply(module: nn.Module, train: bool | None) -> ApplyFn:
    """Calls a module; where ``train`` is None, it trains where there are keys."""
    names = _call_names(module)

    def apply(
        params: Any, batch_stats: Any, images: jax.Array, keys: Any = None
    ) -> tuple[Any, Any]:
        trains = keys is not None if train is None else train
        options: dict[str, Any] = {"train": trains} if "train" in names else {}
        if trains and "keys" in names:
            options["keys"] = keys
        elif trains and keys is not None:
            options["rngs"] = {"dropout": keys[0]}
        variables = {"params": params} | ({"batch_stats": batch_stats} if batch_stats else {})
        if not trains or not batch_stats:
            return module.apply(variables, images, **options), batch_stats
        logits, new = module.apply(variables, images, mutable=["batch_stats"], **options)
        return logits, new["batch_stats"]

    return apply


def has_batch_norm(model: Any) -> bool:
    """Whether a model of this library has BatchNorm, and so running statistics."""
    scheme = getattr(model, "scheme", None) if isinstance(model, nn.Module) else None
    return scheme is not None and schemes.get(scheme).anatomy.has_batch_norm
