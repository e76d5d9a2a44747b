"""Token embeddings and sinusoidal positions."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import draws


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
        table = self.d_model**-0.5 * draws.normal(key, shape, jnp.float32)
        return table.at[self.padding_id].set(0)


def sinusoids(length: int, d_model: int) -> Any:
    r"""``PE[p, 2i] = sin(p / 10000^(2i/d))`` and ``PE[p, 2i + 1]`` its cosine, section 3.5.

    Args:
      length: how many positions, counted from 0.
      d_model: channels ``d``, an even number.

    Returns:
      NumPy float32 ``[length, d_model]``.

    Source: Vaswani et al., *Attention Is All You Need*, NeurIPS 2017.

    Example:
      >>> sinusoids(2, 4)[1].tolist()
      [0.841, 0.540, 0.010, 1.000]
    """
    # In float64, for at a thousand radians float32 has lost four of its digits.
    frequencies = 10000.0 ** (-np.arange(0, d_model, 2) / d_model)
    angles = np.arange(length).reshape(-1, 1) * frequencies.reshape(1, -1)
    pairs = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    return pairs.reshape(length, d_model).astype(np.float32)


__all__ = ["Embedding", "sinusoids"]
