"""What a scheme is, and the registry through which models and experiments find one by name.

A scheme is a value with three parts: an *initialisation*, a pure function of a parameter tree; an
*anatomy*, what a network must contain for it; and what its *training* asks for, which leaves learn
slowly, which have no weight decay, and how rates scale with width and depth.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from nf_resnets.parametrization import STANDARD, DepthPower, Parametrization
from nf_resnets.roles import LAYER_ROLES, Group, Role

PerBranch = Callable[[tuple[bool, ...]], Any]
"""Constants of the branches: from whether the shape changes at the k-th branch, a bool for each of
``k = 1..L``, to an array ``[L]``. (A normalizer-free network needs to know.) In a Transformer the
one change is where the decoder begins."""

FAMILIES = ("pre_activation", "post_activation", "plain", "transformer")
"""The kinds of networks: residual ones with the activations in the branch or after the sum, ones
without shortcuts, Transformers."""

TRANSFORMER_NORMS = ("layer", "dyt", "derf")
"""What may stand as a branch of a Transformer begins, or after its sum."""


@dataclasses.dataclass(frozen=True)
class Anatomy:
    r"""What a residual network must contain for a scheme.

    A block computes ``y = identity * shortcut(x) + residual * scalar * F(x / beta)``, where the
    learnable ``scalar`` is the multiplier, or ``alpha``, or absent; a post-activation block takes
    the ReLU of that.

    Attributes:
      scalar_biases: a learnable scalar before every convolution and activation of a branch, before
        the activation outside the branches, and before the head.
      channel_biases: a learnable vector before every convolution of a branch or shortcut, after the
        stem of a post-activation network, before the last mean over the image, and before all
        layers of VGG but the first; set from the data.
      multiplier: a learnable scalar on every branch, initialised to 1.
      alpha: SkipInit's learnable scalar on every branch.
      conv_biases: a bias vector in every convolution, and in every linear layer of a Transformer's
        branches.
      norm: the normalization, if any; ``"layer"`` is a Transformer's, and so are the elementwise
        ``"dyt"`` and ``"derf"``, which stand in its place.
      norm_place: where it stands. ``"default"``: after the convolutions (before the activations, in
        pre-activation networks); ``"merge"``: there, and after every sum of skip and branch;
        ``"last"``: only once, after the last block. In a Transformer ``"pre"``: as a branch
        begins; ``"post"``: after every sum.
      pooled_shortcut: where the shape changes, the shortcut is an average pool of the stride's
        size and a 1x1 convolution, instead of the architecture's own.
      standardized: convolutions compute with scaled standardised weights: ``True``, as the paper
        has it, or ``"timm"`` (the stem is multiplied by the ReLU's gain, too, and epsilon is added
        to the variance).
      branches: whether there are residual branches at all; without, a block is its shortcut.
      dropout: whether there is dropout before the head, at the rate of the model.
      residual: a constant on every branch, one number or one for each branch.
      identity: a constant on every shortcut.
      beta: what a branch's input is divided by.
    """

    scalar_biases: bool = False
    channel_biases: bool = False
    multiplier: bool = False
    alpha: bool = False
    conv_biases: bool = False
    norm: Literal["batch", "group", "layer", "dyt", "derf"] | None = None
    norm_place: Literal["default", "last", "merge", "pre", "post"] = "default"
    pooled_shortcut: bool = False
    standardized: bool | Literal["timm"] = False
    branches: bool = True
    dropout: bool = False
    residual: float | PerBranch = 1.0
    identity: float | PerBranch = 1.0
    beta: float | PerBranch = 1.0

    def __post_init__(self) -> None:
        for one, other in (("multiplier", "alpha"), ("scalar_biases", "channel_biases")):
            if getattr(self, one) and getattr(self, other):
                raise ValueError(f"Anatomy({one}=True, {other}=True) found; expected at most one.")

    @property
    def normalized(self) -> bool:
        """Whether there is any normalization."""
        return self.norm is not None

    @property
    def has_batch_norm(self) -> bool:
        """Whether there is BatchNorm: statistics to keep, and examples of a batch that mix."""
        return self.norm == "batch"

    def constants(self, transitions: tuple[bool, ...]) -> BranchConstants:
        """The constants of every branch; ``transitions`` as in :meth:`Scheme.constants`."""

        def each(value: float | PerBranch) -> np.ndarray | None:
            if not callable(value):
                return None if value == 1 else np.full(len(transitions), value, np.float32)
            return np.asarray(value(transitions), np.float32).reshape(len(transitions))

        return BranchConstants(each(self.residual), each(self.identity), each(self.beta))


class BranchConstants(NamedTuple):
    """What the paths of the branches are multiplied by: float32 [L] each, None where it is 1."""

    residual: Any = None  # on the branch
    identity: Any = None  # on the shortcut
    beta: Any = None  # what the branch's input is divided by

    def part(self, which: int | slice) -> BranchConstants:
        """Those of one branch (float32 []) or of a slice of them (float32 [n])."""
        return BranchConstants(*(None if value is None else value[which] for value in self))


NO_CONSTANTS = BranchConstants()
"""Those of a network without any."""


class SchemeWarning(UserWarning):
    """A network lacks a part of its scheme without which it trains, but not as well."""


SCALARS = Group((Role.SCALAR_BIAS, Role.MULTIPLIER))
"""The leaves that Fixup trains at a tenth of the learning rate: in its paper only with mixup, in
its published code always, with the head's vector of biases."""

