"""The networks in PyTorch, as a practitioner writes them: modules, channels last, fused SGD.

Written after the published structures (Zhang, Dauphin, Ma, ICLR 2019, figure 1; Zagoruyko and
Komodakis, BMVC 2016; He et al., CVPR 2016). The names of modules and parameters are those of this
library's trees, so that one set of parameters serves both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import torch
import torch.nn.functional as F
from flax.traverse_util import flatten_dict
from torch import nn


def conv(c_in: int, c_out: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(c_in, c_out, size, stride, padding=(size - 1) // 2, bias=False)


class Scalars(nn.Module):
    """A module with scalars of its own: biases, which begin at 0, and a multiplier."""

    def scalars(self, *names: str) -> None:
        for name in names:
            value = torch.ones(()) if name == "multiplier" else torch.zeros(())
            self.register_parameter(name, nn.Parameter(value))


class BasicBlock(Scalars):
    """Fixup's block of a CIFAR ResNet; the shortcut takes every second pixel and pads channels."""

    def __init__(self, c_in: int, c_out: int, stride: int):
        super().__init__()
        self.scalars("bias_1a", "bias_1b", "bias_2a", "bias_2b", "multiplier")
        self.conv_1, self.conv_2 = conv(c_in, c_out, stride=stride), conv(c_out, c_out)
        self.stride, self.new_channels = stride, c_out - c_in

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        biased = x + self.bias_1a
        h = F.relu(self.conv_1(biased) + self.bias_1b)
        h = self.multiplier * self.conv_2(h + self.bias_2a) + self.bias_2b
        if self.stride > 1:
            x = biased[:, :, :: self.stride, :: self.stride]
            x = F.pad(x, (0, 0, 0, 0, 0, self.new_channels))
        return F.relu(h + x)


class PreActivationBlock(Scalars):
    """Fixup's block of a Wide ResNet; the shortcut is a 1x1 convolution of the activated input."""

    def __init__(self, c_in: int, c_out: int, stride: int):
        super().__init__()
        self.scalars("bias_1", "bias_2", "bias_3", "bias_4", "multiplier")
        self.conv_1, self.conv_2 = conv(c_in, c_out, stride=stride), conv(c_out, c_out)
        self.shortcut = conv(c_in, c_out, 1, stride) if stride > 1 or c_in != c_out else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        activated = F.relu(x + self.bias_1)
        if self.shortcut is not None:
            x = self.shortcut(activated)
        h = F.relu(self.conv_1(activated + self.bias_2) + self.bias_3)
        return x + self.multiplier * self.conv_2(h + self.bias_4)


class Network(Scalars):
    """Stem, stages, mean over the image, head.

    Args:
      name: as in the registry of architectures: ``cifar-resnet-n`` or ``wrn-n-k``.
      channels: of the images.
    """

    def __init__(self, name: str, channels: int = 3):
        super().__init__()
        numbers = [int(number) for number in re.findall(r"\d+", name)]
        self.pre_activation = name.startswith("wrn")
        block: Any = PreActivationBlock if self.pre_activation else BasicBlock
        width = numbers[1] if self.pre_activation else 1
        sizes = ((numbers[0] - (4 if self.pre_activation else 2)) // 6,) * 3
        self.stem = conv(channels, 16)
        self.scalars("bias_relu" if self.pre_activation else "bias_stem", "bias_head")
        blocks, c_in, widths = [], 16, (16 * width, 32 * width, 64 * width)
        for stage, (size, c_out) in enumerate(zip(sizes, widths, strict=True)):
            for index in range(size):
                blocks.append(block(c_in, c_out, 2 if stage > 0 and index == 0 else 1))
                c_in = c_out
        self.sizes, self.blocks = sizes, nn.Sequential(*blocks)
        self.head = nn.Linear(c_in, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        if not self.pre_activation:
            x = F.relu(x + self.bias_stem)
        x = self.blocks(x)
        if self.pre_activation:
            x = F.relu(x + self.bias_relu)
        return self.head(x.float().mean((2, 3)) + self.bias_head)


def fixup(network: Network) -> None:
    """Draws Fixup's weights: He's, times ``L**(-1/2)`` in the branches, last layers and head 0."""
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
    with torch.no_grad():
        for block in network.blocks:
            block.conv_1.weight *= len(network.blocks) ** -0.5
            block.conv_2.weight.zero_()
        network.head.weight.zero_()
        network.head.bias.zero_()


def build(name: str, params: Mapping[str, Any], device: str) -> Network:
    """The network with this library's parameters, channels last.

    Raises:
      ValueError: if a parameter is there that the network does not have, or the other way round.
    """
    network = Network(name)
    network.load_state_dict(leaves_of(params, network.sizes))
    return network.to(device=device, memory_format=torch.channels_last)


def leaves_of(params: Mapping[str, Any], sizes: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """This library's parameters by PyTorch's names, ``blocks.0.conv_1.weight``; blocks by stage."""
    trees = {k: v for k, v in params.items() if not k.startswith("stage_")}
    blocks: dict[str, Any] = {}
    for stage, size in enumerate(sizes, start=1):
        tree = params[f"stage_{stage}"]
        blocks[str(len(blocks))] = tree["first"]
        for index in range(size - 1):
            one = jax.tree.map(lambda leaf, index=index: leaf[index], tree.get("rest"))
            blocks[str(len(blocks))] = one
    found = {}
    for name, value in flatten_dict({**trees, "blocks": blocks}, sep=".").items():
        value = np.array(value)
        if name.endswith(".kernel"):  # [K, K, C_in, C_out] or [C_in, C_out]
            name = f"{name.removesuffix('kernel')}weight"
            value = value.transpose((3, 2, 0, 1) if value.ndim == 4 else (1, 0))
        found[name] = torch.from_numpy(np.ascontiguousarray(value))
    return found


def make_optimizer(network: Network, learning_rate: float, weight_decay: float) -> Any:
    """SGD with momentum 0.9 and L2 on everything, Fixup's scalars at a tenth of the rate."""
    scalars = [p for p in network.parameters() if p.ndim == 0]
    weights = [p for p in network.parameters() if p.ndim > 0]
    groups = [{"params": weights}, {"params": scalars, "lr": 0.1 * learning_rate}]
    return torch.optim.SGD(
        groups, lr=learning_rate, momentum=0.9, weight_decay=weight_decay, fused=True
    )


def make_step(network: Any, optimizer: Any, dtype: torch.dtype) -> Any:
    """``step(images, labels) -> loss``: forward, backward, update; bfloat16 through autocast."""

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(images.device.type, dtype=dtype, enabled=dtype != torch.float32):
            logits = network(images)
        loss = F.cross_entropy(logits.float(), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def tensors(batches: Mapping[str, np.ndarray], device: str) -> list[tuple[torch.Tensor, ...]]:
    """Each batch's images, channels last in memory, and labels."""
    found = []
    for images, labels in zip(batches["image"], batches["label"], strict=True):
        image = torch.from_numpy(images).permute(0, 3, 1, 2).to(device)
        image = image.contiguous(memory_format=torch.channels_last)
        found.append((image, torch.from_numpy(labels).long().to(device)))
    return found
