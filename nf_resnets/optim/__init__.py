"""Optimizers as the papers use them, the parameter groups they need, and schedules."""

from nf_resnets.optim.clipping import adaptive_clip
from nf_resnets.optim.damping import damped
from nf_resnets.optim.groups import SCALARS, UNDECAYED, decay_mask, label_tree
from nf_resnets.optim.schedules import cosine, halving, inverse_sqrt, step_decay, warmup
from nf_resnets.optim.sgd import sgd

__all__ = [
    "SCALARS",
    "UNDECAYED",
    "adaptive_clip",
    "cosine",
    "damped",
    "decay_mask",
    "halving",
    "inverse_sqrt",
    "label_tree",
    "sgd",
    "step_decay",
    "warmup",
]
