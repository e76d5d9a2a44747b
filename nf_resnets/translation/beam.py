"""Beam search as one compiled loop that computes each token once."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from nf_resnets import models
from nf_resnets.models.branch import CACHE
from nf_resnets.translation.vocabulary import BEGIN, END, PADDING

_NEVER = -jnp.inf


def length_penalty(length: Any, alpha: Any, offset: Any = 5.0) -> Any:
    r"""``lp(n) = ((offset + n) / (offset + 1))**alpha``, by which log-probabilities are divided.

    ``n`` is the number of tokens, the end included; ``offset = 5`` gives Wu et al.'s equation 14,
    ``offset = 0`` fairseq's ``n**alpha``.

    Source: Wu et al., *Google's Neural Machine Translation System*, 2016; Ott et al., *fairseq*,
    NAACL 2019.

    Example:
      >>> length_penalty(7, alpha=1.0), length_penalty(7, alpha=1.0, offset=0.0)
      (2.0, 7.0)
    """
    return ((offset + length) / (offset + 1.0)) ** alpha


class _Search(NamedTuple):
    """The state of a search; ``alive`` hypotheses have no end yet."""

    position: jax.Array  # int32 [], tokens that each alive hypothesis has
    alive: jax.Array  # int32 [B, K, length], their tokens
    alive_sums: jax.Array  # float32 [B, K], their log-probabilities, the highest first
    ended: jax.Array  # int32 [B, K, length], the best hypotheses that have ended
    scores: jax.Array  # float32 [B, K], theirs, the highest first; -inf where there is none
    done: jax.Array  # bool [B], whether nothing of a sentence will change any more
    cache: Any  # the keys and values of the alive


@functools.partial(jax.jit, static_argnames=("model", "length", "beam"))
def _searched(
    model: models.Transformer,
    params: Any,
    source: jax.Array,
    limits: jax.Array,
    alpha: jax.Array,
    offset: jax.Array,
    *,
    length: int,
    beam: int,
) -> tuple[jax.Array, jax.Array]:
    rows, size = source.shape[0], model.vocab_size
    memory: Any = model.apply({"params": params}, source, method="encode")
    # Every hypothesis is a row of its own, those of one sentence side by side.
    memory, repeated = (jnp.repeat(array, beam, axis=0) for array in (memory, source))

    def next_logits(tokens: jax.Array, position: jax.Array, cache: Any) -> tuple[jax.Array, Any]:
        logits, variables = model.apply(
            {"params": params, **cache}, memory, repeated, tokens, position,
            length=length, method="decode_next", mutable=[CACHE],
        )  # fmt: skip
        return logits, variables

    def penalty(count: jax.Array) -> jax.Array:
        return length_penalty(count.astype(jnp.float32), alpha, offset)

    def unfinished(search: _Search) -> jax.Array:
        return (search.position < length) & ~search.done.all()

    def body(search: _Search) -> _Search:
        position = search.position
        before = lax.dynamic_index_in_dim(
            search.alive, jnp.maximum(position - 1, 0), axis=2, keepdims=False
        )
        tokens = jnp.where(position == 0, BEGIN, before)
        logits, cache = next_logits(tokens.reshape(-1), position, search.cache)
        log_probabilities = jax.nn.log_softmax(logits.astype(jnp.float32)).reshape(rows, beam, size)
        return _advance(search._replace(cache=cache), log_probabilities, limits, penalty)

    # A first call only makes the cache: the loop computes position 0 again.
    begin = jnp.full(rows * beam, BEGIN, jnp.int32)
    _, cache = next_logits(begin, jnp.int32(0), {})
    first = jnp.where(jnp.arange(beam) == 0, 0.0, _NEVER).reshape(1, beam)
    start = _Search(
        position=jnp.int32(0),
        alive=jnp.full((rows, beam, length), PADDING, jnp.int32),
        alive_sums=jnp.broadcast_to(first, (rows, beam)),
        ended=jnp.full((rows, beam, length), PADDING, jnp.int32),
        scores=jnp.full((rows, beam), _NEVER),
        # A row of padding has nothing to be translated.
        done=(source == PADDING).all(axis=1),
        cache=cache,
    )
    end = lax.while_loop(unfinished, body, start)
    return end.ended, end.scores


def _advance(
    search: _Search, log_probabilities: jax.Array, limits: jax.Array, penalty: Any
) -> _Search:
    """Continues every alive hypothesis by the token at the position, ``[B, K, V]``."""
    position = search.position
    rows, beam, size = log_probabilities.shape
    token = jnp.arange(size)
    never = ((token == PADDING) | (token == BEGIN)).reshape(1, 1, size)
    # The last token that a hypothesis may have is its end.
    last = (position + 1 >= limits).reshape(rows, 1, 1)
    never = never | (last & (token != END).reshape(1, 1, size))
    sums = search.alive_sums[:, :, None] + jnp.where(never, _NEVER, log_probabilities)

    # Twice as many as there are hypotheses, since at most half of them can be ends.
    best, index = lax.top_k(sums.reshape(rows, beam * size), 2 * beam)
    origin, token = index // size, (index % size).astype(jnp.int32)
    grown = jnp.take_along_axis(search.alive, origin[:, :, None], axis=1)
    grown = lax.dynamic_update_index_in_dim(grown, token, position, axis=2)
    is_end = token == END

    # An end counts where it is among the best K, as in fairseq: with K = 1, where a greedy
    # choice would end.
    ends = is_end & (jnp.arange(2 * beam) < beam).reshape(1, -1)
    new = jnp.where(ends, best / penalty(position + 1), _NEVER)
    scores = jnp.concatenate([search.scores, new], axis=1)
    scores, kept = lax.top_k(scores, beam)
    ended = jnp.concatenate([search.ended, grown], axis=1)
    ended = jnp.take_along_axis(ended, kept[:, :, None], axis=1)

    alive_sums, kept = lax.top_k(jnp.where(is_end, _NEVER, best), beam)
    alive = jnp.take_along_axis(grown, kept[:, :, None], axis=1)
    origin = jnp.take_along_axis(origin, kept, axis=1)
    row = (jnp.arange(rows)[:, None] * beam + origin).reshape(-1)

    def of_origin(path: Any, leaf: jax.Array) -> jax.Array:
        # What belongs to the source is the same for all hypotheses of a sentence.
        across = any(getattr(part, "key", None) == "cross_attention" for part in path)
        return leaf if across else jnp.take(leaf, row, axis=1)

    cache = jax.tree_util.tree_map_with_path(of_origin, search.cache)

    # A longer hypothesis has a lower log-probability, and no larger penalty than the longest.
    hope = alive_sums[:, 0] / penalty(limits)
    done = jnp.isfinite(scores[:, -1]) | (scores[:, 0] >= hope) | ~jnp.isfinite(hope)
    # A finished sentence stays as it is, whatever the others in its batch do.
    frozen = search.done[:, None]
    return _Search(
        position=position + 1,
        alive=alive,
        alive_sums=alive_sums,
        ended=jnp.where(frozen[:, :, None], search.ended, ended),
        scores=jnp.where(frozen, search.scores, scores),
        done=search.done | done,
        cache=cache,
    )


def beam_search(
    model: models.Transformer,
    params: Any,
    source: Any,
    limits: Any,
    *,
    length: int,
    beam: int = 4,
    alpha: float = 0.6,
    offset: float = 5.0,
) -> tuple[jax.Array, jax.Array]:
    r"""The likeliest translations of tokens: those of the highest score, as far as it looks.

    The score of a hypothesis ``y``, its end included, is ``log P(y | x) / lp(|y|)``, with
    :func:`length_penalty`. In each step every alive hypothesis is continued by every token but
    padding and begin, and of all of these the likeliest ``K`` are followed; one that ends among the
    likeliest ``K``, or at its limit, is kept. A sentence is done when ``K`` have ended, as in
    fairseq, or when none that is alive can still become better than the best that has ended.

    Args:
      model: the network.
      params: its parameters.
      source: int ``[B, S]``, ended by ``END`` and filled up with padding; a row of padding is not
        translated.
      limits: int ``[B]``, tokens that the translation of each may have, the end included.
      length: the largest of ``limits``, or more.
      beam: ``K``.
      alpha: of the length penalty.
      offset: of the length penalty.

    Returns:
      The hypotheses that ended, int32 ``[B, K, length]``, each with ``END`` and then padding; their
      scores, float32 ``[B, K]``, the highest first, -inf where there are fewer.

    Source: Wu et al., *Google's Neural Machine Translation System*, 2016, section 7; Ott et al.,
    *fairseq*, NAACL 2019.
    """
    source, limits = jnp.asarray(source, jnp.int32), jnp.asarray(limits, jnp.int32)
    if limits.size and not (int(limits.min()) >= 1 and int(limits.max()) <= length):
        raise ValueError(
            f"limits from {int(limits.min())} to {int(limits.max())} found; expected 1 to "
            f"length={length}."
        )
    numbers = (jnp.float32(alpha), jnp.float32(offset))
    return _searched(model, params, source, limits, *numbers, length=length, beam=beam)
