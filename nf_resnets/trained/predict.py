"""The classes of images, and their probabilities, by a trained network."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import data, training
from nf_resnets.trained import file
from nf_resnets.trained.file import Trained, TrainedError
from nf_resnets.trained.inputs import Images
from nf_resnets.trained.pictures import read_picture


@functools.lru_cache(maxsize=16)
def logits_of(model: Any, inputs: Images) -> Any:
    """The compiled ``logits(variables, pixels)`` from raw pixels ``[B, H, W, C]`` to ``[B, c]``."""
    apply_fn = training.eval_apply(model)

    def logits(variables: Any, pixels: jax.Array) -> jax.Array:
        x = data.normalize(pixels, inputs.mean, inputs.std)
        output, _ = apply_fn(variables["params"], variables.get("batch_stats"), x, None)
        return output.astype(jnp.float32)

    return jax.jit(logits)


def predict(trained: Trained, pixels: Any, *, batch_size: int = 64) -> np.ndarray:
    """The probability of every class for every image.

    Args:
      trained: a network for images.
      pixels: raw pixels ``[B, H, W, C]``, from 0 to ``trained.inputs.max_value``.
      batch_size: images that are computed at a time, at most.

    Returns:
      float32 ``[B, c]``, each row with the sum 1.

    Raises:
      TrainedError: if the network does not take images, or these are of another shape, or pixels
        are NaN, below 0 or above ``max_value``, or the variables are those of another network, or
        the outputs are NaN.
    """
    inputs = images_of(trained)
    pixels = np.asarray(pixels)
    if pixels.shape[1:] != inputs.shape:
        raise TrainedError(
            f"images of shape {pixels.shape} found; expected [B, "
            f"{', '.join(map(str, inputs.shape))}], as the network was trained on."
        )
    slack = 1e-5 * inputs.max_value
    wrong = ~((pixels >= -slack) & (pixels <= inputs.max_value + slack))  # NaN is wrong, too
    if wrong.any():
        raise TrainedError(
            f"a pixel of {pixels[wrong].flat[0]:.6g} found; expected 0 to {inputs.max_value:g}."
        )
    refuse_other_network(trained)
    size = max(1, min(batch_size, len(pixels)))
    # The last batch is filled up, so that one program serves all.
    batches = np.zeros((-(-len(pixels) // size), size, *inputs.shape), np.float32)
    batches.reshape(-1, *inputs.shape)[: len(pixels)] = pixels
    logits, variables = logits_of(trained.model, inputs), jax.device_put(trained.variables)
    parts = [np.asarray(jax.nn.softmax(logits(variables, batch))) for batch in batches]
    rows = (len(batches) * size, len(inputs.class_names))
    result = np.array(parts, np.float32).reshape(rows)[: len(pixels)]
    if not np.isfinite(result).all():
        raise TrainedError("the network's outputs are NaN; expected finite weights.")
    return result


def classify(
    network: Trained | str | os.PathLike[str],
    images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | np.ndarray,
) -> list[tuple[str, float]]:
    """The likeliest class of each image, with its probability.

    Args:
      network: as :func:`nf_resnets.fit` returns it, or its file.
      images: image files, see :func:`nf_resnets.trained.pictures.read_picture`, or raw pixels
        ``[B, H, W, C]``.

    Raises:
      TrainedError: as :func:`predict`, or if an image cannot be read, which is named, or pixels
        are scaled to 0 to 1 where the network takes raw ones.
    """
    if not isinstance(network, Trained):
        network = file.load(network)
    inputs = images_of(network)
    if isinstance(images, np.ndarray | jax.Array):
        pixels = np.asarray(images)
        is_float = pixels.dtype.kind == "f" and pixels.size > 0
        if is_float and inputs.max_value >= 8 and 0 < pixels.max() <= 1:
            raise TrainedError(
                f"images with pixels up to {pixels.max():.3g} found, which look scaled; expected "
                f"raw ones, from 0 to {inputs.max_value:g}, as the network was trained on."
            )
    else:
        files = [images] if isinstance(images, str | os.PathLike) else images
        pixels = np.array([read_picture(each, inputs) for each in files], np.float32)
        pixels = pixels.reshape(-1, *inputs.shape)
    return [ranked(each, inputs.class_names, 1)[0] for each in predict(network, pixels)]


def refuse_other_network(trained: Trained) -> None:
    """Refuses variables that are not those of the network, of which Flax reads those it knows."""
    if isinstance(trained.model, nn.Module):
        expected = file.expected_leaves(trained.model, trained.inputs)
        file.refuse_other_leaves(file.named(trained.variables), expected)


def ranked(
    probabilities: np.ndarray, class_names: Sequence[str], top: int
) -> list[tuple[str, float]]:
    """The most probable classes of one image, the likeliest first."""
    order = np.argsort(-probabilities, kind="stable")[:top]
    return [(class_names[i], float(probabilities[i])) for i in order]


def images_of(trained: Trained) -> Images:
    """The inputs of a network for images; one for sentences is refused."""
    if not isinstance(trained.inputs, Images):
        raise TrainedError(
            f"a {type(trained.model).__name__} found, which takes sentences; expected a network "
            "for images."
        )
    return trained.inputs
