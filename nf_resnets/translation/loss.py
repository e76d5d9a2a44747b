"""The loss of a batch of translations: label-smoothed cross-entropy of all tokens but padding."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nf_resnets.translation.vocabulary import PADDING


def token_losses(
    logits: jax.Array, targets: jax.Array, *, label_smoothing: float = 0.0
) -> tuple[jax.Array, jax.Array]:
    r"""The loss and the negative log-likelihood of every token; 0 for padding.

    With ``p = softmax(logits)`` and ``V`` tokens in the vocabulary, ``loss = -(1 - eps) log p_y -
    (eps / V) sum_v log p_v``: the cross-entropy with a target whose fraction ``eps`` is spread
    evenly over the vocabulary (the token itself included).

    Args:
      logits: ``[B, T, V]``.
      targets: int ``[B, T]``.
      label_smoothing: ``eps``, in ``[0, 1)``; 0.1 as published.

    Returns:
      Losses and negative log-likelihoods, float32 ``[B, T]`` each.

    Raises:
      ValueError: if ``label_smoothing`` is outside its range.

    Source: Szegedy et al., *Rethinking the Inception Architecture*, CVPR 2016, section 7; Vaswani
    et al., *Attention Is All You Need*, NeurIPS 2017, section 5.4.

    Example:
      >>> losses, _ = token_losses(jnp.zeros((1, 2, 8)), jnp.asarray([[5, 0]]), label_smoothing=0.1)
      >>> losses.tolist()
      [[2.0794, 0.0]]
    """
    if not 0.0 <= label_smoothing < 1.0:
        raise ValueError(
            f"label_smoothing={label_smoothing} found; expected 0 <= label_smoothing < 1."
        )
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
    likelihood = -jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1)[..., 0]
    losses = likelihood
    if label_smoothing:
        uniform = -log_probabilities.mean(axis=-1)
        losses = (1.0 - label_smoothing) * likelihood + label_smoothing * uniform
    there = targets != PADDING
    return jnp.where(there, losses, 0.0), jnp.where(there, likelihood, 0.0)


__all__ = ["token_losses"]
