"""A Flax Linen ResNet with names of its own: ``stage1/block_10/conv_1/kernel``."""

import flax.linen as nn
import jax

from nf_resnets.init import Rules
from tests.trees.network import CLASSES, IMAGES, Network, filled

BLOCKS = (11, 2)  # more than ten: block_10 is before block_2 in the alphabet


class Block(nn.Module):
    features: int
    stride: int = 1

    @nn.compact
    def __call__(self, x, shortcut):
        def offset(name):
            return self.param(name, nn.initializers.zeros, ())

        conv = nn.Conv(
            self.features, (3, 3), (self.stride, self.stride), use_bias=False, name="conv_1"
        )
        h = nn.relu(conv(x + offset("offset_1")) + offset("offset_2"))
        h = nn.Conv(self.features, (3, 3), name="conv_2")(h + offset("offset_3"))
        gain = self.param("gain", nn.initializers.ones, ())
        alpha = self.param("alpha", nn.initializers.ones, ())
        return nn.relu(shortcut + alpha * gain * h)


class Stage(nn.Module):
    features: int
    stride: int
    blocks: int

    @nn.compact
    def __call__(self, x, shortcut):
        for number in range(1, self.blocks + 1):
            stride = self.stride if number == 1 else 1
            x = Block(self.features, stride, name=f"block_{number}")(x, shortcut)
            shortcut = x
        return x


class ResNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(3, (3, 3), name="stem")(x)
        x = Stage(3, 1, BLOCKS[0], name="stage1")(x, x)
        shortcut = nn.Conv(4, (1, 1), (2, 2), use_bias=False, name="downsample_2")(x)
        x = Stage(4, 2, BLOCKS[1], name="stage2")(x, shortcut)
        return nn.Dense(CLASSES, name="dense")(x.mean(axis=(1, 2)))


RULES = Rules(
    branch=r"stage(\d+)/block_(\d+)/conv_(\d+)/(?:kernel|bias)$",
    head=r"^dense/",
    stem=r"^stem/",
    shortcut=r"^downsample_\d+/",
    scalar_bias=r"/offset_\d+$",
    multiplier=r"/gain$",
    alpha=r"/alpha$",
)


def network():
    shapes = jax.eval_shape(ResNet().init, jax.random.key(0), IMAGES)["params"]
    kinds = {
        "stem/kernel": "stem",
        "stem/bias": "bias",
        "downsample_2/kernel": "shortcut",
        "dense/kernel": "head",
        "dense/bias": "head_bias",
    }
    order = []
    for stage, blocks in enumerate(BLOCKS, start=1):
        for number in range(1, blocks + 1):
            block = f"stage{stage}/block_{number}"
            order.append(block)
            kinds[f"{block}/conv_1/kernel"] = "inner"
            kinds[f"{block}/conv_2/kernel"] = "last"
            kinds[f"{block}/conv_2/bias"] = "last_bias"
            kinds |= {f"{block}/offset_{i}": "scalar_bias" for i in (1, 2, 3)}
            kinds |= {f"{block}/gain": "multiplier", f"{block}/alpha": "alpha"}
    return Network(filled(shapes), RULES, kinds, tuple(order))
