"""The loss of a batch of translations, and the likelihood of a corpus of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from nf_resnets import models
from nf_resnets.training.step import LossFn
from nf_resnets.translation.batches import Corpus, batch_of, batch_shapes, epoch_batches
from nf_resnets.translation.vocabulary import PADDING


def token_losses(
    logits: jax.Array, targets: jax.Array, *, label_smoothing: float = 0.0
) -> tuple[jax.Array, jax.Array]:
    r"""The loss and the negative log-likelihood of every token; 0 for padding.

    With ``p = softmax(logits)`` and ``V`` tokens in the vocabulary, ``loss = -(1 - eps) log p_y -
    (eps / V) sum_v log p_v``: the cross-entropy with a target whose fraction ``eps`` is spread
    evenly over the vocabulary (the token itself included).

    Of ``logits`` ``[B, T, V]``, ``targets`` int ``[B, T]`` and ``eps = label_smoothing`` (0.1 as
    published) it gives float32 ``[B, T]`` each.

    Source: Szegedy et al., *Rethinking the Inception Architecture*, CVPR 2016, section 7; Vaswani
    et al., *Attention Is All You Need*, NeurIPS 2017, section 5.4.
    """
    log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32))
    likelihood = -jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1)[..., 0]
    losses = likelihood
    if label_smoothing:
        uniform = -log_probabilities.mean(axis=-1)
        losses = (1.0 - label_smoothing) * likelihood + label_smoothing * uniform
    there = targets != PADDING
    return jnp.where(there, losses, 0.0), jnp.where(there, likelihood, 0.0)


def token_loss(
    model: models.Transformer, *, label_smoothing: float = 0.1, axis_name: str | None = None
) -> LossFn:
    """The mean of :func:`token_losses` over all tokens of a batch, for ``replica_step``.

    The tokens that are no padding are counted on all replicas, the members of the mapped axis
    ``axis_name``, so that the numbers are those of one device. The batch has ``source``, ``inputs``
    and ``targets`` int32 [b, T], and ``keys`` [b], a PRNG key for each row's dropout. The metrics
    are ``likelihood`` (the mean negative log-likelihood of a token, without smoothing),
    ``accuracy`` and ``tokens``.
    """

    def loss(params: Any, batch_stats: Any, batch: dict[str, jax.Array]) -> Any:
        targets = batch["targets"]
        there = targets != PADDING
        tokens, replicas = there.sum(dtype=jnp.float32), 1
        count = tokens
        if axis_name is not None:
            count, replicas = lax.psum(tokens, axis_name), lax.axis_size(axis_name)
        # Of a replica on average, since the step takes the mean over them.
        count = jnp.maximum(count, 1.0) / replicas
        logits = _train_logits(model, params, batch)
        losses, likelihoods = token_losses(logits, targets, label_smoothing=label_smoothing)
        correct = (jnp.argmax(logits, axis=-1) == targets) & there
        metrics = {
            "likelihood": likelihoods.sum() / count,
            "accuracy": correct.sum() / count,
            "tokens": tokens * replicas,
        }
        return losses.sum() / count, (metrics, batch_stats)

    return loss


def _train_logits(model: models.Transformer, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
    """Logits [b, T, V] in training, with another dropout for every row."""
    apply: Callable[..., Any] = model.apply
    if not model.dropout:
        logits: jax.Array = apply({"params": params}, batch["source"], batch["inputs"], train=True)
        return logits

    def one(source: jax.Array, inputs: jax.Array, key: jax.Array) -> Any:
        row = (source[None], inputs[None])
        return apply({"params": params}, *row, train=True, rngs={"dropout": key})[0]

    return jax.vmap(one)(batch["source"], batch["inputs"], batch["keys"])


def mean_likelihood(
    model: models.Transformer, params: Any, corpus: Corpus, *, max_tokens: int = 4096
) -> float:
    """The mean negative log-likelihood of a token, in nats; its exponential is the perplexity.

    Every token of the corpus counts once; ``max_tokens`` are those of a batch.
    """
    shapes = batch_shapes(corpus, max_tokens=max_tokens)
    total, count = 0.0, 0
    for rows in epoch_batches(corpus, 0, 0, shapes):
        batch = batch_of(corpus, rows)
        total += float(_sum(model, params, batch))
        count += int(np.count_nonzero(batch["targets"]))
    return total / count


@functools.partial(jax.jit, static_argnames="model")
def _sum(model: models.Transformer, params: Any, batch: dict[str, jax.Array]) -> jax.Array:
    logits: Any = model.apply({"params": params}, batch["source"], batch["inputs"])
    return token_losses(logits, batch["targets"])[1].sum()
