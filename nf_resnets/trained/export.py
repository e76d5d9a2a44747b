"""A trained network as a StableHLO program, which runs without this library."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.export
import jax.numpy as jnp

from nf_resnets import places
from nf_resnets.trained.file import Trained
from nf_resnets.trained.predict import images_of, logits_of

PLATFORMS = ("cpu", "cuda", "tpu")
"""The platforms on which an exported program runs."""


def save_export(
    path: str | os.PathLike[str], trained: Trained, *, overwrite: bool = False,
    platforms: Sequence[str] = PLATFORMS,
) -> Path:  # fmt: skip
    """Writes a network with its weights as StableHLO, for :func:`jax.export.deserialize`.

    The program goes from raw pixels, float32 ``[b, H, W, C]`` from 0 to
    ``trained.inputs.max_value``, to logits, float32 ``[b, c]``, for batches of any size. It needs
    flatbuffers, which the extra ``export`` brings.

    Args:
      path: the file, which is returned.
      trained: a network for images.
      overwrite: whether a file that is there may be replaced.
      platforms: some of :data:`PLATFORMS`.

    Raises:
      TrainedError: if the network does not take images.
      OSError: if the file is there, or cannot be written.
    """
    inputs = images_of(trained)
    if not platforms or not set(platforms) <= set(PLATFORMS):
        raise ValueError(f"platforms={platforms} found; expected some of {', '.join(PLATFORMS)}.")
    logits, variables = logits_of(trained.model, inputs), jax.device_put(trained.variables)
    (batch,) = jax.export.symbolic_shape("b")
    pixels = jax.ShapeDtypeStruct((batch, *inputs.shape), jnp.float32)
    program = jax.jit(lambda pixels: logits(variables, pixels))
    exported = jax.export.export(program, platforms=tuple(platforms))(pixels)
    try:
        data = bytes(exported.serialize())
    except ImportError as error:
        raise ImportError(f"{error}: pip install 'nf_resnets[export]'.") from None
    path = Path(path).expanduser()
    places.write_whole(path, data, overwrite=overwrite)
    return path
