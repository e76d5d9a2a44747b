r"""What signal propagation must be at initialisation, by the papers' recursions.

``Var`` is the second moment, averaged over channels and positions. A layer of independent weights
with mean 0 multiplies it by ``fan_in mean(W^2)``, whatever its input is, on average over draws; a
ReLU halves that of a symmetric input; and a branch whose last layer is such a one is uncorrelated
with the skip path. So in units of the first block's input, with the *gains* ``b_k`` of the branch
and ``a_k`` of the skip path,

    ``Var skip_k = a_k Var x_{k-1}``, ``Var branch_k = b_k Var x_{k-1}`` (``b_k`` itself after a
    norm), ``Var x_k = Var skip_k + Var branch_k``.

That holds for wide layers, on average over draws, for biases of 0, and away from zero-padded
borders, unless the first moment is one for each position, which carries the padding along.
:func:`propagate` is the recursion. Networks with a ReLU after the sum are another one,
:func:`propagate_rectified`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

CENTERED_RELU = 1 - 1 / math.pi
"""``var(relu(z)) / E[relu(z)^2]`` of a symmetric Gaussian ``z``: what is left after centring."""


class ClosedForm(NamedTuple):
    """The second moments of every block, in units of the first input's, float64 ``[L]``.

    Attributes:
      input: of ``x_{k-1}``.
      skip: of the skip path as it enters the sum.
      branch: of the residual branch as it enters the sum.
      sum: of the two together, before a ReLU that follows.
    """

    input: Floats
    skip: Floats
    branch: Floats
    sum: Floats

    @property
    def share(self) -> Floats:
        """The branch's share of the sum, ``[L]``."""
        return self.branch / self.sum


def propagate(
    branch_gains: ArrayLike,
    skip_gains: ArrayLike = 1.0,
    *,
    random_skips: ArrayLike = False,
    normalized: bool = False,
    normalized_sum: bool = False,
    centered: bool = False,
    first: ArrayLike = 1.0,
    strides: ArrayLike = 1,
    kernels: Sequence[int] = (3, 3),
) -> ClosedForm:
    r"""The recursion of a network whose blocks begin with the activation (pre-activation).

    Args:
      branch_gains: ``b_k``, ``[L]``: the squared constants and scalars on the branch times
        ``fan_in mean(W^2) / 2`` of each of its layers.
      skip_gains: ``a_k``, ``[L]``: the squared constant on the skip path, times
        ``fan_in mean(W^2) / 2`` of a convolution on it.
      random_skips: for every block, whether there is a convolution on the skip path.
      normalized: whether a batch norm stands before each activation: the layers of the branch, and
        a convolution on the skip path, then see inputs of moment 1. With padding the result is
        about 4% high on images of 8 x 8.
      normalized_sum: whether one more norm stands after every sum: a batch norm in a network that
        has them, else a LayerNorm.
      centered: whether data-dependent biases take each channel's mean out of every layer's input,
        and with it ``1/pi`` of the moment. Assumed then: all examples are independent.
      first: ``Var x_0``, a number for the interior of large images, or one for each position
        ``[H, W]``, to carry the zero padding along: moments are then averages over all positions.
      strides: of every block, 1 or 2, where there are positions.
      kernels: the sizes of the branch's convolutions, in order; the first that is not 1 has the
        stride.

    Example:
      >>> propagate([1.0, 1.0, 1.0]).sum.tolist()
      [2.0, 4.0, 8.0]
    """
    left = CENTERED_RELU ** len(kernels) if centered else 1.0
    q, bordered = np.atleast_2d(np.asarray(first, np.float64)), np.ndim(first) > 0
    rows = []
    for b_k, a_k, convolved, stride in _blocks(branch_gains, skip_gains, random_skips, strides):
        entering = q.mean()
        # A convolution on the skip path takes what the branch takes.
        skip = a_k * (q / entering if normalized and convolved else q)[::stride, ::stride]
        inner = _through(q, kernels, stride, bordered=bordered, normalized=normalized)
        branch = b_k * left * inner
        q = skip + branch
        rows.append((entering, skip.mean(), branch.mean(), q.mean()))
        q = q / q.mean() if normalized_sum else q
    return ClosedForm(*np.array(rows).reshape(-1, 4).T)


