"""Looking at the branches of a network: what enters them, what they add, which gradients pass."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp

from nf_resnets.taps import PERTURBATIONS, TAPS

LogitsFn = Callable[[Any, jax.Array], jax.Array]
"""A network: ``logits_fn(params, images [B, H, W, C]) -> logits [B, c]``."""

ObservedFn = Callable[..., tuple[jax.Array, Any]]
"""``observed(params, images, perturbations=None) -> (logits, taps)``."""


def observe(model: Any, *, batch_stats: Any = None, train: bool | None = None) -> ObservedFn:
    """Makes the function by which the analyses call a Flax network that taps its activations.

    All residual networks and the Transformer of this library do; a network of one's own does with
    the two lines of :mod:`nf_resnets.taps` in its blocks. For another library any function of this
    signature works.

    Args:
      model: a Flax module, called as ``model.apply(variables, images, train=train)``.
      batch_stats: BatchNorm's running statistics, where there are any.
      train: whether BatchNorm uses the batch's statistics (and there is dropout, which needs its
        own keys); by default where ``batch_stats`` are given.

    Returns:
      ``observed(params, images, perturbations=None) -> (logits, taps)``: images are one array, or a
      tuple of what the network takes, as the source and target of a Transformer; the taps are a
      tree of dicts that ends in the names ``input``, ``skip``, ``branch`` and ``sum``, each
      ``[B, H, W, C]``, or ``[n, B, H, W, C]`` for the ``n`` blocks of a scan; perturbations are
      such a tree, or a part of one, that is added to the activations.

    Example:
      >>> import jax.numpy as jnp
      >>> from nf_resnets import models
      >>> images = jnp.ones((2, 8, 8, 3))
      >>> model = models.WideResNet(depth=16, stem_channels=4)
      >>> params = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
      >>> logits, taps = jax.eval_shape(observe(model), params, images)
      >>> taps["stage_3"]["rest"]["branch"].shape
      (1, 2, 2, 2, 16)
    """
    train = batch_stats is not None if train is None else train

    def observed(params: Any, images: Any, perturbations: Any = None) -> tuple[Any, Any]:
        inputs = images if isinstance(images, tuple) else (images,)
        variables = {"params": params}
        mutable = [TAPS]
        if batch_stats is not None:
            variables["batch_stats"] = batch_stats
            mutable += ["batch_stats"] if train else []
        if perturbations is not None:
            variables[PERTURBATIONS] = perturbations
        logits, found = model.apply(variables, *inputs, train=train, mutable=mutable)
        return logits, found.get(TAPS, {})

    return observed


def taps_of(observed: ObservedFn, params: Any, images: Any) -> tuple[Any, Any]:
    """Calls a network that taps its activations; refuses one whose taps hold several blocks.

    Raises:
      TypeError: if ``observed`` is a network itself.
      ValueError: if an activation has an axis before the batch's, as in a scan of another library.
    """
    of = getattr(observed, "__self__", observed)
    if isinstance(of, nn.Module):
        raise TypeError(
            f"observed is a {type(of).__name__}, or a method of one; expected "
            "analysis.observe(model)."
        )
    logits, taps = observed(params, images)
    count = jnp.shape(jax.tree.leaves(images)[0])[0]
    for branch in branches(taps):
        for name, tap in branch.items():
            shape: tuple[int, ...] = getattr(tap, "shape", ())
            if name != "name" and len(shape) > 1 and shape[0] != count == shape[1]:
                raise ValueError(
                    f"tap {branch['name']}/{name} has shape {list(shape)} for {count} images; "
                    "expected the images' axis first: blocks of a scan that are not in "
                    f"stage_N/rest are not told apart, tap them unscanned."
                )
    return logits, taps


def no_perturbations(observed: ObservedFn, params: Any, images: Any) -> Any:
    """Zeros to add to the input of every branch; a gradient by them is one by the input."""
    _, shapes = jax.eval_shape(functools.partial(taps_of, observed), params, images)
    return flax.traverse_util.unflatten_dict(
        {
            path: jnp.zeros(tap.shape, tap.dtype)
            for path, tap in flax.traverse_util.flatten_dict(shapes).items()
            if path[-1] == "input"
        }
    )


def branches(taps: Any) -> list[dict[str, Any]]:
    """The taps of each residual branch by itself, in order from the input.

    Args:
      taps: as ``observed`` returns them, or gradients of perturbations.

    Returns:
      For each of ``k = 1..L`` the ``name`` of the branch and those that there are of its ``input``,
      ``skip``, ``branch`` and ``sum``, ``[B, H, W, C]``.

    Raises:
      ValueError: if there is no tap in it.

    Example:
      >>> taps = {f"block_{k}": {"skip": float(k), "branch": 0.5} for k in (10, 2)}
      >>> [(branch["name"], branch["skip"]) for branch in branches(taps)]
      [('block_2', 2.0), ('block_10', 10.0)]
    """
    blocks: dict[tuple[str, ...], dict[str, Any]] = {}
    for path, value in flax.traverse_util.flatten_dict(taps).items():
        blocks.setdefault(path[:-1], {})[path[-1]] = value
    if not blocks:
        raise ValueError(
            "no activation found in taps; expected a network whose blocks call nf_resnets.taps.tap "
            "and merge."
        )
    found: list[tuple[Any, dict[str, Any]]] = []
    for path, values in blocks.items():
        name = "/".join(path)
        stacked = _STACKED.search(name)
        if stacked is None:
            found.append(((_place(name), 0, ()), {"name": name, **values}))
            continue
        # Branches of one scanned layer take turns.
        before, after = name[: stacked.end()], name[stacked.end() :]
        for index in range(next(iter(values.values())).shape[0]):
            own = {key: value[index] for key, value in values.items()}
            found.append(
                ((_place(before), index, _place(after)), {"name": f"{name}[{index}]", **own})
            )
    return [branch for _, branch in sorted(found, key=lambda item: item[0])]


_STACKED = re.compile(r"stage_\d+/rest(?=/|$)|(?:encoder|decoder)/layers(?=/|$)")


def _place(name: str) -> tuple[tuple[int, str], ...]:
    """Orders names as our networks compute them: by number, the encoder before the decoder."""
    name = re.sub(r"(^|/)decoder(?=/|$)", r"\1~decoder", name)
    return tuple(
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.findall(r"\d+|\D+", name)
    )


__all__ = ["LogitsFn", "ObservedFn", "branches", "no_perturbations", "observe", "taps_of"]
