"""Optimizers as the papers use them, and the parameter groups they need."""

from nf_resnets.optim.groups import SCALARS, label_tree
from nf_resnets.optim.sgd import sgd

__all__ = ["SCALARS", "label_tree", "sgd"]
