"""Rows in, figures out; nothing here knows of JAX."""

from nf_resnets.plotting.curves import Curve, Panel, curves_figure, moving_average
from nf_resnets.plotting.depth import depth_figure

__all__ = ["Curve", "Panel", "curves_figure", "depth_figure", "moving_average"]
