"""Looking at the branches of a network: what enters them, what they add, which gradients pass."""

from __future__ import annotations

import inspect
import itertools
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


def observe(
    model: Any, *, batch_stats: Any = None, train: bool | None = None, **options: Any
) -> ObservedFn:
    """Makes the function by which the analyses call a Flax network that taps its activations.

    All residual networks and the Transformer of this library do; a network of one's own does with
    the two lines of :mod:`nf_resnets.taps` in its blocks. For another library any function of the
    signature below works.

    Args:
      model: a Flax module (Linen), called as ``model.apply(variables, images, train=train)``; one
        that has no ``train`` is called without it.
      batch_stats: BatchNorm's running statistics, where there are any.
      train: whether BatchNorm uses the batch's statistics (and there is dropout, which needs its
        own keys); by default where ``batch_stats`` are given.
      **options: what else ``model.apply`` is to get, such as ``rngs={"dropout": key}``, or
        ``deterministic=True``.

    Returns:
      ``observed(params, images, perturbations=None) -> (logits, taps)``: images are one array, or a
      tuple of what the network takes, as the source and target of a Transformer; the taps are a
      tree of dicts that ends in the names ``input``, ``skip``, ``branch`` and ``sum``, each
      ``[B, H, W, C]``, or ``[n, B, H, W, C]`` for the ``n`` blocks of a scan; perturbations are
      such a tree, or a part of one, that is added to the activations.

    Raises:
      TypeError: if ``model`` is no Flax module.
      ValueError: from the function, if the names of the blocks order them otherwise than the
        network computes them.

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
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"model is a {type(model).__name__}; expected a Flax module (Linen). For another "
            "library pass a function of (params, images, perturbations=None) that returns logits "
            "and taps in place of what analysis.observe makes."
        )
    takes_train = "train" in inspect.signature(type(model).__call__).parameters
    if train is not None or takes_train:
        options["train"] = batch_stats is not None if train is None else train

    def observed(params: Any, images: Any, perturbations: Any = None) -> tuple[Any, Any]:
        inputs = images if isinstance(images, tuple) else (images,)
        variables = {"params": params}
        mutable = [TAPS]
        if batch_stats is not None:
            variables["batch_stats"] = batch_stats
            mutable += ["batch_stats"] if options.get("train", True) else []
        if perturbations is not None:
            variables[PERTURBATIONS] = perturbations
        logits, found = model.apply(variables, *inputs, mutable=mutable, **options)
        _refuse_other_order(found.get(TAPS, {}))
        return logits, found.get(TAPS, {})

    return observed


def _refuse_other_order(taps: Any) -> None:
    """Refuses blocks whose names order them otherwise than they were computed.

    Flax keeps the names as they came, but for those within a remat or a scan, which are sorted.
    """
    names = ["/".join(path[:-1]) for path in flax.traverse_util.flatten_dict(taps)]
    computed = list(dict.fromkeys(name for name in names if not _STACKED.search(name)))
    for before, after in itertools.pairwise(computed):
        if _place(before) > _place(after):
            raise ValueError(
                f"block {after!r} is computed after {before!r}, and stands before it by its name; "
                "expected names that order the blocks, such as 'block_1', 'block_2', or 'encoder' "
                "and 'decoder'."
            )


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
            if name != "name" and len(shape) > 1 and shape[1] == count and (
                shape[0] != count or _is_stacked(observed, params, images, branch["name"])
            ):  # fmt: skip
                raise ValueError(
                    f"tap {branch['name']}/{name} has shape {list(shape)} for {count} images; "
                    "expected the images' axis first: blocks of a scan that are not in "
                    f"stage_N/rest are not told apart, tap them unscanned."
                )
    return logits, taps


def _is_stacked(observed: ObservedFn, params: Any, images: Any, name: str) -> bool:
    """Whether the first axis of a block's taps stays as long as it is for twice the images."""
    twice = jax.tree.map(lambda of: jnp.concatenate([jnp.asarray(of)] * 2), images)

    def taps_of_block() -> dict[str, Any]:
        block = next(each for each in branches(observed(params, twice)[1]) if each["name"] == name)
        return {part: tap for part, tap in block.items() if part != "name"}

    count = jax.tree.leaves(twice)[0].shape[0]
    return any(tap.shape[0] < count for tap in jax.eval_shape(taps_of_block).values())


def no_perturbations(observed: ObservedFn, params: Any, images: Any) -> Any:
    """Zeros to add to the input of every branch; a gradient by them is one by the input."""

    def taps() -> Any:
        _, found = taps_of(observed, params, images)
        branches(found, "input")
        return found

    return flax.traverse_util.unflatten_dict(
        {
            path: jnp.zeros(tap.shape, tap.dtype)
            for path, tap in flax.traverse_util.flatten_dict(jax.eval_shape(taps)).items()
            if path[-1] == "input"
        }
    )


def branches(taps: Any, *parts: str) -> list[dict[str, Any]]:
    """The taps of each residual branch by itself, in order from the input.

    Args:
      taps: as ``observed`` returns them, or gradients of perturbations.
      *parts: those that each branch must have.

    Returns:
      For each of ``k = 1..L`` the ``name`` of the branch and those that there are of its ``input``,
      ``skip``, ``branch`` and ``sum``, ``[B, H, W, C]``.

    Raises:
      ValueError: if there is no tap in it, or a part is missing.

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
    for path, values in blocks.items():
        missing = [part for part in parts if part not in values]
        if missing:
            raise ValueError(
                f"block {'/'.join(path)!r} has the taps {', '.join(sorted(values))} and no "
                f"{missing[0]!r}; expected nf_resnets.taps.tap(self, 'input', x) as it begins and "
                "merge where its paths meet."
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
