"""The encoder-decoder Transformer, with LayerNorm or without."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import random, schemes
from nf_resnets.models.blocks import Layers
from nf_resnets.models.branch import CACHE, Attention, FeedForward, norm_stands, normalized
from nf_resnets.models.layers import Dense, lecun_fan_in
from nf_resnets.schemes import TRANSFORMER_NORMS, Anatomy, BranchConstants


class Embedding(nn.Module):
    """A table of vectors, one for each token of a vocabulary.

    ``init`` draws it from ``N(0, 1 / d_model)``. Looked up, the vectors are multiplied by
    ``sqrt(d_model)``; a padding token gives 0 whatever its row of the table holds.

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

    def _draw(self, key: jax.Array, shape: tuple[int, int]) -> jax.Array:
        table = self.d_model**-0.5 * random.normal(key, shape, jnp.float32)
        return table.at[self.padding_id].set(0)


def sinusoids(length: int, d_model: int) -> Any:
    r"""``PE[p, 2i] = sin(p / 10000^(2i/d))`` and ``PE[p, 2i + 1]`` its cosine, section 3.5.

    Returns NumPy float32 ``[length, d_model]``, of the positions from 0 on.

    Source: Vaswani et al., *Attention Is All You Need*, NeurIPS 2017.

    Example:
      >>> sinusoids(2, 4)[1].tolist()
      [0.841, 0.540, 0.010, 1.000]
    """
    # In float64, for at a thousand radians float32 has lost four of its digits.
    frequencies = 10000.0 ** -(np.arange(d_model // 2) / (d_model / 2))
    angles = np.arange(length).reshape(-1, 1) * frequencies.reshape(1, -1)
    pair = np.sin(angles), np.cos(angles)
    return np.stack(pair, axis=-1).reshape(length, d_model).astype(np.float32)


class Layer(nn.Module):
    """A layer of the encoder, two residual branches, or with ``cross`` of the decoder, three."""

    num_heads: int
    d_ff: int
    anatomy: Anatomy
    cross: bool = False
    dropout: float = 0.0
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array,
        constants: BranchConstants,
        memory: jax.Array | None = None,
        memory_mask: jax.Array | None = None,
        *,
        position: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """``[B, T, D]`` to the same shape; the arguments are those of :class:`Attention`."""
        shared = self.anatomy, self.dropout, self.dtype
        options: dict[str, Any] = {"position": position, "train": train}
        attention = Attention(self.num_heads, *shared, name="attention")
        x = attention(x, mask, constants.part(0), **options)
        if self.cross:
            assert memory is not None and memory_mask is not None
            cross_attention = Attention(self.num_heads, *shared, name="cross_attention")
            x = cross_attention(x, memory_mask, constants.part(1), memory, **options)
        feed_forward = FeedForward(self.d_ff, *shared, name="feed_forward")
        return feed_forward(x, constants.part(-1), train=train)


class Stack(nn.Module):
    """Layers of one kind, computed by a scan over their stacked parameters, and what ends them.

    The parameters of the layers are under ``layers``, each with a leading axis ``[num_layers]``.
    Where branches begin with a norm, one more follows the last layer; with Fixup's anatomy a scalar
    ``bias`` does, before what the output is multiplied by: the keys and values of all
    cross-attentions, or the head. ``layer`` is :class:`Layer` with all but its name bound.
    """

    layer: Any
    num_layers: int
    bias: str

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array,
        constants: BranchConstants,
        *memory: jax.Array,
        position: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """``[B, T, D]`` to the same shape; the constants are ``[num_layers, 2 or 3]`` each."""
        options: dict[str, Any] = {"position": position, "train": train}
        scanned = nn.scan(
            lambda layer, x, constants: (layer(x, mask, constants, *memory, **options), None),
            variable_axes={"params": 0, CACHE: 0},
            split_rngs={"params": True, "dropout": True},
            length=self.num_layers,
        )
        layer = self.layer(name="layers")
        x, _ = scanned(layer, x, constants)
        if norm_stands(layer.anatomy, "pre"):
            x = normalized(layer.anatomy, x)
        return Layers(self, layer.anatomy).shift(x, self.bias)


class Transformer(nn.Module):
    r"""The Transformer of Vaswani et al., from token sequences to the next tokens' logits.

    Every encoder layer has two residual branches (attention, feed-forward), every decoder layer
    three (attention, cross-attention, feed-forward): ``L = 2 N_encoder + 3 N_decoder``, 30 for 6
    and 6. Attention has ``m = 4`` layers (query, key, value, out), feed-forward ``m = 2``. The
    anatomy says whether there is a LayerNorm (``norm="layer"``), or DyT or Derf instead of it,
    after each sum as in the paper (``norm_place="post"``) or where each branch begins and after
    each stack (``"pre"``); bias vectors in the layers (``conv_biases``); or Fixup's scalars.
    Dropout is where the paper has it: on the sum of embedding and position, and at the end of every
    branch.

    As in fairseq's ``transformer_iwslt_de_en`` source and target have an embedding of their own,
    and the head, without bias vector, a matrix of its own. Fixup asks for that, for its head starts
    at 0, which embeddings cannot.

    Positions are sinusoidal and counted from 0. Padding follows a sequence; what the logits are at
    a padded position means nothing: leave it out of the loss.

    Attributes:
      vocab_size: tokens of the target.
      num_layers: ``N`` of the encoder and of the decoder.
      d_model: channels ``D`` between the layers.
      num_heads: of every attention.
      d_ff: features inside the feed-forward branches.
      scheme: a scheme's name or value; the network contains what its anatomy asks for. The
        parameters that ``init`` returns are a standard initialisation (Xavier uniform in the
        branches, each of query, key and value as a ``[D, D]`` matrix by itself; embeddings and head
        ``N(0, 1 / D)``; multipliers and alphas 1); apply the scheme's function to them.
      source_vocab_size: tokens of the source; by default as many as the target's.
      encoder_layers: ``N`` of the encoder, if it differs.
      decoder_layers: ``N`` of the decoder, if it differs.
      padding_id: the token that fills up short sequences.
      max_length: how many tokens a sequence may have.
      dropout: rate; :meth:`apply` takes a ``dropout`` PRNG key with ``train=True``.
      dtype: what the layers compute in; parameters and logits are float32.

    Raises:
      ValueError: if a scheme's anatomy has parts that are not of Transformers, no scheme for
        Transformers has that name, or a sequence is longer than ``max_length``.

    Source: Vaswani et al., *Attention Is All You Need*, NeurIPS 2017; Zhang, Dauphin, Ma, ICLR
    2019, section 4.3.

    Example:
      >>> Transformer(vocab_size=100, scheme="fixup").num_branches
      30
    """

    vocab_size: int
    num_layers: int = 6
    d_model: int = 512
    num_heads: int = 8
    d_ff: int = 2048
    scheme: str | schemes.Scheme = "fixup"
    source_vocab_size: int | None = None
    encoder_layers: int | None = None
    decoder_layers: int | None = None
    padding_id: int = 0
    max_length: int = 1024
    dropout: float = 0.0
    dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        _refuse_unknown_parts(schemes.fitting(self.scheme, "transformer").anatomy)
        if self.d_model % self.num_heads or self.d_model % 2:
            raise ValueError(
                f"d_model={self.d_model} found; expected an even multiple of "
                f"num_heads={self.num_heads}."
            )
        super().__post_init__()

    @property
    def depths(self) -> tuple[int, int]:
        """``N`` of the encoder and of the decoder."""
        given = self.encoder_layers, self.decoder_layers
        encoder, decoder = (self.num_layers if each is None else each for each in given)
        return encoder, decoder

    @property
    def num_branches(self) -> int:
        """``L``, the number of residual branches."""
        encoder, decoder = self.depths
        return 2 * encoder + 3 * decoder

    def setup(self) -> None:
        """Makes the embeddings, both stacks and the head."""
        table = partial(Embedding, d_model=self.d_model, padding_id=self.padding_id)
        self.encoder_embedding = table(self.source_vocab_size or self.vocab_size)
        self.decoder_embedding = table(self.vocab_size)
        self.head = Dense(self.vocab_size, lecun_fan_in, use_bias=False)
        self.embedding_dropout = nn.Dropout(self.dropout)

        self.anatomy = schemes.get(self.scheme).anatomy
        layer = partial(
            Layer, self.num_heads, self.d_ff, self.anatomy, dropout=self.dropout, dtype=self.dtype
        )
        encoder, decoder = self.depths
        self.encoder = Stack(layer, encoder, bias="bias_memory")
        self.decoder = Stack(partial(layer, cross=True), decoder, bias="bias_head")

    def __call__(self, source: jax.Array, target: jax.Array, train: bool = False) -> jax.Array:
        """Source ``[B, S]`` and shifted target ``[B, T]`` to logits ``[B, T, vocab_size]``.

        Token ``t`` of the target is the last that prediction ``t`` may know.
        """
        return self.decode(self.encode(source, train), source, target, train)

    def encode(self, source: jax.Array, train: bool = False) -> jax.Array:
        """The encoder's output ``[B, S, D]`` for a source ``[B, S]``."""
        x = self._embed(self.encoder_embedding, source, train)
        return self.encoder(x, self._source_mask(source), self._constants("encoder"), train=train)

    def decode(
        self, memory: jax.Array, source: jax.Array, target: jax.Array, train: bool = False
    ) -> jax.Array:
        """Logits ``[B, T, vocab_size]`` from :meth:`encode`'s output and the target so far."""
        x = self._embed(self.decoder_embedding, target, train)
        causal = jnp.tri(target.shape[1], dtype=bool)[None, None]
        constants, mask = self._constants("decoder"), self._source_mask(source)
        return self.head(self.decoder(x, causal, constants, memory, mask, train=train))

    def decode_next(
        self,
        memory: jax.Array,
        source: jax.Array,
        token: jax.Array,
        position: jax.Array,
        *,
        length: int,
    ) -> jax.Array:
        """Logits ``[B, vocab_size]`` of the token after one, of the target whose start is kept.

        As :meth:`decode` at that position, but from this token alone: the collection ``"cache"``,
        mutable in :meth:`apply`, holds the keys and values of the tokens before it and, from the
        first call on, those of the encoder's output. Positions are called one after another, from
        0; the axes of its leaves are ``[N, B, length or S, heads, d]``.

        Args:
          memory: what :meth:`encode` returned, ``[B, S, D]``.
          source: int ``[B, S]``, of which the padding is looked up.
          token: int ``[B]``.
          position: int32 [], where the token stands.
          length: how many tokens the target may have.
        """
        positions = self._positions(length)
        x = self.decoder_embedding(token[:, None]) + positions[position][None, None]
        seen = (jnp.arange(length) <= position)[None, None, None]
        constants, mask = self._constants("decoder"), self._source_mask(source)
        x, position = x.astype(self.dtype), jnp.asarray(position, jnp.int32)
        return self.head(self.decoder(x, seen, constants, memory, mask, position=position))[:, 0]

    def _embed(self, table: Embedding, tokens: jax.Array, train: bool) -> jax.Array:
        x = (table(tokens) + self._positions(tokens.shape[1])[None]).astype(self.dtype)
        return self.embedding_dropout(x, deterministic=not train)

    def _positions(self, length: int) -> jax.Array:
        if length > self.max_length:
            raise ValueError(
                f"a sequence of {length} tokens found; expected at most max_length="
                f"{self.max_length}."
            )
        return jnp.asarray(sinusoids(length, self.d_model))

    def _source_mask(self, source: jax.Array) -> jax.Array:
        return (source != self.padding_id)[:, None, None, :]

    def _constants(self, stack: Literal["encoder", "decoder"]) -> BranchConstants:
        """Those of the branches of one stack, ``[N, 2]`` or ``[N, 3]`` each."""
        encoder, decoder = self.depths
        begins = (k == 2 * encoder for k in range(self.num_branches))
        every = self.anatomy.constants(tuple(begins))
        if stack == "encoder":
            which, shape = slice(None, 2 * encoder), (encoder, 2)
        else:
            which, shape = slice(2 * encoder, None), (decoder, 3)
        return jax.tree.map(lambda value: jnp.reshape(value, shape), every.part(which))


def _refuse_unknown_parts(anatomy: Anatomy) -> None:
    """Refuses an anatomy with parts that are not of Transformers."""
    for name in ("channel_biases", "standardized"):
        if getattr(anatomy, name):
            raise ValueError(f"Anatomy({name}=...) found; a Transformer has no such part.")
    if anatomy.norm is not None and (
        anatomy.norm not in TRANSFORMER_NORMS or anatomy.norm_place not in ("pre", "post")
    ):
        raise ValueError(
            f"Anatomy(norm={anatomy.norm!r}, norm_place={anatomy.norm_place!r}) found; a "
            "Transformer has none, or norm='layer', 'dyt' or 'derf' with norm_place='pre' or "
            "'post'."
        )
