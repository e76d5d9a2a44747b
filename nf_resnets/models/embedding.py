"""Token embeddings and sinusoidal positions."""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import random


class Embedding(nn.Module):
    """A table of vectors, one for each token of a vocabulary.

    ``init`` draws it from ``N(0, 1 / d_model)``, the padding token's vector being 0. Looked up, the
    vectors are multiplied by ``sqrt(d_model)``; a padding token gives 0 whatever its row of the
    table holds, and passes no gradient to it.

    Attributes:
      vocab_size: how many tokens.
      d_model: channels of a vector.
      padding_id: the token that fills up short sequences.

    Source: Vaswani et al., *Attention Is All You Need*, NeurIPS 2017, section 3.4; fairseq.
    """

    vocab_size: int
    d_model: int
    padding_id: int

    def setup(self) -> None:
        """Makes the table ``[vocab_size, d_model]``, float32."""
        self.embedding = self.param("embedding", self._draw, (self.vocab_size, self.d_model))

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Tokens ``[B, T]`` to ``[B, T, d_model]``."""
        vectors = jnp.take(self.embedding, tokens, axis=0) * self.d_model**0.5
        return jnp.where((tokens == self.padding_id)[..., None], 0, vectors)

    def attend(self, x: jax.Array) -> jax.Array:
        """Scalar products of ``[B, T, d_model]`` with all vectors: ``[B, T, vocab_size]``."""
        return x.astype(jnp.float32) @ self.embedding.T

    def _draw(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        table = self.d_model**-0.5 * random.normal(key, shape, jnp.float32)
        return table.at[self.padding_id].set(0)


def sinusoids(
    length: int, d_model: int, form: Literal["paper", "fairseq"] = "paper", first: int = 0
) -> Any:
    r"""``PE[p, 2i] = sin(p / 10000^(2i/d))`` and ``PE[p, 2i + 1]`` its cosine, section 3.5.

    In fairseq, and in tensor2tensor, all sines stand before all cosines, and the ``d/2``
    frequencies end at ``1/10000``: ``PE[p, i] = sin(p / 10000^(i/(d/2 - 1)))`` for ``i < d/2``.

    Args:
      length: how many positions.
      d_model: channels ``d``, an even number.
      form: the paper's or fairseq's.
      first: the first position.

    Returns:
      NumPy float32 ``[length, d_model]``.

    Source: Vaswani et al., *Attention Is All You Need*, NeurIPS 2017; fairseq,
    ``modules/sinusoidal_positional_embedding.py``.

    Example:
      >>> sinusoids(2, 4)[1].tolist()
      [0.841, 0.540, 0.010, 1.000]
      >>> sinusoids(2, 4, "fairseq")[1].tolist()
      [0.841, 0.0001, 0.540, 1.000]
    """
    # In float64, for at a thousand radians float32 has lost four of its digits.
    half = np.arange(d_model // 2)
    frequencies = 10000.0 ** -(
        half / (d_model / 2 if form == "paper" else max(d_model // 2 - 1, 1))
    )
    angles = np.arange(first, first + length).reshape(-1, 1) * frequencies.reshape(1, -1)
    pair = np.sin(angles), np.cos(angles)
    if form == "fairseq":
        return np.concatenate(pair, axis=-1).astype(np.float32)
    return np.stack(pair, axis=-1).reshape(length, d_model).astype(np.float32)


__all__ = ["Embedding", "sinusoids"]
