"""The one registry of architectures: networks by name, their classes, and what they take."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from nf_resnets import schemes
from nf_resnets.models.resnet import SIZES, CifarResNet, ResNet, WideResNet
from nf_resnets.models.transformer import Transformer
from nf_resnets.models.vgg import CONFIGURATIONS, VGG

NUMBER = "([1-9][0-9]{0,5})"
"""In a name: without zeros before it and in ASCII, so that a network has one name."""


@dataclasses.dataclass(frozen=True)
class Architecture:
    """A family of networks that differ in depth and width.

    Attributes:
      family: which schemes are for it, one of :data:`nf_resnets.schemes.FAMILIES`.
      network: the class of its networks.
      form: how its networks are called, in an error's list.
      pattern: the regular expression of these names, a group for each number.
      build: ``build(*numbers, scheme=..., **options)`` makes the module.
      inputs: what its networks take.
    """

    name: str
    family: str
    network: type
    form: str
    pattern: str
    build: Callable[..., Any] = dataclasses.field(repr=False)
    inputs: Literal["images", "tokens"] = "images"

    def schemes(self) -> tuple[str, ...]:
        """The names of all registered schemes that are for it."""
        return schemes.names(self.family)


def find(name: str) -> Architecture:
    """The architecture of the network that has a name."""
    return _parsed(name)[0]


def make(name: str, scheme: str | schemes.Scheme, **options: Any) -> Any:
    """Makes a network by the name under which it is known.

    Args:
      name: such as ``"cifar-resnet-110"``, ``"wrn-28-10"``, ``"resnet-50"`` (version 1),
        ``"resnet-50-v2"``, ``"vgg-16"``, ``"transformer-6"``.
      scheme: a scheme's name or value.
      **options: of the network's class, ``num_classes`` for one.

    Raises:
      ValueError: if no network has that name, the scheme is not for it, or it has no such option.

    Example:
      >>> make("wrn-28-10", "fixup", num_classes=100).num_branches
      12
    """
    architecture, numbers = _parsed(name)
    fields = {each.name for each in dataclasses.fields(architecture.network)}
    if unknown := [each for each in options if each not in fields]:
        raise ValueError(f"{unknown[0]}={options[unknown[0]]} found; {name} has no such option.")
    channels = options.get("stem_channels", 1)
    if not 1 <= channels <= 10**6:
        raise ValueError(f"stem_channels={channels:.4g} found; expected 1 to 1,000,000.")
    return architecture.build(*numbers, scheme=scheme, **options)


def architecture_of(model: Any) -> Architecture:
    """An architecture whose networks have a model's class and, of a ResNet, its version."""
    for architecture in ARCHITECTURES.values():
        given = getattr(architecture.build, "keywords", {}).get("version")
        if type(model) is architecture.network and given in (None, getattr(model, "version", None)):
            return architecture
    raise ValueError(
        f"a network of class {type(model).__name__} found; expected one of this library, "
        f"{', '.join(CLASSES)}."
    )


def _parsed(name: str) -> tuple[Architecture, list[int]]:
    for architecture in ARCHITECTURES.values():
        match = re.fullmatch(architecture.pattern, str(name))
        if match:
            return architecture, [int(number) for number in match.groups()]
    *forms, last = (architecture.form for architecture in ARCHITECTURES.values())
    raise ValueError(f"name={str(name)[:40]!r} found; expected {', '.join(forms)} or {last}.")


def _transformer(num_layers: int, vocab_size: int = 10_000, **options: Any) -> Transformer:
    return Transformer(num_layers=num_layers, vocab_size=vocab_size, **options)


def _resnet(version: Literal[1, 2]) -> Architecture:
    end = "" if version == 1 else "-v2"
    return Architecture(
        name=f"resnet{end}",
        family="post_activation" if version == 1 else "pre_activation",
        network=ResNet,
        form=f"resnet-{'/'.join(map(str, SIZES))}{end}",
        pattern=rf"resnet-({'|'.join(map(str, SIZES))}){end}",
        build=partial(ResNet, version=version),
    )


ARCHITECTURES: dict[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        Architecture(
            name="cifar-resnet",
            family="post_activation",
            network=CifarResNet,
            form="cifar-resnet-(6n+2)",
            pattern=f"cifar-resnet-{NUMBER}",
            build=CifarResNet,
        ),
        Architecture(
            name="wrn",
            family="pre_activation",
            network=WideResNet,
            form="wrn-(6N+4)-k",
            pattern=f"wrn-{NUMBER}-{NUMBER}",
            build=WideResNet,
        ),
        _resnet(1),
        _resnet(2),
        Architecture(
            name="vgg",
            family="plain",
            network=VGG,
            form=f"vgg-{'/'.join(map(str, CONFIGURATIONS))}",
            pattern=rf"vgg-({'|'.join(map(str, CONFIGURATIONS))})",
            build=VGG,
        ),
        Architecture(
            name="transformer",
            family="transformer",
            network=Transformer,
            form="transformer-N",
            pattern=f"transformer-{NUMBER}",
            build=_transformer,
            inputs="tokens",
        ),
    )
}
"""All architectures, by the names that stand before the numbers."""

CLASSES: dict[str, Any] = {each.network.__name__: each.network for each in ARCHITECTURES.values()}
"""The classes of their networks, by name."""
