"""What runs have in place of what their settings name: a network, an optimizer, weights."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import optax

from nf_resnets import data, models, schemes, training

BUILT = ("model", "scheme", "stem_channels", "base_model", "dropout", "remat", "dtype")
"""The settings of which a network is made; a network that is given has none of them."""

DRAWN = ("alpha", "branch_scale", "draw", "calibration_examples")
"""The settings by which weights are drawn; a network that is given with weights, or is another
library's, reads none of them."""

RULE = ("peak_lr", "schedule", "drops", "drop_factor", "warmup_epochs", "momentum", "nesterov",
        "weight_decay", "scalar_factor")  # fmt: skip
"""The settings of which an optimizer is made; a transformation that is given reads none of them."""

Optimizer = Any
"""An optax transformation, or ``optimizer(settings)`` that gives one. ``settings`` are those of the
run but ``seed``, ``alpha`` and ``branch_scale``, in which the runs of a program differ, and
``settings["learning_rate"]`` is the schedule of its rate, a function of the step."""

Load = Callable[[str], data.Dataset]
"""``load(name)`` gives a data set."""


@dataclasses.dataclass(frozen=True)
class Overrides:
    """What is not made from settings.

    Attributes:
      network: one of :mod:`nf_resnets.models`, or the :class:`nf_resnets.training.Functions` of
        another one.
      variables: with which a run starts; by default they are drawn from its seed.
      optimizer: see ``Optimizer``.
      wrap: changes the transformation, whichever it is.
      names: what the plans of runs say of all this, as JSON values.
    """

    network: Any = None
    variables: Mapping[str, Any] | None = None
    optimizer: Optimizer = None
    wrap: Callable[[optax.GradientTransformation], optax.GradientTransformation] = lambda rule: rule
    names: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_other(self) -> bool:
        """Whether the network is one of another library."""
        return isinstance(self.network, training.Functions)

    @property
    def scheme(self) -> schemes.Scheme | None:
        """The network's; one of another library has no parts of a scheme."""
        if self.network is None:
            return None
        return schemes.get("plain" if self.is_other else self.network.scheme)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a run that follow."""
        scheme = self.scheme
        if scheme is None:
            return {}
        values: dict[str, Any] = {"scheme": scheme.name}
        if scheme.name not in schemes.names():
            values["scalar_factor"] = scheme.scalar_factor
        return values


def overrides_of(
    network: Any = None,
    optimizer: Optimizer = None,
    *,
    settings: Mapping[str, Any],
    name: str = "",
    **others: Any,
) -> Overrides:
    """Takes a network and an optimizer as users have them.

    ``settings`` are those that a user names besides; a network is called ``name``, by default by
    its class; ``others`` are the other attributes of :class:`Overrides`.
    """
    names = dict(others.pop("names", {}))
    if network is not None:
        names["model"] = name or ("pair" if isinstance(network, tuple) else type(network).__name__)
        kind = None
        with contextlib.suppress(ValueError):
            kind = models.architectures.architecture_of(network)
        if kind is None:
            network = training.functions_of(network)
        elif kind.inputs != "images":
            raise ValueError(f"network is a {names['model']}; expected a network for images.")
        is_drawn = kind is not None and others.get("variables") is None
        for each in BUILT if is_drawn else (*BUILT, *DRAWN):
            if each in settings:
                raise ValueError(
                    f"{each}={settings[each]!r} found with network=; expected one of the two."
                )
    if optimizer is not None:
        for each in () if callable(optimizer) else RULE:
            if each in settings:
                raise ValueError(
                    f"{each}={settings[each]!r} found with a transformation as optimizer=, which "
                    "does not read it; expected optimizer(settings) or none of it."
                )
        names["optimizer"] = name or "given"
    return Overrides(network, optimizer=optimizer, names=names, **others)


def named(dataset: data.Dataset | str | os.PathLike[str]) -> tuple[str, Load]:
    """The name of a data set, and what loads it by that name."""
    if isinstance(dataset, str | os.PathLike):
        return os.fspath(dataset), data.load
    return dataset.name, lambda name: dataset
