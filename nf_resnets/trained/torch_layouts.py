"""Published PyTorch networks as tables: our layers' names, and theirs.

What the names do not say, the constants of the branches and the places of activations and pools, is
in the layout's scheme and in the network's arguments.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from nf_resnets import models


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """Where the tensors of a published network are, and the images that it was trained on.

    ``names`` lead from our layers, or leaves, to theirs. In both stand ``{stage}`` and ``{layer}``,
    counted from 1, and ``{block}``, from 0; ``{stage0}`` in theirs is one less. ``arguments`` are
    those that the network must have been made with, ``scheme`` is a registered one with their
    anatomy, ``mean`` and ``std`` are of pixels from 0 to 1.
    """

    name: str
    names: Mapping[str, str]
    network: type
    scheme: str
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    side: int = 224
    crop: float = 0.875

    def theirs(self, ours: str) -> str | None:
        """Their name of one of our layers or scalars, or None."""
        for pattern, theirs in self.names.items():
            regex = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>\\d+)", re.escape(pattern))
            if match := re.fullmatch(regex, ours):
                numbers = {name: int(number) for name, number in match.groupdict().items()}
                return theirs.format(**numbers, **{f"{n}0": i - 1 for n, i in numbers.items()})
        return None


_FIXUP_NAMES = {
    "stem": "conv1",
    "bias_stem": "bias1",
    "stage_{stage}/{block}/bias_{layer}a": "layer{stage}.{block}.bias{layer}a",
    "stage_{stage}/{block}/bias_{layer}b": "layer{stage}.{block}.bias{layer}b",
    "stage_{stage}/{block}/conv_{layer}": "layer{stage}.{block}.conv{layer}",
    "stage_{stage}/{block}/multiplier": "layer{stage}.{block}.scale",
    "bias_head": "bias2",
    "head": "fc",
}

_ALL = (
    Layout(
        name="torchvision-resnet",
        network=models.ResNet,
        arguments={"version": 1},
        scheme="batchnorm",
        names={
            "stem": "conv1",
            "norm_stem": "bn1",
            "stage_{stage}/{block}/conv_{layer}": "layer{stage}.{block}.conv{layer}",
            "stage_{stage}/{block}/norm_{layer}": "layer{stage}.{block}.bn{layer}",
            "stage_{stage}/{block}/shortcut": "layer{stage}.{block}.downsample.0",
            "stage_{stage}/{block}/norm_shortcut": "layer{stage}.{block}.downsample.1",
            "head": "fc",
        },
    ),
    Layout(
        name="fixup-cifar",
        network=models.CifarResNet,
        scheme="fixup",
        names=_FIXUP_NAMES,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        side=32,
        crop=1.0,
    ),
    Layout(
        name="fixup-imagenet",
        network=models.ResNet,
        arguments={"version": 1},
        scheme="fixup",
        names={**_FIXUP_NAMES, "stage_{stage}/{block}/shortcut": "layer{stage}.{block}.downsample"},
    ),
    Layout(
        name="rescalenet",
        network=models.ResNet,
        arguments={"version": 1},
        scheme="rescalenet_published",
        names={
            "stem": "conv1",
            "bias_stem": "addbias1",
            "stage_{stage}/{block}/bias_{layer}a": "layer{stage}.{block}.addbias{layer}",
            "stage_{stage}/{block}/conv_{layer}": "layer{stage}.{block}.conv{layer}",
            "stage_{stage}/{block}/multiplier": "layer{stage}.{block}._scale",
            "stage_{stage}/{block}/bias_shortcut": "layer{stage}.{block}.downsample.1",
            "stage_{stage}/{block}/shortcut": "layer{stage}.{block}.downsample.2",
            "bias_head": "addbias2",
            "head": "fc",
        },
    ),
    Layout(
        name="timm-nf-resnet",
        network=models.ResNet,
        arguments={"version": 2},
        scheme="nf_resnet_timm",
        names={
            "stem": "stem.conv",
            "stage_{stage}/{block}/conv_{layer}": "stages.{stage0}.{block}.conv{layer}",
            "stage_{stage}/{block}/shortcut": "stages.{stage0}.{block}.downsample.conv",
            "head": "head.fc",
        },
        side=256,
        crop=0.94,
    ),
)
LAYOUTS = {layout.name: layout for layout in _ALL}
"""The published layouts by name."""