def propagate_rectified(
    branch_gains: ArrayLike,
    skip_gains: ArrayLike = 1.0,
    *,
    new_channels: ArrayLike = 0.0,
    random_skips: ArrayLike = False,
    normalized: bool = False,
    centered: bool = False,
    first: ArrayLike = 1.0,
    strides: ArrayLike = 1,
    kernels: Sequence[int] = (3, 3),
) -> ClosedForm:
    r"""The recursion of a network with a ReLU after the sum, ``x_k = relu(skip + branch)``.

    The skip path is not negative then, and the ReLU takes less than half of the sum's second
    moment. In a wide network the units are independent: one of them is the Markov chain
    ``x_k = relu(sqrt(a_k) x_{k-1} + sqrt(b_k Var x_{k-1}) g)``, ``g ~ N(0, 1)``, from
    ``x_0 = relu(g)``. Its distribution, an atom at 0 and a density, is followed on a grid in units
    of ``sqrt(Var x_k)``; the moments of each step are exact given the distribution before it.
    Zero padding is carried along as in :func:`propagate`, but for the unit's distribution, which is
    taken to be of one form at all positions.

    The arguments are those of :func:`propagate`, but that a gain contains ``fan_in mean(W^2)``
    itself of a branch's first layer, whose input is the ReLU's output (``b_k`` is 2 for He's
    initialisation), and of a convolution on the skip path, which makes it Gaussian; a batch norm
    stands after every layer and leaves the moments ``b_k`` and ``a_k``; and ``new_channels [L]`` is
    the part of the channels that the shortcut fills with zeros.

    Returns:
      The moments of every block; the sum's are those before the ReLU.

    Example:
      >>> he = propagate_rectified([2.0, 2.0])
      >>> (he.sum / he.input).tolist()  # the sum without the ReLU after it: (a + b) Var x
      [3.0, 3.0]
      >>> he.input.round(2).tolist()
      [1.0, 2.32]
    """
    edges = np.linspace(0.0, 12.0, 601)
    at = np.append(0.0, (edges[1:] + edges[:-1]) / 2)  # the atom, then the cells
    weight = _rectified(at[:1], np.ones(1), 1.0, edges)[0]
    q, bordered = np.atleast_2d(np.asarray(first, np.float64)), np.ndim(first) > 0
    blocks = _blocks(branch_gains, skip_gains, new_channels, random_skips, strides)
    rows = []
    for b_k, a_k, new_k, convolved, stride in blocks:
        entering = q.mean()
        if normalized:  # the norm after the last layer makes up for the padding, on average
            inner = _through(q / entering, kernels, stride, bordered=bordered)
            branch_map = b_k * inner / inner.mean()
        else:
            kept = 1 - (weight * at).sum() ** 2  # of the moment, without the channels' means
            seen = kept * CENTERED_RELU ** (len(kernels) - 1) if centered else 1.0
            branch_map = b_k * seen * _through(q, kernels, stride, bordered=bordered)
        strided = q[::stride, ::stride]
        skip_map = strided * (a_k / strided.mean() if normalized and convolved else a_k)
        skip_map = skip_map * (1 - new_k)
        skip, branch = skip_map.mean() / entering, branch_map.mean() / entering
        if convolved:
            start, mass, noise = at[:1], np.ones(1), skip + branch
        else:
            start, mass, noise = math.sqrt(skip / (1 - new_k)) * at, weight * (1 - new_k), branch
            mass = mass + new_k * (at == 0)
        weight, grown = _rectified(start, mass, noise, edges)
        sums = skip_map + branch_map
        rows.append((entering, *(each.mean() for each in (skip_map, branch_map, sums))))
        q = sums * grown / (skip + branch)
    return ClosedForm(*np.array(rows).reshape(-1, 4).T)


def _blocks(gains: ArrayLike, *others: ArrayLike) -> Iterator[tuple[Any, ...]]:
    """Of every block its branch's gain and the other values, of which one may be for all."""
    return zip(*np.broadcast_arrays(np.asarray(gains, np.float64), *others), strict=True)


def _through(
    q: Floats, kernels: Sequence[int], stride: int, *, bordered: bool, normalized: bool = False
) -> Floats:
    """What padding and stride of a branch's convolutions leave at each position."""
    strided = next((at for at, kernel in enumerate(kernels) if kernel > 1), 0)
    for at, kernel in enumerate(kernels):
        q = q / q.mean() if normalized else q
        if bordered and kernel > 1:  # the mean over each position's neighbours, 0 outside
            view = np.lib.stride_tricks.sliding_window_view
            q = view(np.pad(q, kernel // 2), (kernel, kernel)).mean(axis=(-2, -1))
        q = q[::stride, ::stride] if at == strided else q
    return q


def _rectified(at: Floats, weight: Floats, noise: float, edges: Floats) -> tuple[Floats, float]:
    """The distribution of ``relu(x + sqrt(noise) g)``, and its second moment.

    ``x`` is at the points ``at`` with the probabilities ``weight``, ``[N]``. The result are the
    probabilities of 0 and of the cells between ``edges``, in units of the root mean square.
    """
    from scipy.special import ndtr  # imported here for the time that it takes

    # Without noise the same formulas hold in the limit.
    deviation = math.sqrt(max(noise, 1e-12))
    z = at / deviation
    density = np.exp(-np.square(z) / 2) / math.sqrt(2 * math.pi)
    second = ((np.square(at) + noise) * ndtr(z) + at * deviation * density) @ weight
    limits = (edges[:, None] * math.sqrt(second) - at[None, :]) / deviation
    cumulative = ndtr(limits) @ weight
    cumulative[-1] = 1.0
    probabilities = np.append(cumulative[0], np.diff(cumulative))
    return probabilities / probabilities.sum(), float(second)
