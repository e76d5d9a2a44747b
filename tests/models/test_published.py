"""The networks against independent references: loops in NumPy, and PyTorch modules.

Every parameter is random, the scalars too: at a scheme's own initialisation most of a network is
zero, and a wrong bias would not be seen. The references compute in float64, so that a difference is
our float32's rounding: 6e-8 a sum, which grows with the number of layers and with cancellation, and
in gradients with the rare activation whose sign the rounding turns. What was seen is stated beside
each tolerance; a bias left out or a pixel shifted gives 1e-2 and more.
"""

import functools

import jax
import numpy as np
import pytest

from nf_resnets.models import CifarResNet, WideResNet
from tests.models.reference import GROUPS, logits_and_grads, numpy_conv, numpy_norm
from tests.models.trees import assert_close, block_trees, images, quick_jit, random_variables

VALUES = 1e-5  # of the largest logit; seen: 5e-7
GRADIENTS = 2e-4  # of a leaf's largest entry; seen: 3e-5, in a scalar bias


# --- NumPy -------------------------------------------------------------------------------------


def numpy_fixup_resnet(params, x):
    """The published Fixup ResNet for CIFAR."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    x = numpy_conv(x.astype(np.float64), params["stem"]["kernel"], 1)
    x = np.maximum(x + params["bias_stem"], 0)
    for stage in (1, 2, 3):
        for index, p in enumerate(block_trees(params[f"stage_{stage}"])):
            stride = 2 if stage > 1 and index == 0 else 1
            h = numpy_conv(x + p["bias_1a"], p["conv_1"]["kernel"], stride)
            h = np.maximum(h + p["bias_1b"], 0)
            h = numpy_conv(h + p["bias_2a"], p["conv_2"]["kernel"], 1)
            h = p["multiplier"] * h + p["bias_2b"]
            if stride == 2:
                pooled = (x + p["bias_1a"])[:, ::2, ::2]
                x = np.concatenate([pooled, np.zeros_like(pooled)], axis=3)
            x = np.maximum(x + h, 0)
    pooled = x.mean((1, 2)) + params["bias_head"]
    return pooled @ params["head"]["kernel"] + params["head"]["bias"]


@pytest.mark.parametrize(
    ("depth", "side"), [(20, 32), (20, 9), pytest.param(110, 32, marks=pytest.mark.slow)]
)
def test_fixup_resnet_matches_numpy(depth, side):
    model = CifarResNet(depth=depth, scheme="fixup")
    params = random_variables(model, depth)["params"]
    x = images(1, 2, side, side, 3)
    logits = quick_jit(lambda p, x: model.apply({"params": p}, x))(params, x)
    assert_close(logits, numpy_fixup_resnet(params, x), VALUES)


def numpy_wide_resnet(variables, x, scheme, train):
    """A pre-activation WRN of each anatomy; returns the logits and the new running statistics."""
    tree = jax.tree.map(lambda leaf: np.array(leaf, np.float64), variables)
    params, stats = tree["params"], tree.get("batch_stats", {})

    def conv(x, p, stride=1):
        return numpy_conv(x, p["kernel"], stride) + p.get("bias", 0)

    def merge(x, h, p):
        if scheme == "sqrt_half":
            return np.sqrt(0.5) * x + np.sqrt(0.5) * h
        return x + p.get("multiplier", 1) * p.get("alpha", 1) * h

    def norm(x, p, s, name):
        return numpy_norm(x, p, s, name, scheme, train)

    x = conv(x.astype(np.float64), params["stem"])
    for stage in ("stage_1", "stage_2", "stage_3"):
        running = list(block_trees(stats[stage])) if stats else [{}] * 99
        for index, p in enumerate(block_trees(params[stage])):
            s, stride = running[index], 2 if stage != "stage_1" and index == 0 else 1
            activated = np.maximum(norm(x, p, s, "norm_1") + p.get("bias_1", 0), 0)
            h = conv(activated + p.get("bias_2", 0), p["conv_1"], stride)
            h = np.maximum(norm(h, p, s, "norm_2") + p.get("bias_3", 0), 0)
            h = conv(h + p.get("bias_4", 0), p["conv_2"])
            x = conv(activated, p["shortcut"], stride) if index == 0 else x
            x = merge(x, h, p)
    x = np.maximum(norm(x, params, stats, "norm_head") + params.get("bias_relu", 0), 0)
    x = x.mean((1, 2)) + params.get("bias_head", 0)
    return x @ params["head"]["kernel"] + params["head"]["bias"], stats


SCHEMES = ("fixup", "skipinit", "batchnorm", "sqrt_half", "groupnorm")


@pytest.mark.every(2)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_wide_resnet_matches_numpy(scheme):
    model = WideResNet(depth=16, width=2, scheme=scheme)
    variables, x = random_variables(model, 7), images(8, 3, 9, 12, 3)
    for train in (True, False) if scheme == "batchnorm" else (True,):
        apply = functools.partial(model.apply, train=train, mutable=["batch_stats"])
        logits, updated = quick_jit(apply)(variables, x)
        expected, stats = numpy_wide_resnet(variables, x, scheme, train)
        assert_close(logits, expected, VALUES)
        assert_close(dict(updated).get("batch_stats", {}), stats, VALUES)


# --- PyTorch, the published modules ------------------------------------------------------------


def published_fixup_resnet(torch, blocks_per_stage):
    """The Fixup ResNet for CIFAR with the structure and the names of the authors' release."""
    nn = torch.nn

    def scalar(value):
        return nn.Parameter(torch.full((1,), float(value)))

    def conv3x3(c_in, c_out, stride=1):
        return nn.Conv2d(c_in, c_out, kernel_size=3, stride=stride, padding=1, bias=False)

    class FixupBasicBlock(nn.Module):
        def __init__(self, c_in, c_out, stride=1, downsample=None):
            super().__init__()
            self.bias1a = scalar(0)
            self.conv1 = conv3x3(c_in, c_out, stride)
            self.bias1b = scalar(0)
            self.relu = nn.ReLU(inplace=True)
            self.bias2a = scalar(0)
            self.conv2 = conv3x3(c_out, c_out)
            self.scale = scalar(1)
            self.bias2b = scalar(0)
            self.downsample = downsample

        def forward(self, x):
            identity = x
            out = self.conv1(x + self.bias1a)
            out = self.relu(out + self.bias1b)
            out = self.conv2(out + self.bias2a)
            out = out * self.scale + self.bias2b
            if self.downsample is not None:
                identity = self.downsample(x + self.bias1a)
                identity = torch.cat((identity, torch.zeros_like(identity)), 1)
            return self.relu(out + identity)

    class FixupResNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = conv3x3(3, 16)
            self.bias1 = scalar(0)
            self.relu = nn.ReLU(inplace=True)
            self.layer1 = self.make_layer(16, 16, 1)
            self.layer2 = self.make_layer(16, 32, 2)
            self.layer3 = self.make_layer(32, 64, 2)
            self.bias2 = scalar(0)
            self.linear = nn.Linear(64, 10)

        def make_layer(self, c_in, c_out, stride):
            downsample = nn.AvgPool2d(1, stride=stride) if stride != 1 else None
            blocks = [FixupBasicBlock(c_in, c_out, stride, downsample)]
            blocks += [FixupBasicBlock(c_out, c_out) for _ in range(blocks_per_stage - 1)]
            return nn.Sequential(*blocks)

        def forward(self, x):
            x = self.relu(self.conv1(x) + self.bias1)
            x = self.layer3(self.layer2(self.layer1(x)))
            x = nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)
            return self.linear(x + self.bias2)

    return FixupResNet().double()


