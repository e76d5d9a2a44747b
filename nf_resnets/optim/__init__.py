"""Optimizers as the papers use them, the parameter groups they need, and schedules."""

from nf_resnets.optim.clipping import adaptive_clip
from nf_resnets.optim.groups import grouped, label_tree
from nf_resnets.optim.optimizers import NAMES, OPTIMIZERS, Name, adamw, lion, muon, sgd
from nf_resnets.optim.parametrized import factors, parametrized
from nf_resnets.optim.schedules import cosine, halving, inverse_sqrt, step_decay, warmup
from nf_resnets.schemes import SCALARS, UNDECAYED

__all__ = [
    "NAMES", "OPTIMIZERS", "SCALARS", "UNDECAYED", "Name", "adamw", "adaptive_clip", "cosine",
    "factors", "grouped", "halving", "inverse_sqrt", "label_tree", "lion", "muon", "parametrized",
    "sgd", "step_decay", "warmup",
]  # fmt: skip
