"""Initialisers as pure functions of a parameter tree, and the registry of schemes."""

from nf_resnets.init import fixup as _fixup
from nf_resnets.init import skipinit as _skipinit
from nf_resnets.init import standard as _standard
from nf_resnets.init.fixup import fixup
from nf_resnets.init.he import he
from nf_resnets.init.orthogonal import orthogonal
from nf_resnets.init.skipinit import skipinit
from nf_resnets.init.standard import constant_alpha, standard
from nf_resnets.init.xavier import xavier
from nf_resnets.roles import Rules
from nf_resnets.schemes import register

# The registry: a new scheme is one file beside this one, and one line here.
register(_fixup.SCHEME)
register(_skipinit.SCHEME)
register(_skipinit.RSQRT_DEPTH)
register(_skipinit.ALPHA_ONE)
register(_standard.PLAIN)
register(_standard.SQRT_HALF)
register(_standard.BATCH_NORM)
register(_standard.GROUP_NORM)

__all__ = [
    "Rules",
    "constant_alpha",
    "fixup",
    "he",
    "orthogonal",
    "skipinit",
    "standard",
    "xavier",
]