def published_names(params):
    """Our tree under the names, and in the layouts, of the published module."""
    flat = {"conv1.weight": params["stem"]["kernel"], "bias1": params["bias_stem"]}
    names = {
        "bias_1a": "bias1a",
        "bias_1b": "bias1b",
        "bias_2a": "bias2a",
        "bias_2b": "bias2b",
        "multiplier": "scale",
    }
    for stage in (1, 2, 3):
        for index, block in enumerate(block_trees(params[f"stage_{stage}"])):
            prefix = f"layer{stage}.{index}."
            flat |= {prefix + theirs: block[ours] for ours, theirs in names.items()}
            flat |= {prefix + f"conv{j}.weight": block[f"conv_{j}"]["kernel"] for j in (1, 2)}
    flat |= {"bias2": params["bias_head"], "linear.bias": params["head"]["bias"]}
    flat["linear.weight"] = params["head"]["kernel"]
    layouts = {4: lambda a: a.transpose(3, 2, 0, 1), 2: np.transpose, 0: lambda a: a.reshape(1)}
    return {k: layouts.get(a.ndim, np.asarray)(np.asarray(a, float)) for k, a in flat.items()}


def test_fixup_resnet_matches_the_published_module():
    torch = pytest.importorskip("torch")
    model = CifarResNet(depth=20, scheme="fixup")
    variables = random_variables(model, 3)
    x, labels = images(4, 4, 9, 12, 3), np.array([0, 3, 9, 3])

    module = published_fixup_resnet(torch, blocks_per_stage=3)
    theirs = published_names(variables["params"])
    module.load_state_dict({name: torch.from_numpy(a.copy()) for name, a in theirs.items()})
    expected = module(torch.from_numpy(x.transpose(0, 3, 1, 2).astype(float)))
    torch.nn.functional.cross_entropy(expected, torch.from_numpy(labels)).backward()

    logits, grads, _ = logits_and_grads(model, variables, x, labels)
    assert_close(logits, expected.detach().numpy(), VALUES)
    their_grads = {name: p.grad.numpy() for name, p in module.named_parameters()}
    assert_close(published_names(grads), their_grads, GRADIENTS)


