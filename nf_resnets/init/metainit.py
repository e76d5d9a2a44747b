"""MetaInit: weights whose norms are tuned until gradients change little under a gradient step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from nf_resnets.init.data_dependent import check_apply, check_finite, check_logits
from nf_resnets.init.standard import standard
from nf_resnets.init.tree import check_count, check_key, check_positive, float_leaves
from nf_resnets.init.tuned import is_tuned, times, tunable
from nf_resnets.roles import Leaf, RoleMap, Rules
from nf_resnets.schemes import Anatomy, Scheme

SCHEME_STEPS = 100
"""Meta-steps of the registered scheme, a fifth of the paper's 500, to cost less."""


def gradient_quotient(
    loss: Callable[[Any], jax.Array], params: Any, *, eps: float = 1e-5
) -> jax.Array:
    r"""How much one gradient step changes the gradient, relative to it: equation 1 of the paper.

    ``GQ = 1/N || (g - H g) / (g + eps s) - 1 ||_1``, where ``g`` is the loss's gradient, ``H`` its
    Hessian, ``N`` the number of parameters and ``s`` the sign of ``g``, 1 where ``g`` is 0. It is 0
    where the loss is linear (but for ``eps``), and 1 where a step leaves no gradient at all.

    Args:
      loss: ``loss(params) -> []``, of which derivatives are taken in reverse mode only.
      params: a tree of floating-point arrays.
      eps: keeps the quotient finite where ``g`` is 0.

    Returns:
      ``[]``.

    Source: Dauphin, Schoenholz, *MetaInit: Initializing learning by learning to initialize*,
    NeurIPS 2019.

    Example:
      >>> quadratic = lambda x: 0.3 * jnp.square(x).sum() / 2
      >>> round(float(gradient_quotient(quadratic, jnp.ones(4))), 4)
      0.3
    """

    def half_square(params: Any) -> tuple[jax.Array, Any]:
        gradient = jax.grad(loss)(params)
        squares = jnp.stack([jnp.square(g).sum() for g in jax.tree.leaves(gradient)])
        return squares.sum() / 2, gradient

    # The gradient of |g|^2 / 2 is H g.
    product, gradient = jax.grad(half_square, has_aux=True)(params)

    def deviation(g: jax.Array, hg: jax.Array) -> jax.Array:
        shift = jnp.where(g >= 0, eps, -eps)
        # (g - H g) / (g + eps s) - 1, without subtracting what is nearly equal.
        return jnp.abs((hg + shift) / (g + shift)).sum()

    sums = jnp.stack(jax.tree.leaves(jax.tree.map(deviation, gradient, product)))
    return sums.sum() / sum(leaf.size for leaf in jax.tree.leaves(params))


def metainit(
    apply_fn: Callable[..., Any],
    params: Any,
    batch: Any,
    *,
    key: jax.Array,
    steps: int = 500,
    learning_rate: float = 0.1,
    momentum: float = 0.9,
    eps: float = 1e-5,
    rules: Rules | RoleMap | None = None,
) -> Any:
    r"""Tunes the norms of the weights so that the gradient quotient falls, the paper's algorithm 1.

    Signed gradient descent with momentum: ``v <- momentum v - learning_rate sign(dGQ / d||W||)``
    and ``||W|| <- ||W|| + v``, for all weights at once, where ``GQ`` is
    :func:`gradient_quotient` of the mean cross-entropy to labels drawn anew in every step. Biases,
    scalars and directions ``W / ||W||`` stay as they are. The authors' code lets a norm pass 0,
    which turns the weight around; here a step halves it at most, and then its momentum is lost.

    The parameters whose gradient is nearest to 0 rule ``GQ``, so that its slope is noisy: it need
    not fall in the first steps, nor be lowest after the last.

    Args:
      apply_fn: Flax's ``model.apply``. The meta-steps are compiled anew in every call: to set many
        networks, ``jax.jit`` the call.
      params: the tree under ``"params"``, already drawn. It is not changed.
      batch: images ``[B, H, W, C]``, or what else the network takes; the authors draw theirs from
        N(0, 1), no data is needed.
      key: a JAX PRNG key, of the labels.
      steps: the number of meta-steps, 1 or more. Each is a third derivative of the loss.
      learning_rate: the first step's change of a norm.
      momentum: in ``[0, 1)``.
      eps: of the gradient quotient.
      rules: what the paths of the tree mean; by default the names of this library's models. A
        stacked leaf has one norm for each branch.

    Returns:
      A tree of the same structure, dtypes and shardings, each weight times a positive number.

    Raises:
      ValueError: if a number is out of its range, the batch has no image, the tree no weight, it
        does not fit the rules, or a norm does not stay finite (under ``jit`` nothing is said).
      TypeError: if ``key`` is not a PRNG key, or ``apply_fn`` no function of variables and images.

    Source: Dauphin, Schoenholz, *MetaInit: Initializing learning by learning to initialize*,
    NeurIPS 2019, with the defaults of the code in its appendix.

    Example:
      >>> def linear(variables, x):
      ...     return x @ variables["params"]["head"]["kernel"]
      >>> params = {"head": {"kernel": jnp.eye(3)}}
      >>> result = metainit(linear, params, jnp.eye(3), key=jax.random.key(0), steps=1)
      >>> round(float(abs(jnp.linalg.norm(result["head"]["kernel"]) - 3**0.5)), 4)
      0.1
    """
    check_count(steps=steps)
    check_positive(learning_rate=learning_rate, eps=eps)
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum={momentum!r} found; expected a number in [0, 1).")
    check_key(key)
    check_apply(apply_fn)
    role_map = tunable(params, batch, rules)
    options = (steps, learning_rate, momentum, eps)
    values, put = float_leaves(params)
    find = jax.jit(partial(_find_factors, apply_fn, role_map, options, put))
    factors = find(values, batch, key)
    check_finite(factors, "tuned norms")
    return times(role_map, factors, params)


