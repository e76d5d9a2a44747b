"""Published networks as PyTorch modules: their structure and the names of their parameters.

They are written anew, as narrow as tests want them, after hongyi-zhang/Fixup, torchvision and timm;
``tests/models`` has the others in NumPy and PyTorch. Needs PyTorch.
"""

from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nn, F = torch.nn, torch.nn.functional

CLASSES = 7


def conv(c_in, c_out, size=3, stride=1, bias=False):
    return nn.Conv2d(c_in, c_out, size, stride, padding=size // 2, bias=bias)


def scalar(value):
    return nn.Parameter(torch.full((1,), float(value)))


def convolutions(block, before, width, stride, expansion, wide=1):
    """Gives a block ``conv1``, ``conv2``, ...; the stride is that of the first of 3 x 3."""
    layers = [(3, stride, width), (3, 1, width)]
    if expansion > 1:
        layers = [(1, 1, wide * width), (3, stride, wide * width), (1, 1, 4 * width)]
    for j, (size, step, c_out) in enumerate(layers, start=1):
        setattr(block, f"conv{j}", conv(before, c_out, size, step))
        before = c_out
    block.count = len(layers)
    return before


def stages(network, block, sizes, width, expansion=1):
    """``layer1``, ``layer2``, ... of a network; each twice as wide as the one before."""
    c_in = network.c_in
    for stage, size in enumerate(sizes):
        blocks = []
        for index in range(size):
            stride = 2 if stage and not index else 1
            blocks.append(block(c_in, width * 2**stage, stride, expansion))
            c_in = width * 2**stage * expansion
        setattr(network, f"layer{stage + 1}", nn.Sequential(*blocks))
    network.last = c_in


def through_stages(network, x):
    stage = 1
    while hasattr(network, f"layer{stage}"):
        x = getattr(network, f"layer{stage}")(x)
        stage += 1
    return x


# --- torchvision and timm -----------------------------------------------------------------------


class BatchNormBlock(nn.Module):
    def __init__(self, c_in, width, stride, expansion, wide=1):
        super().__init__()
        last = convolutions(self, c_in, width, stride, expansion, wide)
        for j in range(1, self.count + 1):
            setattr(self, f"bn{j}", nn.BatchNorm2d(getattr(self, f"conv{j}").out_channels))
        self.downsample = None
        if stride > 1 or c_in != last:
            shortcut = conv(c_in, last, 1, stride)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(last))

    def forward(self, x):
        h = x
        for j in range(1, self.count + 1):
            h = getattr(self, f"bn{j}")(getattr(self, f"conv{j}")(h))
            h = F.relu(h) if j < self.count else h
        return F.relu(h + (x if self.downsample is None else self.downsample(x)))


class BatchNormResNet(nn.Module):
    """Of torchvision.models.resnet and timm.models.resnet."""

    def __init__(self, sizes, expansion, width=4, wide=1):
        super().__init__()
        self.c_in = width
        self.conv1 = conv(3, width, 7, 2)
        self.bn1 = nn.BatchNorm2d(width)
        stages(self, partial(BatchNormBlock, wide=wide), sizes, width, expansion)
        self.fc = nn.Linear(self.last, CLASSES)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, padding=1)
        return self.fc(through_stages(self, x).mean((2, 3)))


# --- hongyi-zhang/Fixup -------------------------------------------------------------------------


class FixupBlock(nn.Module):
    padded = False

    def __init__(self, c_in, width, stride, expansion):
        super().__init__()
        last = convolutions(self, c_in, width, stride, expansion)
        for j in range(1, self.count + 1):
            setattr(self, f"bias{j}a", scalar(0))
            setattr(self, f"bias{j}b", scalar(0))
        self.scale, self.stride = scalar(1), stride
        self.downsample = None
        if (stride > 1 or c_in != last) and not self.padded:
            self.downsample = conv(c_in, last, 1, stride)

    def forward(self, x):
        h = x
        for j in range(1, self.count + 1):
            h = getattr(self, f"conv{j}")(h + getattr(self, f"bias{j}a"))
            h = h * self.scale if j == self.count else h
            h = h + getattr(self, f"bias{j}b")
            h = F.relu(h) if j < self.count else h
        return F.relu(h + self.shortcut(x))

    def shortcut(self, x):
        if self.downsample is not None:
            return self.downsample(x + self.bias1a)
        if self.padded and self.stride > 1:
            x = F.avg_pool2d(x + self.bias1a, 1, self.stride)
            return torch.cat((x, torch.zeros_like(x)), 1)
        return x


class PaddedFixupBlock(FixupBlock):
    padded = True


class FixupResNet(nn.Module):
    """For ImageNet with four stages, for CIFAR with three."""

    def __init__(self, sizes, expansion=1, width=4):
        super().__init__()
        self.imagenet = len(sizes) == 4
        self.c_in = width
        self.conv1 = conv(3, width, 7, 2) if self.imagenet else conv(3, width)
        self.bias1 = scalar(0)
        block = FixupBlock if self.imagenet else PaddedFixupBlock
        stages(self, block, sizes, width, expansion)
        self.bias2, self.fc = scalar(0), nn.Linear(self.last, CLASSES)

    def forward(self, x):
        x = F.relu(self.conv1(x) + self.bias1)
        x = F.max_pool2d(x, 3, 2, padding=1) if self.imagenet else x
        return self.fc(through_stages(self, x).mean((2, 3)) + self.bias2)


# --- What is done with them ---------------------------------------------------------------------


def logits_of(module, images):
    """The logits, computed in float64, of images ``[B, H, W, C]``."""
    with torch.no_grad():
        nchw = torch.from_numpy(images.transpose(0, 3, 1, 2).astype("float64"))
        return module.double().eval()(nchw).numpy()
