"""How a step calls a network: one signature for networks with and without running statistics."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from nf_resnets import schemes

ApplyFn = Callable[[Any, Any, jax.Array, Any], tuple[jax.Array, Any]]
"""``apply(params, batch_stats, images, keys) -> (logits, new batch_stats)``; ``keys`` are PRNG keys
``[b]``, one for each image, or None."""


def train_apply(model: Any, *, shards: int = 1) -> ApplyFn:
    """Makes the function by which a step calls a network in training.

    Args:
      model: a module of :mod:`nf_resnets.models`; or an ``ApplyFn``, which is returned as it is.
      shards: over how many replicas the batch is split; each computes ``bn_groups / shards`` of
        BatchNorm's slices, so that the numbers are those of one device.

    Raises:
      ValueError: if ``model.bn_groups`` does not divide over the replicas; from the function, if
        the network has BatchNorm and ``batch_stats`` is empty.
      TypeError: if ``model`` is neither such a module nor a function.
    """
    if has_batch_norm(model):
        if model.bn_groups % shards:
            raise ValueError(
                f"bn_groups={model.bn_groups} cannot be spread over {shards} parts of a batch "
                f"(devices, times micro-batches); expected a multiple of {shards} (one BatchNorm "
                f"slice per part: bn_groups={shards})."
            )
        model = model.clone(bn_groups=model.bn_groups // shards)
    return _apply_of(model, train=True)


def eval_apply(model: Any) -> ApplyFn:
    """As :func:`train_apply`, but in a test, where ``keys`` are None.

    Example:
      >>> from nf_resnets import models
      >>> model = models.WideResNet(depth=10, scheme="fixup", stem_channels=4)
      >>> images = jax.numpy.ones((2, 8, 8, 3))
      >>> params = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
      >>> for apply in (train_apply(model), eval_apply(model)):
      ...     jax.eval_shape(lambda at: apply(at, {}, images, None), params)[0].shape
      (2, 10)
      (2, 10)
    """
    return _apply_of(model, train=False)


def _apply_of(model: Any, *, train: bool) -> ApplyFn:
    if not isinstance(model, nn.Module):
        if not callable(model):
            raise TypeError(
                f"model is a {type(model).__name__}; expected a Flax module or a function "
                "apply(params, batch_stats, images, keys)."
            )
        return model  # type: ignore[no-any-return]
    if not hasattr(model, "scheme"):
        raise TypeError(
            f"model is a {type(model).__name__}, no network of nf_resnets.models; expected one, or "
            "a function apply(params, batch_stats, images, keys) that calls yours."
        )
    # A network that draws nothing does not look at them, and then they are not computed.
    takes_keys = train and "keys" in inspect.signature(type(model).__call__).parameters

    def apply(
        params: Any, batch_stats: Any, images: jax.Array, keys: Any = None
    ) -> tuple[Any, Any]:
        options: dict[str, Any] = {"train": train} | ({"keys": keys} if takes_keys else {})
        if not has_batch_norm(model):
            return model.apply({"params": params}, images, **options), batch_stats
        if not batch_stats:
            raise ValueError(
                "batch_stats is empty, and the network has BatchNorm; expected the statistics that "
                "model.init returns with the parameters: create_state(..., batch_stats=...)."
            )
        variables = {"params": params, "batch_stats": batch_stats}
        if not train:
            return model.apply(variables, images, **options), batch_stats
        logits, updated = model.apply(variables, images, mutable=["batch_stats"], **options)
        return logits, updated["batch_stats"]

    return apply


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

    Args:
      network: a Flax module, which is called with ``train=`` where its ``__call__`` takes it and
        may have BatchNorm and dropout; or ``(init, apply)``, where ``init(key)`` draws the
        parameters and ``apply(params, images)`` gives logits ``[B, classes]``.

    Raises:
      TypeError: if it is neither.

    Example:
      >>> linear = functions_of((lambda key: jnp.ones((4, 2)), lambda params, x: x @ params))
      >>> variables = linear.init(jax.random.key(0), jnp.ones((1, 4)))
      >>> linear.apply(variables["params"], {}, jnp.ones((3, 4)), None)[0].shape
      (3, 2)
    """
    if isinstance(network, nn.Module):
        return _module_functions(network)
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


def _module_functions(module: nn.Module) -> Functions:
    takes_train = "train" in inspect.signature(type(module).__call__).parameters
    in_test: dict[str, Any] = {"train": False} if takes_train else {}

    def init(key: jax.Array, images: jax.Array) -> Any:
        return module.init(key, images, **in_test)

    def apply(params: Any, batch_stats: Any, images: jax.Array, keys: Any) -> tuple[Any, Any]:
        variables = {"params": params} | ({"batch_stats": batch_stats} if batch_stats else {})
        if keys is None:
            return module.apply(variables, images, **in_test), batch_stats
        options: Any = dict.fromkeys(in_test, True) | {"rngs": {"dropout": keys[0]}}
        if not batch_stats:
            return module.apply(variables, images, **options), batch_stats
        logits, new = module.apply(variables, images, mutable=["batch_stats"], **options)
        return logits, new["batch_stats"]

    return Functions(jax.jit(init), apply)


def called(apply_fn: ApplyFn, params: Any, batch_stats: Any, images: Any, keys: Any) -> Any:
    """Calls a network, and refuses what is not logits ``[b, c]`` with statistics.

    Raises:
      TypeError: if it is not two values.
      ValueError: if there are not logits for every image, which would be broadcast.
    """
    found = apply_fn(params, batch_stats, images, keys)
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise TypeError(
            f"apply returned a {type(found).__name__}; expected two values, (logits, batch_stats)."
        )
    shape, count = jnp.shape(found[0]), images.shape[0]
    if shape[:-1] != (count,):
        raise ValueError(
            f"logits of shape {list(shape)} found for {count} images; expected [{count}, classes]."
        )
    return found


def has_batch_norm(model: Any) -> bool:
    """Whether a model of this library has BatchNorm, and so running statistics."""
    scheme = getattr(model, "scheme", None) if isinstance(model, nn.Module) else None
    return scheme is not None and schemes.get(scheme).anatomy.has_batch_norm


__all__ = [
    "ApplyFn", "Functions", "eval_apply", "functions_of", "has_batch_norm", "train_apply",
]  # fmt: skip
