"""Which scalar branch has updates of Theta(eta / L): Theorem 4 of the Fixup paper, in numbers.

A branch of ``m`` layers is reduced to ``F(x) = a_1 ... a_m x``. Its layers are powers of the
number of branches, ``a_i = L**-p_i``, so that every Theta is an exponent, which is read off as a
slope against ``L``. All of this is NumPy in float64: ``L`` goes up to a million.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

DEPTHS = tuple(10.0**power for power in range(1, 7))
"""The ``L`` over which exponents are measured."""


def scalar_update(
    layers: ArrayLike, learning_rate: float, *, x: float = 1.0, gradient: float = 1.0
) -> Floats:
    r"""The change of ``F(x) = a_1 ... a_m x`` by one step of gradient descent, to all orders.

    ``Delta F = prod_i (a_i - eta g_i) x - prod_i a_i x`` with equation 16's
    ``g_i = (dl / dF) (prod_{k != i} a_k) x``. It is summed over the sets of layers that move, so
    that nothing cancels between the two products.

    Args:
      layers: ``a_1 ... a_m``, of shape ``[..., m]``; zeros are allowed.
      learning_rate: ``eta``.
      x: the branch's input.
      gradient: ``dl / dF``.

    Returns:
      ``Delta F`` of shape ``[...]``.

    Source: Zhang, Dauphin, Ma, ICLR 2019, appendix B.2.

    Example:
      >>> float(scalar_update([1.0, 0.5], 0.1))  # (1 - 0.05) (0.5 - 0.1) - 0.5
      -0.12
    """
    a = np.asarray(layers, np.float64)
    m = a.shape[-1]
    others = [np.delete(a, i, axis=-1).prod(axis=-1) for i in range(m)]
    moves = [-learning_rate * gradient * other * x for other in others]
    total = np.zeros(a.shape[:-1])
    for size in range(1, m + 1):
        for moved in itertools.combinations(range(m), size):
            term = np.full(a.shape[:-1], float(x))
            for i in range(m):
                term = term * (moves[i] if i in moved else a[..., i])
            total = total + term
    return total


def smallest_left_out(layers: ArrayLike) -> Floats:
    """Theorem 4's ``prod_{k != j} a_k`` at ``x = 1``, with ``j`` the smallest layer's index.

    Example:
      >>> float(smallest_left_out([0.5, 0.0, 0.5]))
      0.25
    """
    ordered = np.sort(np.asarray(layers, np.float64), axis=-1)
    return np.asarray(ordered[..., 1:].prod(axis=-1))


def layers_of(exponents: ArrayLike, depth: ArrayLike) -> Floats:
    """The layers ``a_i = L**-p_i``, ``[D, ..., m]``, of ``p [..., m]`` and ``L [D]``.

    An infinite ``p_i`` is a layer that starts at 0.
    """
    p = np.asarray(exponents, np.float64)
    L = np.asarray(depth, np.float64).reshape(-1, *(1,) * p.ndim)
    return np.power(L, -p)


def slope(values: Floats, depths: Sequence[float]) -> Floats:
    """The exponent ``e`` of ``|values| ~ L**-e``, ``[D, ...]``, infinite where they are zero.

    It is that between the last two depths, where terms of lower order have died out.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        drop = np.log(np.abs(values[-2])) - np.log(np.abs(values[-1]))
    exponent = drop / (np.log(depths[-1]) - np.log(depths[-2]))
    return np.where(values[-1] == 0, np.inf, exponent)


class Theorem4(NamedTuple):
    """Exponents measured for many scalar branches.

    Attributes:
      update: ``e`` in ``|Delta F| / eta ~ L**-e``, ``[N]``; the design asks for 1.
      left_out: ``e`` in ``(prod_{k != j} a_k) x ~ L**-e``, ``[N]``; the theorem asks for 1/2.
    """

    update: Floats
    left_out: Floats


def theorem_4(exponents: ArrayLike, *, learning_rate: float = 1e-9) -> Theorem4:
    r"""Measures both sides of Theorem 4 for scalar branches.

    The theorem: ``Delta F`` is ``Theta(eta / L)`` if and only if
    ``(prod_{k != j} a_k) x = Theta(L**-0.5)`` with ``j`` the index of the smallest layer,
    for ``a_i >= 0``, ``x = Theta(1)``, ``dl/dF = Theta(1)`` and ``eta -> 0``.

    Args:
      exponents: ``p`` of the layers ``a_i = L**-p_i``, of shape ``[N, m]``.
      learning_rate: ``eta``, small: the theorem is about ``eta -> 0``.

    Returns:
      The measured exponents.

    Raises:
      ValueError: if ``exponents`` has not two axes, or ``m`` is below 2.

    Source: Zhang, Dauphin, Ma, ICLR 2019, Theorem 4 and equation 15.

    Example:
      >>> found = theorem_4([fixup_exponents(3), (0.0, 0.0, 0.0)])
      >>> found.update.round(3).tolist(), found.left_out.round(3).tolist()
      ([1.0, 0.0], [0.5, 0.0])
    """
    p = np.asarray(exponents, np.float64)
    if p.ndim != 2 or p.shape[-1] < 2:
        raise ValueError(f"exponents of shape {list(p.shape)} found; expected [N, m] with m >= 2.")
    a = layers_of(p, DEPTHS)
    return Theorem4(
        update=slope(scalar_update(a, learning_rate), DEPTHS),
        left_out=slope(smallest_left_out(a), DEPTHS),
    )


def grid(values: Sequence[Any], m: int) -> Floats:
    """All branches of ``m`` layers with exponents out of ``values``: ``[len(values)**m, m]``.

    Example:
      >>> grid([0, 0.5], 2).tolist()
      [[0.0, 0.0], [0.0, 0.5], [0.5, 0.0], [0.5, 0.5]]
    """
    return np.array([[float(p) for p in row] for row in itertools.product(values, repeat=m)])


def fixup_exponents(m: int, *, zero_last: bool = True) -> tuple[float, ...]:
    """Fixup's choice: ``p = 1/(2m - 2)`` for all layers, the last one 0 itself (``p`` infinite).

    With ``zero_last=False`` the last layer is scaled like the others.

    Raises:
      ValueError: if ``m``, the layers of the branch, is below 2.

    Example:
      >>> fixup_exponents(2)
      (0.5, inf)
    """
    if m < 2:
        raise ValueError(f"m={m} found; Fixup's exponent 1/(2m - 2) needs m >= 2 layers.")
    p = 1 / (2 * m - 2)
    return (*(p,) * (m - 1), np.inf if zero_last else p)


__all__ = [
    "DEPTHS",
    "Theorem4",
    "fixup_exponents",
    "grid",
    "layers_of",
    "scalar_update",
    "slope",
    "smallest_left_out",
    "theorem_4",
]
