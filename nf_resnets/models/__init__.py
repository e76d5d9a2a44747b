"""Residual networks as Flax modules, each with whatever a scheme's anatomy asks for."""

from nf_resnets.models.cifar_resnet import CifarResNet
from nf_resnets.models.conv import conv
from nf_resnets.models.wide_resnet import WideResNet

__all__ = ["CifarResNet", "WideResNet", "conv"]
