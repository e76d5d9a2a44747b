"""The likelihood of given translations."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from nf_resnets import models
from nf_resnets.translation.batches import Corpus, batch_of, batch_shapes, epoch_batches
from nf_resnets.translation.loss import token_losses


def mean_likelihood(
    model: models.Transformer, params: Any, corpus: Corpus, *, max_tokens: int = 4096
) -> float:
    """The mean negative log-likelihood of a token, in nats; its exponential is the perplexity.

    Every token of the corpus counts once; ``max_tokens`` are those of a batch.

    Example:
      >>> from nf_resnets import models
      >>> model = models.Transformer(
      ...     vocab_size=16, num_layers=1, d_model=8, num_heads=2, d_ff=16, max_length=8)
      >>> mean_likelihood(model, params, corpus)  # doctest: +SKIP
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


__all__ = ["mean_likelihood"]
