"""Numbers of parameters, branches and layers, and the depths and widths that are refused."""

import jax
import numpy as np
import pytest

from nf_resnets import roles
from nf_resnets.models import VGG, CifarResNet, ResNet, WideResNet
from tests.models.smallest import smallest
from tests.models.trees import shapes


def count(model, side=8):
    params = shapes(model, (side, side, 3))["params"]
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params))


@pytest.mark.parametrize(
    ("model", "published"),
    [
        # Table 6 of He et al.
        (CifarResNet(20, "batchnorm"), "0.27"),
        (CifarResNet(56, "batchnorm"), "0.85"),
        (CifarResNet(110, "batchnorm"), "1.7"),
        # Tables 2 and 4 of Zagoruyko and Komodakis.
        (WideResNet(16, 8, "batchnorm"), "11.0"),
        (WideResNet(40, 4, "batchnorm"), "8.9"),
        (WideResNet(40, 1, "batchnorm"), "0.6"),
        (WideResNet(22, 8, "batchnorm"), "17.2"),
    ],
)
def test_networks_for_cifar_have_their_published_millions(model, published):
    digits = len(published.partition(".")[2])
    assert f"{count(model) / 1e6:.{digits}f}" == published


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("model", "side", "published"),
    [
        (ResNet(18, "batchnorm"), 8, 11_689_512),
        (ResNet(34, "batchnorm"), 8, 21_797_672),
        (ResNet(50, "batchnorm"), 8, 25_557_032),
        (ResNet(101, "batchnorm"), 8, 44_549_160),
        (ResNet(152, "batchnorm"), 8, 60_192_808),
        (VGG(13, "plain"), 224, 133_047_848),
        (VGG(16, "plain"), 224, 138_357_544),
    ],
)
def test_networks_for_imagenet_to_the_parameter(model, side, published):
    """As torchvision's."""
    assert count(model, side) == published


def test_fixup_resnet_50_adds_seven_scalars_to_each_branch():
    """Six biases and a multiplier, and a bias after the stem and before the head."""
    norms = 2 * (64 + sum(2 * n * c + n * 4 * c + 4 * c for n, c in STAGES))
    assert count(ResNet(50, "fixup")) == 25_557_032 - norms + 7 * 16 + 2
    # RescaleNet: a vector before each of 3 convolutions and 4 shortcuts, after the stem, before
    # the mean; and a multiplier.
    inputs = [64, 256, 512, 1024]
    before = sum(
        c_in + (n - 1) * 4 * c + 2 * n * c for (n, c), c_in in zip(STAGES, inputs, strict=True)
    )
    vectors = before + sum(inputs) + 64 + 2048
    assert count(ResNet(50, "rescalenet")) == 25_557_032 - norms + vectors + 16


STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))  # blocks, channels inside


@pytest.mark.parametrize("network", [CifarResNet(depth=20), WideResNet(depth=22, width=2)])
def test_schemes_add_what_their_anatomy_says(network):
    """Per branch: four biases and a multiplier (Fixup), or alpha and the convolutions' biases."""
    wide = isinstance(network, WideResNet)
    L, channels = network.num_branches, np.array([32, 64, 128] if wide else [16, 32, 64])
    biases = 16 + 2 * (L // 3) * channels.sum() + (channels.sum() if wide else 0)
    weights = count(network.clone(scheme="rezero")) - L
    # Outside: Fixup has one after the stem (WRN: before the last ReLU) and one before the head.
    assert count(network.clone(scheme="fixup")) == weights + 5 * L + 2
    assert count(network.clone(scheme="skipinit")) == weights + L + biases
    assert count(network.clone(scheme="plain")) == weights + biases


@pytest.mark.parametrize(
    ("scheme", "architecture", "norms"),
    [
        # L = 9 branches of two layers: one norm before each and one at the end, and one more at
        # every sum; in a CIFAR ResNet after the stem and each convolution.
        ("batchnorm_merge", "wrn", 28),
        ("batchnorm_merge", "cifar-resnet", 28),
        ("batchnorm_last", "wrn", 1),
        ("t_fixup", "transformer", 0),
    ],
)
def test_how_many_norms_there_are(scheme, architecture, norms):
    """Those of other schemes are compared with NumPy's."""
    leaves = roles.assign(shapes(smallest(architecture, scheme))["params"]).leaves
    found = [leaf for leaf in leaves if leaf.role is roles.Role.NORM and "scale" in leaf.path]
    assert sum(leaf.count for leaf in found) == norms  # of stacked blocks one by one


@pytest.mark.parametrize(("network", "depth"), [(CifarResNet, 2), (WideResNet, 11), (ResNet, 20)])
def test_refuses_other_depths(network, depth):
    with pytest.raises(ValueError, match=f"depth={depth} found"):
        network(depth=depth)


def test_the_shortcut_of_a_resnet_has_six_layers():
    """Footnote 1 of the Fixup paper: the stem, four down-sampling layers, the head."""
    outside = (roles.Role.STEM, roles.Role.SHORTCUT, roles.Role.HEAD)
    leaves = roles.assign(shapes(ResNet(50, "fixup"))["params"]).leaves
    found = [leaf.role for leaf in leaves if leaf.role in outside and leaf.path.endswith("kernel")]
    assert [found.count(role) for role in outside] == [1, 4, 1]