def _norm(leaf: Leaf, value: jax.Array) -> jax.Array:
    """The norm of a weight, of a stacked one those of its branches."""
    norm = jnp.sqrt(jnp.square(value).sum(tuple(range(int(leaf.stacked), value.ndim))))
    # A weight that is 0 has no direction: its gradient is 0, and it stays.
    return jnp.where(norm == 0, 1.0, norm)


def _find_factors(
    apply_fn: Callable[..., Any],
    role_map: RoleMap,
    options: tuple[int, float, float, float],
    put: Callable[..., Any],
    values: list[jax.Array],
    images: Any,
    key: jax.Array,
) -> dict[str, jax.Array]:
    """The meta-steps: what each weight is to be multiplied by, by its path."""
    import optax  # an eighth of what importing the package costs, and nothing else in it needs it

    steps, learning_rate, momentum, eps = options
    params = put(values)
    start = {
        leaf.path: _norm(leaf, value) for leaf, value in role_map.items(params) if is_tuned(leaf)
    }

    def quotient(norms: dict[str, jax.Array], key: jax.Array) -> jax.Array:
        def loss(values: Any) -> jax.Array:
            logits = apply_fn({"params": put(values)}, images)
            check_logits(logits)
            logits = logits.astype(jnp.float32)
            labels = jax.random.randint(key, logits.shape[:-1], 0, logits.shape[-1])
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        factors = {path: norms[path] / start[path] for path in norms}
        return gradient_quotient(loss, float_leaves(times(role_map, factors, params))[0], eps=eps)

    def step(index: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        norms, velocity = state
        slopes = jax.grad(quotient)(norms, jax.random.fold_in(key, index))
        velocity = jax.tree.map(
            lambda v, slope: momentum * v - learning_rate * jnp.sign(slope), velocity, slopes
        )
        # Below half its norm a weight does not fall in one step; it stops there, for its
        # momentum would carry it on to 0.
        stopped = jax.tree.map(lambda n, v: n + v < n / 2, norms, velocity)
        norms = jax.tree.map(
            lambda stop, n, v: jnp.where(stop, n / 2, n + v), stopped, norms, velocity
        )
        velocity = jax.tree.map(lambda stop, v: jnp.where(stop, 0.0, v), stopped, velocity)
        return norms, velocity

    still = jax.tree.map(jnp.zeros_like, start)
    norms, _ = lax.fori_loop(0, steps, step, (start, still))
    return {path: norms[path] / start[path] for path in norms}


def _calibrate(apply_fn: Callable[..., Any], params: Any, batch: Any) -> Any:
    """:func:`metainit` as the scheme has it: the labels of ``jax.random.key(0)``, fewer steps."""
    return metainit(apply_fn, params, batch, key=jax.random.key(0), steps=SCHEME_STEPS)


SCHEME = Scheme(
    name="metainit",
    title="MetaInit",
    init=standard,
    anatomy=Anatomy(conv_biases=True),
    reference="Dauphin, Schoenholz: MetaInit, NeurIPS 2019",
    fits=frozenset({"pre_activation", "post_activation", "plain"}),
    calibrate=_calibrate,
)

__all__ = ["SCHEME", "SCHEME_STEPS", "gradient_quotient", "metainit"]
