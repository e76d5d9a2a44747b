"""Initialisers as pure functions of a parameter tree, and the registry of schemes."""

from nf_resnets.init import admin as _admin
from nf_resnets.init import deepnorm as _deepnorm
from nf_resnets.init import dyt as _dyt
from nf_resnets.init import fixup as _fixup
from nf_resnets.init import lsuv as _lsuv
from nf_resnets.init import nf_resnet as _nf_resnet
from nf_resnets.init import normalized as _normalized
from nf_resnets.init import parametrized as _parametrized
from nf_resnets.init import rescalenet as _rescalenet
from nf_resnets.init import rezero as _rezero
from nf_resnets.init import rules
from nf_resnets.init import skipinit as _skipinit
from nf_resnets.init import standard as _standard
from nf_resnets.init import t_fixup as _t_fixup
from nf_resnets.init import zero_gamma as _zero_gamma
from nf_resnets.init.admin import admin
from nf_resnets.init.deepnorm import deepnorm
from nf_resnets.init.describe import describe
from nf_resnets.init.dyt import dyt
from nf_resnets.init.fixup import fixup
from nf_resnets.init.he import he
from nf_resnets.init.lsuv import lsuv
from nf_resnets.init.nf_resnet import nf_resnet
from nf_resnets.init.orthogonal import orthogonal
from nf_resnets.init.parametrized import at_base
from nf_resnets.init.rescale_biases import rescale_biases
from nf_resnets.init.rescalenet import rescalenet
from nf_resnets.init.rezero import rezero
from nf_resnets.init.skipinit import skipinit
from nf_resnets.init.standard import constant_alpha, standard
from nf_resnets.init.t_fixup import t_fixup
from nf_resnets.init.xavier import xavier
from nf_resnets.init.zero_gamma import zero_gamma
from nf_resnets.roles import Rules
from nf_resnets.schemes import SchemeWarning, register

# The registry: a new scheme is one file beside this one, and one line here.
for _scheme in (
    _fixup.SCHEME,
    _fixup.PUBLISHED,
    _skipinit.SCHEME,
    _skipinit.RSQRT_DEPTH,
    _skipinit.ALPHA_ONE,
    _skipinit.REGULARIZED,
    _rescalenet.SCHEME,
    _rescalenet.PUBLISHED,
    _standard.PLAIN,
    _standard.SQRT_HALF,
    _standard.XAVIER,
    _standard.ORTHOGONAL,
    _lsuv.SCHEME,
    _rezero.SCHEME,
    _nf_resnet.SCHEME,
    _nf_resnet.PUBLISHED,
    _nf_resnet.TIMM,
    _t_fixup.SCHEME,
    _dyt.SCHEME,
    _dyt.DERF,
    _normalized.BATCH_NORM,
    _normalized.BATCH_NORM_LAST,
    _normalized.BATCH_NORM_SQRT_HALF,
    _normalized.BATCH_NORM_MERGE,
    _zero_gamma.SCHEME,
    _normalized.GROUP_NORM,
    _normalized.LAYER_NORM_PRE,
    _normalized.LAYER_NORM_POST,
    _deepnorm.SCHEME,
    _admin.SCHEME,
    _parametrized.MUP_SCHEME,
    _parametrized.DEPTH_MUP_SCHEME,
    _parametrized.COMPLETEP_SCHEME,
):
    register(_scheme)

__all__ = [
    "Rules", "SchemeWarning", "admin", "at_base", "constant_alpha", "deepnorm", "describe", "dyt",
    "fixup", "he", "lsuv", "nf_resnet", "orthogonal", "rescale_biases", "rescalenet", "rezero",
    "rules", "skipinit", "standard", "t_fixup", "xavier", "zero_gamma",
]  # fmt: skip
