"""Networks as Flax modules, each with whatever a scheme's anatomy asks for."""

import importlib
from typing import Any

from nf_resnets.models.architectures import ARCHITECTURES, Architecture, make
from nf_resnets.models.branch import DynamicTanh
from nf_resnets.models.conv import conv
from nf_resnets.models.dtypes import DTYPES, Dtype, dtype_of
from nf_resnets.models.layers import ChannelBias
from nf_resnets.models.parts import (
    FixupNorm,
    Multiplier,
    ScalarBias,
    ScaledWSConv,
    SkipInit,
)
from nf_resnets.models.resnet import CifarResNet, ResNet, WideResNet
from nf_resnets.models.transformer import Transformer
from nf_resnets.models.vgg import VGG

__all__ = [
    "ARCHITECTURES", "DTYPES", "VGG", "Architecture", "ChannelBias", "CifarResNet", "Dtype",
    "DynamicTanh", "FixupNorm", "Multiplier", "ResNet", "ScalarBias",
    "ScaledWSConv", "SkipInit", "Transformer", "WideResNet", "conv", "dtype_of", "make",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "nnx_parts":  # imports Flax NNX
        return importlib.import_module("nf_resnets.models.nnx_parts")
    raise AttributeError(f"module 'nf_resnets.models' has no attribute {name!r}")
