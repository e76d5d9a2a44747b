"""Optimizers as the papers use them, the parameter groups they need, and schedules."""

from nf_resnets.optim.groups import SCALARS, label_tree
from nf_resnets.optim.schedules import halving, warmup
from nf_resnets.optim.sgd import sgd

__all__ = ["SCALARS", "halving", "label_tree", "sgd", "warmup"]