UNDECAYED = Group(
    (Role.SCALAR_BIAS, Role.CHANNEL_BIAS, Role.MULTIPLIER, Role.ALPHA, Role.NORM),
    bias_vectors=(*LAYER_ROLES, Role.KEEP),
)
"""The leaves that RescaleNet's recipe keeps from weight decay: biases, those of layers too, and
multipliers. Vectors and scalars that no rule names are taken for such."""


@dataclasses.dataclass(frozen=True)
class Scheme:
    """A way to start the training of a residual network.

    Attributes:
      name: how models, experiments and command lines call it.
      title: how plots and tables call it.
      init: ``init(params, depth, *, key=None, rules=None) -> params``; with ``key`` it draws the
        weights afresh, without it changes the weights given as little as the scheme allows.
      anatomy: what a network must contain for it.
      reference: where it was published.
      fits: the families of networks that it is for, of :data:`FAMILIES`.
      calibrate: what is set from the data after ``init``, if anything is:
        ``calibrate(params, network=, inputs=) -> params``, with ``network(params, *inputs)``.
      own_draw: whether it is a draw of its own: without ``key``, ``init`` leaves what it is given.
      scalars: the leaves that learn at another rate than the rest; none in most schemes.
      scalar_factor: what the learning rate is multiplied by for them.
      undecayed: the leaves without weight decay; none in most schemes.
      parametrization: how rates, decay and epsilon scale with width and depth, which
        ``optim.parametrized`` reads; most schemes are standard: they do not.
    """

    name: str
    title: str
    init: Callable[..., Any] = dataclasses.field(repr=False)
    anatomy: Anatomy
    reference: str = dataclasses.field(repr=False)
    fits: frozenset[str] = frozenset({"pre_activation", "post_activation"})
    calibrate: Callable[..., Any] | None = dataclasses.field(default=None, repr=False)
    own_draw: bool = False
    scalars: Group = dataclasses.field(default=Group(), repr=False)
    scalar_factor: float = dataclasses.field(default=0.1, repr=False)
    undecayed: Group = dataclasses.field(default=Group(), repr=False)
    parametrization: Parametrization = dataclasses.field(default=STANDARD, repr=False)

    def constants(self, depth: int, transitions: tuple[bool, ...] | None = None) -> BranchConstants:
        """The constants that a network multiplies by, those of the k-th branch at ``[k - 1]``.

        Args:
          depth: ``L``, the number of residual branches.
          transitions: for each branch, whether the shape changes there, or a decoder begins.
            NF-ResNet's ``beta``, and DeepNorm's and Admin's ``identity``, depend on it; other
            schemes do not need it.

        Returns:
          ``residual``, ``identity`` and ``beta``, float32 ``[L]`` each.

        Raises:
          ValueError: if the constants depend on ``transitions`` and they are not given.

        Example:
          >>> import nf_resnets
          >>> get("rescalenet").constants(4).residual.tolist()
          [0.5, 0.5, 0.5, 0.5]
        """
        plain = (False,) * depth
        constants = self.anatomy.constants(plain if transitions is None else transitions)
        if transitions is None:
            changed = self.anatomy.constants(tuple(k == depth // 2 for k in range(depth)))
            if any(not np.array_equal(a, b) for a, b in zip(constants, changed, strict=True)):
                raise ValueError(
                    f"transitions=None found; the constants of {self.title} depend on where the "
                    "shape changes or a decoder begins, expected a bool for each residual branch."
                )
        ones = np.ones(depth, np.float32)
        return BranchConstants(*(ones if value is None else value for value in constants))

    @property
    def compiles_as(self) -> tuple[Anatomy, Group, Group, Parametrization]:
        """What a compiled training step depends on: schemes that are alike in it can share one."""
        return self.anatomy, self.scalars, self.undecayed, self.parametrization


def parametrized(
    scheme: str | Scheme, parametrization: Parametrization, base_depth: int = 1, **texts: Any
) -> Scheme:
    """A scheme with the rates and the branches of a parametrisation.

    Args:
      scheme: whose initialisation, anatomy and groups it has.
      parametrization: which rates, and the exponent ``a`` of the branches.
      base_depth: ``L_base``: branches are multiplied by ``(L / L_base)**-a``.
      texts: other fields of the scheme, such as ``name`` and ``title``.

    Example:
      >>> import nf_resnets
      >>> from nf_resnets.parametrization import COMPLETEP
      >>> parametrized("layernorm_pre", COMPLETEP, base_depth=3).constants(6).residual.tolist()
      [0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    """
    plain, exponent = get(scheme), parametrization.exponent
    residual = plain.anatomy.residual
    if exponent and residual != 1 and not isinstance(residual, DepthPower):
        raise ValueError(
            f"scheme={plain.name!r} has branches with a constant of their own; expected none, for "
            f"{parametrization.title} multiplies branches by L**-{exponent:g}."
        )
    if exponent:
        residual = DepthPower(exponent, base_depth)
    fields: dict[str, Any] = {
        "name": f"{plain.name}_{parametrization.name}",
        "title": f"{plain.title}, {parametrization.title}",
        "reference": parametrization.reference,
        "anatomy": dataclasses.replace(plain.anatomy, residual=residual),
        "parametrization": parametrization,
    }
    return dataclasses.replace(plain, **fields | texts)


_REGISTRY: dict[str, Scheme] = {}


def register(scheme: Scheme) -> Scheme:
    """Makes a scheme known by its name, and returns it; another of that name is refused."""
    known = _REGISTRY.get(scheme.name)
    if known is not None and known != scheme:
        raise ValueError(
            f"a scheme named {scheme.name!r} is registered already; choose a new name."
        )
    _REGISTRY[scheme.name] = scheme
    return scheme


@contextlib.contextmanager
def registered(*schemes: Scheme) -> Iterator[None]:
    """Makes schemes known by their names while a block runs.

    Example:
      >>> import nf_resnets
      >>> mine = dataclasses.replace(get("fixup"), name="mine")
      >>> with registered(mine):
      ...     get("mine") is mine
      True
      >>> "mine" in names()
      False
    """
    new = [scheme.name for scheme in schemes if scheme.name not in _REGISTRY]
    try:
        for scheme in schemes:
            register(scheme)
        yield
    finally:
        for name in new:
            _REGISTRY.pop(name, None)


def get(scheme: str | Scheme) -> Scheme:
    """Returns the scheme of that name; a scheme itself is returned as it is."""
    if isinstance(scheme, Scheme):
        return scheme
    if isinstance(scheme, str) and scheme in _REGISTRY:
        return _REGISTRY[scheme]
    raise ValueError(f"scheme={scheme!r} found; expected one of {', '.join(_REGISTRY)}.")


def fitting(scheme: str | Scheme, family: str) -> Scheme:
    """As :func:`get`, but refuses a scheme that is not for networks of that family."""
    chosen = get(scheme)
    if family not in chosen.fits:
        raise ValueError(
            f"scheme={chosen.name!r} is for {', '.join(sorted(chosen.fits))} networks; expected "
            f"one for {family} networks."
        )
    return chosen


def names(family: str | None = None) -> tuple[str, ...]:
    """The names of all registered schemes, or of those for a family, as they were registered."""
    return tuple(
        name for name, scheme in _REGISTRY.items() if family is None or family in scheme.fits
    )


__all__ = [
    "FAMILIES", "NO_CONSTANTS", "SCALARS", "TRANSFORMER_NORMS", "UNDECAYED", "Anatomy",
    "BranchConstants", "PerBranch", "Scheme", "SchemeWarning", "fitting", "get", "names",
    "parametrized", "register", "registered",
]  # fmt: skip
