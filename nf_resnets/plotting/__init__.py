"""Rows in, figures out; nothing here knows of JAX."""

from nf_resnets.plotting.depth import depth_figure

__all__ = ["depth_figure"]
