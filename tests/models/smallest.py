"""Of each architecture a network as small as tests want it, and inputs for it."""

import numpy as np

from nf_resnets.models import ARCHITECTURES

NUMBERS = {
    "cifar-resnet": (20,), "wrn": (22, 1), "resnet": (50,), "resnet-v2": (50,), "vgg": (11,),
    "transformer": (3,),
}  # fmt: skip
FOUR_CHANNELS = {"stem_channels": 4, "num_classes": 10}
OPTIONS = dict.fromkeys(NUMBERS, FOUR_CHANNELS) | {
    "vgg": {**FOUR_CHANNELS, "classifier": (12, 8), "pool_size": 2},
    "transformer": {"vocab_size": 11, "d_model": 8, "num_heads": 2, "d_ff": 16},
}


def smallest(name, scheme, **options):
    """A network of a few channels, with each part that its larger ones have."""
    build = ARCHITECTURES[name].build
    return build(*NUMBERS[name], scheme=scheme, **{**OPTIONS[name], **options})


def example(name, batch_size):
    """Inputs for it; of a Transformer's the second half of the last source is padding."""
    rng = np.random.default_rng(0)
    if name != "transformer":
        side = 8 if name in ("cifar-resnet", "wrn") else 32
        return (rng.standard_normal((batch_size, side, side, 3), dtype=np.float32),)
    source, target = (rng.integers(1, 11, (batch_size, n), dtype=np.int32) for n in (6, 5))
    source[-1, 3:] = 0
    return source, target
