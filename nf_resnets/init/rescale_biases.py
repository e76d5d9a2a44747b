"""RescaleNet's data-dependent biases: every channel of every layer's input gets the mean 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nf_resnets.calibration import CENTERING
from nf_resnets.init.data_dependent import by_path, check_finite, check_paths, measuring
from nf_resnets.init.tree import cast_like


def rescale_biases(apply_fn: Callable[..., Any], params: Any, batch: Any, *, parts: int = 1) -> Any:
    r"""Sets every channel bias to minus the batch's mean of its channel, layer by layer.

    ``b_c = -mean(x_c)`` over the images and positions of the batch, where ``x`` has passed the
    layers before with the biases that those have found. One pass sets them all. They are
    parameters like others after that; this is no layer's hidden state.

    The published code finds them in the first 8 passes of training: a layer's bias is minus the
    average of the means of the passes so far. ``parts=8`` gives what it finds if nothing is trained
    meanwhile. (There the biases also learn a hundred times more slowly in these 8 steps, which this
    library leaves out.)

    Args:
      apply_fn: Flax's ``model.apply``; ``functools.partial(model.apply, train=True)`` works too. It
        is compiled anew in every call: to set many networks, ``jax.jit`` the call.
      params: the tree under ``"params"``, already initialised. It is not changed.
      batch: images ``[B, H, W, C]``; the authors use 128 or more.
      parts: into how many equal parts the batch is cut, which pass one after another.

    Returns:
      A tree of the same structure, dtypes and shardings, with other channel biases. Under ``jit``
      nothing can be said of values, and no means are refused.

    Raises:
      ValueError: if the network has no channel bias or other names than ``params``, the batch
        fewer than 2 images in each part or no equal parts, or a mean is not finite.
      TypeError: if ``apply_fn`` is no function of variables and images.

    Source: Shao, Hu, Wang, Xue, Raj, *Is normalization indispensable for training deep neural
    networks?*, NeurIPS 2020, and its author feedback.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from nf_resnets import models
      >>> images = jax.random.normal(jax.random.key(1), (2, 4, 4, 3))
      >>> model = models.WideResNet(depth=10, scheme="rescalenet", stem_channels=2)
      >>> params = jax.jit(model.init)(jax.random.key(0), images)["params"]
      >>> rescale_biases(model.apply, params, images)["stage_1"]["first"]["bias_2"]["vector"].shape
      (2,)
    """
    biases = measuring(apply_fn, batch, CENTERING, parts=parts)(params)
    if not biases:
        raise ValueError(
            "no channel bias found in the network; expected one whose scheme has them, such as "
            "scheme='rescalenet'."
        )
    check_paths(biases, params)
    check_finite(biases, "channel means")
    return by_path(
        params, lambda path, leaf: cast_like(leaf, biases[path]) if path in biases else leaf
    )


__all__ = ["rescale_biases"]