# --- PyTorch, by its functions, for every anatomy ----------------------------------------------


class Reference:
    """A WRN or a ResNet in PyTorch's functions, over a tree of float64 tensors.

    ``norm`` takes ``(x, path)``; BatchNorm writes into the running statistics' tensors.
    """

    def __init__(self, torch, variables, scheme, train):
        self.F, self.scheme, self.train = torch.nn.functional, scheme, train

        def tensor(leaf, grad):
            return torch.from_numpy(np.asarray(leaf, float).copy()).requires_grad_(grad)

        self.params = jax.tree.map(lambda leaf: tensor(leaf, True), variables["params"])
        self.stats = jax.tree.map(lambda a: tensor(a, False), variables.get("batch_stats", {}))

    def conv(self, x, p, stride=1):
        kernel = p["kernel"].permute(3, 2, 0, 1)
        return self.F.conv2d(x, kernel, p.get("bias"), stride, padding=kernel.shape[2] // 2)

    def norm(self, x, p, stats, name):
        if self.scheme == "batchnorm":
            mean, var = stats[name]["mean"], stats[name]["var"]
            scale, bias = p[name]["scale"], p[name]["bias"]
            return self.F.batch_norm(x, mean, var, scale, bias, self.train, momentum=0.1, eps=1e-5)
        if self.scheme == "groupnorm":
            scale, bias = p[name]["norm"]["scale"], p[name]["norm"]["bias"]
            return self.F.group_norm(x, GROUPS[x.shape[1]], scale, bias, eps=1e-5)
        return x

    def merge(self, shortcut, branch, p):
        if self.scheme == "fixup":
            return shortcut + p["multiplier"] * branch
        if self.scheme == "skipinit":
            return shortcut + p["alpha"] * branch
        if self.scheme == "sqrt_half":
            return (shortcut + branch) / 2**0.5
        return shortcut + branch

    def bias(self, p, name):
        return p[name] if self.scheme == "fixup" else 0.0

    def wide_block(self, x, p, stats, stride):
        relu = self.F.relu
        activated = relu(self.norm(x, p, stats, "norm_1") + self.bias(p, "bias_1"))
        shortcut = self.conv(activated, p["shortcut"], stride) if "shortcut" in p else x
        h = self.conv(activated + self.bias(p, "bias_2"), p["conv_1"], stride)
        h = relu(self.norm(h, p, stats, "norm_2") + self.bias(p, "bias_3"))
        h = self.conv(h + self.bias(p, "bias_4"), p["conv_2"])
        return self.merge(shortcut, h, p)

    def basic_block(self, x, p, stats, stride):
        h = self.F.relu(self.norm(self.conv(x, p["conv_1"], stride), p, stats, "norm_1"))
        h = self.norm(self.conv(h, p["conv_2"]), p, stats, "norm_2")
        if stride == 2:
            x = self.F.avg_pool2d(x, 1, 2)
            x = self.F.pad(x, (0, 0, 0, 0, 0, x.shape[1]))
        return self.F.relu(self.merge(x, h, p))

    def __call__(self, x, *, wide):
        params, stats = self.params, self.stats
        x = self.conv(x, params["stem"])
        if not wide:
            x = self.F.relu(self.norm(x, params, stats, "norm_stem"))
        block = self.wide_block if wide else self.basic_block
        for stage in (1, 2, 3):
            name = f"stage_{stage}"
            trees = block_trees(params[name])
            running = block_trees(stats[name]) if stats else iter(lambda: None, 0)
            for index, (p, s) in enumerate(zip(trees, running, strict=False)):
                x = block(x, p, s, 2 if stage > 1 and index == 0 else 1)
        if wide:
            x = self.F.relu(
                self.norm(x, params, stats, "norm_head") + self.bias(params, "bias_relu")
            )
        x = x.mean((2, 3)) + self.bias(params, "bias_head")
        return x @ params["head"]["kernel"] + params["head"]["bias"]


@pytest.mark.every(4)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_wide_resnet_matches_torch(scheme):
    torch = pytest.importorskip("torch")
    model = WideResNet(depth=16, width=2, scheme=scheme)
    check_against_torch(torch, model, scheme, wide=True)


@pytest.mark.parametrize("scheme", ["skipinit", "batchnorm"])
def test_cifar_resnet_matches_torch(scheme):
    torch = pytest.importorskip("torch")
    check_against_torch(torch, CifarResNet(depth=14, scheme=scheme), scheme, wide=False)


def check_against_torch(torch, model, scheme, *, wide):
    variables = random_variables(model, 5)
    x, labels = images(6, 4, 9, 12, 3), np.array([0, 3, 9, 3])
    nchw = torch.from_numpy(x.transpose(0, 3, 1, 2).astype(float))

    reference = Reference(torch, variables, scheme, train=True)
    expected = reference(nchw, wide=wide)
    torch.nn.functional.cross_entropy(expected, torch.from_numpy(labels)).backward()
    logits, grads, stats = logits_and_grads(model, variables, x, labels)
    assert_close(logits, expected.detach().numpy(), VALUES)
    assert_close(grads, jax.tree.map(lambda t: t.grad.numpy(), reference.params), GRADIENTS)
    # torch.nn.BatchNorm2d averages the unbiased variance, with its momentum the 1 - ours.
    assert_close(stats, jax.tree.map(lambda t: t.numpy(), reference.stats), VALUES)

    if scheme == "batchnorm":
        evaluation = Reference(torch, variables, scheme, train=False)(nchw, wide=wide)
        logits = quick_jit(lambda v, x: model.apply(v, x))(variables, x)
        assert_close(logits, evaluation.detach().numpy(), VALUES)
