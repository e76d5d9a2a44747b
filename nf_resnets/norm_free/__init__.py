"""Networks made norm-free: ``norm_free`` takes the norms out and puts a scheme's parts in."""

from nf_resnets.norm_free.transformation import NormFree, norm_free

__all__ = ["NormFree", "norm_free"]
