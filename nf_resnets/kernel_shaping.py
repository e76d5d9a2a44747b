r"""TAT and DKS: activations with which deep networks train without shortcuts or normalisation.

In a wide network of independent weights two inputs of second moment 1 and correlation ``c`` leave
an activation ``phi`` with the correlation ``C(c) = E[phi(u) phi(v)] / E[phi(u)^2]``, ``u`` and
``v`` standard normal with correlation ``c``: its *C-map*. Those of a network are compositions and
weighted means of it (:class:`Composition`). In a deep network of ReLUs they send every ``c`` to
nearly 1, and gradient descent cannot tell inputs apart. Both methods choose the activation by the
C-map of the whole network: :func:`leaky_relu_tat` the slope of a leaky ReLU, :func:`smooth_tat` and
:func:`dks` scales and shifts before and after a smooth function.

Source: Martens et al., *Rapid training of deep neural networks without skip connections or
normalization layers using Deep Kernel Shaping*, 2021 (DKS); Zhang, Botev, Martens, *Deep Learning
without Shortcuts: Shaping the Kernel with Tailored Rectifiers*, ICLR 2022 (TAT).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

Map = Callable[[float], float]

# Each computes in NumPy, for the equations, and in JAX, for the networks.
_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "tanh": lambda xp, x: xp.tanh(x),
    "softplus": lambda xp, x: xp.logaddexp(x, 0.0),
    "silu": lambda xp, x: 0.5 * x * (1 + xp.tanh(0.5 * x)),
    "gelu": lambda xp, x: (
        0.5 * x * (1 + xp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    ),
}
SMOOTH = tuple(_FUNCTIONS)
"""The smooth functions that can be shaped; "gelu" is its approximation by a tanh."""

LEAKY_RELU = "leaky_relu"

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(160)
_WEIGHTS = _WEIGHTS / math.sqrt(2 * math.pi)
_DEGREE = 100


@dataclasses.dataclass(frozen=True)
class Activation:
    r"""``output_scale * (phi(input_scale * x + input_shift) + output_shift)``, elementwise.

    Attributes:
      function: ``phi``, one of :data:`SMOOTH`, or ``"leaky_relu"``, ``max(x, negative_slope * x)``.
      negative_slope: of the leaky ReLU.

    Example:
      >>> Activation("leaky_relu", negative_slope=0.5)(jnp.array([-2.0, 2.0])).tolist()
      [-1.0, 2.0]
    """

    function: str
    negative_slope: float = 0.0
    input_scale: float = 1.0
    input_shift: float = 0.0
    output_scale: float = 1.0
    output_shift: float = 0.0

    def __call__(self, x: jax.Array) -> jax.Array:
        """An array of any shape to the same shape; a smooth function computes in float32."""
        if self.function == LEAKY_RELU:
            scale = self.output_scale
            return jnp.where(x >= 0, scale * x, scale * self.negative_slope * x)
        return self.apply(jnp, x.astype(jnp.float32)).astype(x.dtype)

    def apply(self, xp: Any, x: Any) -> Any:
        """As called, in NumPy or in JAX, of a smooth function."""
        y = _FUNCTIONS[self.function](xp, self.input_scale * x + self.input_shift)
        return self.output_scale * (y + self.output_shift)

    @property
    def slope(self) -> float:
        """``E[phi'(z)^2]``: by what a layer multiplies the squared norm of a gradient."""
        if self.function == LEAKY_RELU:
            return self.output_scale**2 * (1 + self.negative_slope**2) / 2
        return float(np.arange(_DEGREE) @ hermite(functools.partial(self.apply, np)) ** 2)

    def c_map(self, c: float) -> float:
        """``C(c)``, for a correlation in ``[-1, 1]``."""
        if self.function == LEAKY_RELU:
            return leaky_relu_c_map(c, self.negative_slope)
        squares = hermite(functools.partial(self.apply, np)) ** 2
        return float(np.polynomial.polynomial.polyval(c, squares) / squares.sum())


def leaky_relu_c_map(c: float, negative_slope: float) -> float:
    r"""``C(c) = ((1-a)^2 (sqrt(1-c^2) + (pi - arccos c) c) / pi + 2 a c) / (1 + a^2)``.

    Source: TAT, equation 9; google-deepmind/dks, ``base/activation_transform.py``.

    Example:
      >>> leaky_relu_c_map(0.0, 0.0) == 1 / math.pi, leaky_relu_c_map(0.3, 1.0)
      (True, 0.3)
    """
    a, c = negative_slope, min(max(c, -1.0), 1.0)
    relu = (math.sqrt(1 - c * c) + (math.pi - math.acos(c)) * c) / math.pi
    return ((1 - a) ** 2 * relu + 2 * a * c) / (1 + a * a)


def hermite(function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    r"""``h_n = E[function(z) He_n(z)] / sqrt(n!)`` of a smooth function, float64 ``[100]``.

    With them ``Q(1) = sum h_n^2``, and where that is 1 ``C(c) = sum h_n^2 c^n``, ``C'(1) = sum n
    h_n^2`` and ``C''(1) = sum n (n - 1) h_n^2``.

    Example:
      >>> hermite(lambda z: 1 + 2 * z)[:3].round(9).tolist()
      [1.0, 2.0, 0.0]
    """
    values = _WEIGHTS * function(_NODES)
    before, own = np.zeros_like(_NODES), np.ones_like(_NODES)
    found = []
    for n in range(_DEGREE):
        found.append(own @ values)
        own, before = (_NODES * own - math.sqrt(n) * before) / math.sqrt(n + 1), own
    return np.array(found)


def q_map(function: Callable[[np.ndarray], np.ndarray], q: float = 1.0) -> float:
    """``Q(q) = E[function(sqrt(q) z)^2]``: what a second moment of ``q`` becomes.

    Example:
      >>> round(q_map(np.tanh), 4)
      0.3943
      >>> round(q_map(lambda z: 2 * z, 0.5), 9)
      2.0
    """
    return float(_WEIGHTS @ function(math.sqrt(q) * _NODES) ** 2)


@dataclasses.dataclass(frozen=True)
class Composition:
    """In which order a network composes its activations.

    Sums are ``w * skip + sqrt(1 - w^2) * branch``, so that C-maps are averaged with ``w^2``.

    Attributes:
      transitions: for each residual block, whether there is an activation on its shortcut, too,
        before a convolution that changes the shape.
      layers: ``m`` of a branch.
      post: whether the activations stand after the sums and between the layers of a branch, and
        not before each of its layers.
      skip: ``w``; with 0 there are no shortcuts.
      chain: activations beside those of the blocks and the one before or after all blocks.
    """

    transitions: tuple[bool, ...] = ()
    layers: int = 2
    post: bool = False
    skip: float = 0.0
    chain: int = 0

    def values(self, local: Map, c: float) -> list[float]:
        """The network's map after every block, and at its end, of the map of one activation."""
        found, kept = [], self.skip**2
        c = local(c) if self.post else c
        for transition in self.transitions:
            shortcut = local(c) if transition and not self.post else c
            c = kept * shortcut + (1 - kept) * self._branch(local, c)
            c = local(c) if self.post else c
            found.append(c)
        for _ in range(self.chain + (bool(self.transitions) and not self.post)):
            c = local(c)
        return [*found, c]

    def maximal(self, local: Map, c: float) -> float:
        """The largest value of any part of the network: of the whole, or of one branch alone."""
        whole = self.values(local, c)[-1]
        return max(whole, self._branch(local, c)) if self.transitions else whole

    def _branch(self, local: Map, c: float) -> float:
        for _ in range(self.layers - self.post):
            c = local(c)
        return c


def leaky_relu_tat(network: Composition, target: float = 0.9) -> Activation:
    r"""The leaky ReLU of TAT: the slope ``a`` for which ``C_f(0)``, at most, is the target.

    ``sqrt(2/(1+a^2)) max(x, a x)``, for which ``Q(q) = q`` and ``C'(1) = 1``. It is a ReLU, ``a =
    0``, in a network so shallow that already ReLUs stay below the target.

    Args:
      network: how it composes its activations.
      target: of the largest ``C_f(0)`` over the parts ``f`` of the network.

    Raises:
      ValueError: if the target is not between 0 and 1.

    Source: TAT, section 4.1 and appendix B.

    Example:
      >>> deep = leaky_relu_tat(Composition(transitions=(False,) * 24))
      >>> round(deep.negative_slope, 4)
      0.4259
    """
    _check(target, 0.0, 1.0)

    def excess(slope: float) -> float:
        return network.maximal(lambda c: leaky_relu_c_map(c, slope), 0.0) - target

    slope = _root(excess, 0.0, 1.0) if excess(0.0) > 0 else 0.0
    return Activation(LEAKY_RELU, negative_slope=slope, output_scale=math.sqrt(2 / (1 + slope**2)))


def smooth_tat(function: str, network: Composition, target: float = 0.3) -> Activation:
    r"""The smooth activation of TAT: ``Q(1) = Q'(1) = C'(1) = 1``, ``C''_f(1)`` at most the target.

    Where slopes are 1, curvatures add up under composition; that of each activation is ``C''(1)``.

    Args:
      function: one of :data:`SMOOTH`.
      network: how it composes its activations.
      target: of the largest ``C''_f(1)`` over the parts ``f`` of the network.

    Raises:
      ValueError: if the function is not known, or no scales and shifts were found.

    Source: TAT, section 4.2 and appendix B.

    Example:
      >>> found = smooth_tat("tanh", Composition(transitions=(False,) * 4))
      >>> found.function, round(found.input_scale, 3), round(found.output_scale, 3)
      ('tanh', 0.195, 6.879)
    """
    _check(target, 0.0, math.inf)
    curvature = target / network.maximal(lambda c: c + 1, 0.0)

    def residuals(activation: Activation) -> tuple[float, ...]:
        squares = hermite(functools.partial(activation.apply, np)) ** 2
        n = np.arange(_DEGREE)
        return _q_slope(activation) - 1, n @ squares - 1, n * (n - 1) @ squares - curvature

    return _solved(function, residuals, centered=False)


def dks(function: str, network: Composition, target: float = 1.5) -> Activation:
    r"""The activation of DKS: ``Q(1) = Q'(1) = 1``, ``C(0) = 0``, ``C'_f(1)`` at most the target.

    Slopes are multiplied under composition; that of each activation is ``C'(1)``.

    Args:
      function: one of :data:`SMOOTH`.
      network: how it composes its activations.
      target: of the largest ``C'_f(1)`` over the parts ``f`` of the network.

    Raises:
      ValueError: if the function is not known, the target is not above 1, or no scales and shifts
        were found.

    Source: DKS, "Summary of our method".

    Example:
      >>> found = dks("softplus", Composition(transitions=(False,) * 4))
      >>> found.function, round(found.input_scale, 3), round(found.output_scale, 3)
      ('softplus', 0.867, 1.913)
    """
    _check(target, 1.0, math.inf)
    slope = _root(lambda each: network.maximal(lambda c: c * each, 1.0) - target, 1.0, target)

    def residuals(activation: Activation) -> tuple[float, ...]:
        squares = hermite(functools.partial(activation.apply, np)) ** 2
        return _q_slope(activation) - 1, np.arange(_DEGREE) @ squares - slope

    return _solved(function, residuals, centered=True)


@dataclasses.dataclass(frozen=True)
class Shaping:
    """Which activation a network is to have, whatever its depth: called with its composition.

    Attributes:
      method: ``"tat"`` or ``"dks"``.
      function: ``"leaky_relu"``, for TAT, or one of :data:`SMOOTH`.

    Raises:
      ValueError: if the method or the function is not one of those.

    Example:
      >>> shaping = Shaping("tat", "leaky_relu")
      >>> deep, shallow = (shaping(Composition(transitions=(False,) * n)) for n in (24, 4))
      >>> deep.negative_slope > shallow.negative_slope
      True
    """

    method: Literal["tat", "dks"]
    function: str

    def __post_init__(self) -> None:
        if self.method not in ("tat", "dks"):
            raise ValueError(f"method={self.method!r} found; expected 'tat' or 'dks'.")
        known = SMOOTH if self.method == "dks" else (LEAKY_RELU, *SMOOTH)
        if self.function not in known:
            raise ValueError(
                f"function={self.function!r} found; {self.method} is for {', '.join(known)}."
            )

    def __call__(self, network: Composition) -> Activation:
        """The activation of a network."""
        return _activation(self, network)


@functools.lru_cache(maxsize=64)
def _activation(shaping: Shaping, network: Composition) -> Activation:
    if shaping.function == LEAKY_RELU:
        return leaky_relu_tat(network)
    return (dks if shaping.method == "dks" else smooth_tat)(shaping.function, network)


def _q_slope(activation: Activation) -> float:
    # E[f f' z] without f': the derivative of E f(sqrt(q) z)^2 by the density of sqrt(q) z.
    squares = activation.apply(np, _NODES) ** 2
    return float(_WEIGHTS @ (squares * (_NODES**2 - 1)) / 2)


def _solved(
    function: str, residuals: Callable[[Activation], tuple[float, ...]], *, centered: bool
) -> Activation:
    """The activation at which the residuals vanish, ``Q(1) = 1`` and, centred, ``C(0) = 0``."""
    from scipy.optimize import root  # imported here for the time that it takes

    if function not in SMOOTH:
        raise ValueError(f"function={function!r} found; expected one of {', '.join(SMOOTH)}.")

    def made(at: np.ndarray) -> Activation:
        raw = Activation(function, input_scale=float(at[0]), input_shift=float(at[1]))
        values = raw.apply(np, _NODES)
        shift = float(-_WEIGHTS @ values) if centered else float(at[2])
        scale = float(_WEIGHTS @ (values + shift) ** 2) ** -0.5
        return dataclasses.replace(raw, output_shift=shift, output_scale=scale)

    shifts = (0.0, 1.0, -1.0)
    starts = itertools.product((1.0, 0.1), shifts, *([] if centered else [shifts]))
    for start in starts:
        with np.errstate(all="ignore"):
            found = root(lambda at: residuals(made(at)), np.array(start), tol=1e-12)
            activation = made(found.x)
            left = max(map(abs, residuals(activation)))
        # Solutions far from linear have unstable Q-maps; the published code leaves them out, too.
        linear = activation.input_scale * activation.output_scale < 2
        if left < 1e-7 and (centered or linear):
            return activation
    raise ValueError(
        f"no scales and shifts of {function} found for this network; expected a network of more "
        "layers, or another function."
    )


def _root(function: Map, low: float, high: float) -> float:
    """Where a monotonic function changes its sign between two points, by bisection."""
    rising = function(high) > 0
    for _ in range(100):
        middle = 0.5 * (low + high)
        if (function(middle) > 0) == rising:
            high = middle
        else:
            low = middle
    return 0.5 * (low + high)


def _check(target: float, low: float, high: float) -> None:
    if not low < target < high:
        raise ValueError(f"target={target!r} found; expected a number between {low} and {high}.")


__all__ = [
    "LEAKY_RELU", "SMOOTH", "Activation", "Composition", "Shaping", "dks", "hermite",
    "leaky_relu_c_map", "leaky_relu_tat", "q_map", "smooth_tat",
]  # fmt: skip
