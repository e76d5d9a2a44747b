"""The one registry of architectures: networks by name, their classes, and what they take."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np

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
      tiny: the numbers and the options of a network as small as tests want it.
      example: ``example(batch_size)`` makes inputs for that one, as ``model.init`` takes them after
        the key.
      inputs: what its networks take.
    """

    name: str
    family: str
    network: type
    form: str
    pattern: str
    build: Callable[..., Any] = dataclasses.field(repr=False)
    tiny: tuple[tuple[int, ...], dict[str, Any]] = dataclasses.field(repr=False)
    example: Callable[[int], tuple[np.ndarray, ...]] = dataclasses.field(repr=False)
    inputs: Literal["images", "tokens"] = "images"

    def smallest(self, scheme: str | schemes.Scheme, **options: Any) -> Any:
        """A network of a few channels, with each part that its larger ones have."""
        numbers, small = self.tiny
        return self.build(*numbers, scheme=scheme, **{**small, **options})

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
      ValueError: if no network has that name, or the scheme is not for it.

    Example:
      >>> make("wrn-28-10", "fixup", num_classes=100).num_branches
      12
    """
    architecture, numbers = _parsed(name)
    channels = options.get("stem_channels", 1)
    if channels > 10**6:
        raise ValueError(f"stem_channels={channels:.4g} found; expected at most 1,000,000.")
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


def _images(side: int, batch_size: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    return (rng.standard_normal((batch_size, side, side, 3), dtype=np.float32),)


def _tokens(vocab_size: int, batch_size: int) -> tuple[np.ndarray, ...]:
    """Source and target; the last source's second half is padding."""
    rng = np.random.default_rng(0)
    source, target = (
        rng.integers(1, vocab_size, (batch_size, length), dtype=np.int32) for length in (6, 5)
    )
    source[-1, 3:] = 0
    return source, target


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
        tiny=((50,), {"stem_channels": 4, "num_classes": 10}),
        example=partial(_images, 32),
    )


_TINY_VGG = {"stem_channels": 4, "num_classes": 10, "classifier": (12, 8), "pool_size": 2}
_TINY_TRANSFORMER = {"vocab_size": 11, "d_model": 8, "num_heads": 2, "d_ff": 16}

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
            tiny=((20,), {"stem_channels": 4}),
            example=partial(_images, 8),
        ),
        Architecture(
            name="wrn",
            family="pre_activation",
            network=WideResNet,
            form="wrn-(6N+4)-k",
            pattern=f"wrn-{NUMBER}-{NUMBER}",
            build=WideResNet,
            tiny=((22, 1), {"stem_channels": 4}),
            example=partial(_images, 8),
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
            tiny=((11,), _TINY_VGG),
            example=partial(_images, 32),
        ),
        Architecture(
            name="transformer",
            family="transformer",
            network=Transformer,
            form="transformer-N",
            pattern=f"transformer-{NUMBER}",
            build=_transformer,
            tiny=((3,), _TINY_TRANSFORMER),
            example=partial(_tokens, _TINY_TRANSFORMER["vocab_size"]),
            inputs="tokens",
        ),
    )
}
"""All architectures, by the names that stand before the numbers."""

CLASSES: dict[str, Any] = {each.network.__name__: each.network for each in ARCHITECTURES.values()}
"""The classes of their networks, by name."""
