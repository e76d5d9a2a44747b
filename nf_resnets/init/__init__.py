"""Initialisers as pure functions of a parameter tree, and the registry of schemes."""

from nf_resnets.init import fixup as _fixup
from nf_resnets.init import lsuv as _lsuv
from nf_resnets.init import nf_resnet as _nf_resnet
from nf_resnets.init import normalized as _normalized
from nf_resnets.init import parametrized as _parametrized
from nf_resnets.init import rescalenet as _rescalenet
from nf_resnets.init import skipinit as _skipinit
from nf_resnets.init import standard as _standard
from nf_resnets.init import transformers as _transformers
from nf_resnets.init.describe import describe
from nf_resnets.init.fixup import fixup
from nf_resnets.init.lsuv import lsuv
from nf_resnets.init.nf_resnet import nf_resnet
from nf_resnets.init.normalized import zero_gamma
from nf_resnets.init.parametrized import at_base
from nf_resnets.init.rescalenet import rescale_biases, rescalenet
from nf_resnets.init.skipinit import skipinit
from nf_resnets.init.standard import he, orthogonal, standard, xavier
from nf_resnets.init.transformers import deepnorm, dyt, t_fixup
from nf_resnets.roles import Rules
from nf_resnets.schemes import SchemeWarning, register

# The registry: a new scheme is one file beside this one, which is named here.
for _module in (
    _fixup, _skipinit, _rescalenet, _standard, _lsuv, _nf_resnet, _normalized, _transformers,
    _parametrized,
):  # fmt: skip
    for _scheme in _module.SCHEMES:
        register(_scheme)

__all__ = [
    "Rules", "SchemeWarning", "at_base", "deepnorm", "describe", "dyt", "fixup", "he", "lsuv",
    "nf_resnet", "orthogonal", "rescale_biases", "rescalenet", "skipinit", "standard", "t_fixup",
    "xavier", "zero_gamma",
]  # fmt: skip
