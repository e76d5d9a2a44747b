"""The baselines with normalisation, told apart by which norm there is and where it stands.

All start from a standard initialisation, with the norms' scales 1 and biases 0 as a model's
``init`` has them.
"""

from __future__ import annotations

import dataclasses
from functools import partial

from nf_resnets.init.standard import standard
from nf_resnets.schemes import Anatomy, Scheme

_IMAGES = frozenset({"pre_activation", "post_activation", "plain"})
_FEEDBACK = "De, Smith: Batch Normalization Biases Residual Blocks, NeurIPS 2020, author feedback"

BATCH_NORM = Scheme(
    name="batchnorm",
    title="BatchNorm",
    init=standard,
    anatomy=Anatomy(norm="batch"),
    reference="Ioffe, Szegedy: Batch Normalization, ICML 2015",
    fits=_IMAGES,
)
GROUP_NORM = Scheme(
    name="groupnorm",
    title="GroupNorm",
    init=standard,
    anatomy=Anatomy(norm="group"),
    reference="Wu, He: Group Normalization, ECCV 2018",
)
_of_the_feedback = partial(Scheme, init=standard, reference=_FEEDBACK)
BATCH_NORM_LAST = _of_the_feedback(
    name="batchnorm_last",
    title="one BatchNorm before the softmax",
    anatomy=Anatomy(conv_biases=True, norm="batch", norm_place="last"),
)
# The whole block is multiplied, skip and branch, the feedback's "residual block": only so do they
# contribute equally.
BATCH_NORM_SQRT_HALF = _of_the_feedback(
    name="batchnorm_sqrt_half",
    title="BatchNorm, (x + F)/√2",
    anatomy=Anatomy(norm="batch", residual=0.5**0.5, identity=0.5**0.5),
)
BATCH_NORM_MERGE = _of_the_feedback(
    name="batchnorm_merge",
    title="BatchNorm, also after the sum",
    anatomy=Anatomy(norm="batch", norm_place="merge"),
)
LAYER_NORM_PRE = Scheme(
    name="layernorm_pre",
    title="LayerNorm, before the branch",
    init=standard,
    anatomy=Anatomy(conv_biases=True, norm="layer", norm_place="pre"),
    reference="Xiong et al.: On Layer Normalization in the Transformer Architecture, ICML 2020",
    fits=frozenset({"transformer"}),
)
LAYER_NORM_POST = dataclasses.replace(
    LAYER_NORM_PRE,
    name="layernorm_post",
    title="LayerNorm, after the sum",
    anatomy=Anatomy(conv_biases=True, norm="layer", norm_place="post"),
    reference="Vaswani et al.: Attention Is All You Need, NeurIPS 2017, section 3.1",
)

__all__ = [
    "BATCH_NORM", "BATCH_NORM_LAST", "BATCH_NORM_MERGE", "BATCH_NORM_SQRT_HALF", "GROUP_NORM",
    "LAYER_NORM_POST", "LAYER_NORM_PRE",
]  # fmt: skip
