"""Published networks as PyTorch modules: their structure and the names of their parameters.

They are written anew, as narrow as tests want them, after hongyi-zhang/Fixup, torchvision, timm and
hukkai/rescaling. Needs PyTorch.
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


def layers_of(width, expansion, wide=1):
    """The sizes of a branch's kernels, and its channels from the second on."""
    if expansion == 1:
        return (3, 3), (width, width)
    return (1, 3, 1), (wide * width, wide * width, 4 * width)


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
        sizes, channels = layers_of(width, expansion, wide)
        self.count = len(sizes)
        before = c_in
        for j, (size, c_out) in enumerate(zip(sizes, channels, strict=True), start=1):
            # The stride is the first 3x3 convolution's.
            strided = j == (1 if expansion == 1 else 2)
            setattr(self, f"conv{j}", conv(before, c_out, size, stride if strided else 1))
            setattr(self, f"bn{j}", nn.BatchNorm2d(c_out))
            before = c_out
        self.downsample = None
        if stride > 1 or c_in != before:
            shortcut = conv(c_in, before, 1, stride)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(before))

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


class StandardizedConv(nn.Conv2d):
    """Of timm.layers.std_conv, with the gain of a ReLU in every kernel."""

    def __init__(self, c_in, c_out, size=3, stride=1):
        super().__init__(c_in, c_out, size, stride, padding=size // 2)
        self.gain = nn.Parameter(torch.ones(c_out, 1, 1, 1))

    def forward(self, x):
        flat = self.weight.flatten(1)
        centered = (flat - flat.mean(1, keepdim=True)).view_as(self.weight)
        variance = flat.var(1, unbiased=False).view(-1, 1, 1, 1)
        factor = 1.7139588594436646 * self.gain / (flat.shape[1] * (variance + 1e-5)).sqrt()
        return F.conv2d(x, centered * factor, self.bias, self.stride, self.padding)


class NormFreeBlock(nn.Module):
    def __init__(self, c_in, width, stride, beta):
        super().__init__()
        self.stride, self.beta = stride, beta
        self.downsample = None
        if stride > 1 or c_in != 4 * width:
            self.downsample = nn.ModuleDict({"conv": StandardizedConv(c_in, 4 * width, 1)})
        self.conv1 = StandardizedConv(c_in, width, 1)
        self.conv2 = StandardizedConv(width, width, 3, stride)
        self.conv3 = StandardizedConv(width, 4 * width, 1)

    def forward(self, x):
        activated = F.relu(x) * self.beta
        if self.downsample is not None:
            pool = {"ceil_mode": True, "count_include_pad": False}
            x = F.avg_pool2d(activated, 2, 2, **pool) if self.stride > 1 else activated
            x = self.downsample["conv"](x)
        return x + 0.2 * self.conv3(F.relu(self.conv2(F.relu(self.conv1(activated)))))


class NormFreeResNet(nn.Module):
    """Of timm.models.nfnet, nf_resnet26, nf_resnet50 and nf_resnet101."""

    def __init__(self, sizes, width=4):
        super().__init__()
        self.stem = nn.ModuleDict({"conv": StandardizedConv(3, width, 7, 2)})
        c_in, variance, self.stages = width, 1.0, nn.ModuleList()
        for stage, size in enumerate(sizes):
            blocks = nn.Sequential()
            for index in range(size):
                stride = 2 if stage and not index else 1
                blocks.append(NormFreeBlock(c_in, width * 2**stage, stride, variance**-0.5))
                c_in = 4 * width * 2**stage
                variance = 1.04 if not index else variance + 0.04
            self.stages.append(blocks)
        self.head = nn.ModuleDict({"fc": nn.Linear(c_in, CLASSES)})

    def forward(self, x):
        x = F.max_pool2d(self.stem["conv"](x), 3, 2, padding=1)
        for stage in self.stages:
            x = stage(x)
        return self.head["fc"](F.relu(x).mean((2, 3)))


# --- hongyi-zhang/Fixup -------------------------------------------------------------------------


class FixupBlock(nn.Module):
    padded = False

    def __init__(self, c_in, width, stride, expansion):
        super().__init__()
        sizes, channels = layers_of(width, expansion)
        self.count, self.stride = len(sizes), stride
        before = c_in
        for j, (size, c_out) in enumerate(zip(sizes, channels, strict=True), start=1):
            strided = j == (1 if expansion == 1 else 2)
            setattr(self, f"conv{j}", conv(before, c_out, size, stride if strided else 1))
            setattr(self, f"bias{j}a", scalar(0))
            setattr(self, f"bias{j}b", scalar(0))
            before = c_out
        self.scale = scalar(1)
        self.downsample = None
        if (stride > 1 or c_in != before) and not self.padded:
            self.downsample = conv(c_in, before, 1, stride)

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


# --- hukkai/rescaling ---------------------------------------------------------------------------


class AddBias(nn.Module):
    """A bias as it is after its first eight batches: what was learnt less the mean of those."""

    def __init__(self, channels, *ones):
        super().__init__()
        self._bias = nn.Parameter(torch.zeros(1, channels, *ones))
        self.register_buffer("init_mean", torch.zeros(1, channels, *ones))
        self.register_buffer("count", torch.tensor(8))

    def forward(self, x):
        return x + (self._bias - self.init_mean)


class RescaleBlock(nn.Module):
    def __init__(self, c_in, width, stride, index, count):
        super().__init__()
        self.conv1, self.conv2 = conv(c_in, width, 1), conv(width, width, 3, stride)
        self.conv3 = conv(width, 4 * width, 1)
        self.addbias1, self.addbias2, self.addbias3 = (
            AddBias(channels, 1, 1) for channels in (c_in, width, width)
        )
        self._scale = scalar(1)
        self.residual, self.identity = count**-0.5, (index / (index + 1)) ** 0.5
        self.downsample = nn.Sequential()
        if stride > 1 or c_in != 4 * width:
            pool = nn.AvgPool2d(stride) if stride > 1 else nn.Sequential()
            bias, shortcut = AddBias(c_in, 1, 1), conv(c_in, 4 * width, 1)
            self.downsample = nn.Sequential(pool, bias, shortcut)

    def forward(self, x):
        h = F.relu(self.conv1(self.addbias1(x)))
        h = self.conv3(self.addbias3(F.relu(self.conv2(self.addbias2(h)))))
        return F.relu(h * self._scale * self.residual + self.identity * self.downsample(x))


class RescaleNet(nn.Module):
    def __init__(self, sizes, width=4):
        super().__init__()
        self.conv1, self.addbias1 = conv(3, width, 7, 2), AddBias(width, 1, 1)
        index, c_in = sum(sizes) - 1, width
        for stage, size in enumerate(sizes):
            blocks = nn.Sequential()
            for position in range(size):
                stride = 2 if stage and not position else 1
                blocks.append(RescaleBlock(c_in, width * 2**stage, stride, index, sum(sizes)))
                c_in, index = 4 * width * 2**stage, index + 1
            setattr(self, f"layer{stage + 1}", blocks)
        self.addbias2, self.fc = AddBias(c_in, 1, 1), nn.Linear(c_in, CLASSES)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.addbias1(self.conv1(x))), 3, 2, padding=1)
        return self.fc(self.addbias2(through_stages(self, x)).mean((2, 3)))


# --- What is done with them ---------------------------------------------------------------------


def randomised(module, seed=0):
    """Draws every parameter and every running statistic, those too that a scheme starts at 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if not tensor.is_floating_point():
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            if name.endswith("weight") and tensor.ndim > 1:
                tensor.copy_(0.7 * noise * (2 / tensor[0].numel()) ** 0.5)
            elif name.endswith("running_var"):
                tensor.copy_(torch.exp(0.5 * torch.tanh(noise)))
            elif name.endswith(("weight", "scale", "gain")):
                tensor.copy_(1 + 0.2 * torch.tanh(noise))
            else:
                tensor.copy_(0.1 * noise)
    return module.eval()


def logits_of(module, images):
    """The logits, computed in float64, of images ``[B, H, W, C]``."""
    with torch.no_grad():
        nchw = torch.from_numpy(images.transpose(0, 3, 1, 2).astype("float64"))
        return module.double()(nchw).numpy()
