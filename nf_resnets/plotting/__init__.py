"""Rows in, figures out; nothing here knows of JAX."""

from nf_resnets.plotting.coordinates import coordinates_figure
from nf_resnets.plotting.curves import Curve, Panel, curves_figure, moving_average
from nf_resnets.plotting.depth import depth_figure
from nf_resnets.plotting.heat import heat_figure
from nf_resnets.plotting.isolation import isolation_figure
from nf_resnets.plotting.optima import optima_figure
from nf_resnets.plotting.rates import rates_figure
from nf_resnets.plotting.report import SweepResults, report
from nf_resnets.plotting.steps import steps_figure
from nf_resnets.plotting.sweep import sweep_figures
from nf_resnets.plotting.transfer import transfer_figure

__all__ = [
    "Curve",
    "Panel",
    "SweepResults",
    "coordinates_figure",
    "curves_figure",
    "depth_figure",
    "heat_figure",
    "isolation_figure",
    "moving_average",
    "optima_figure",
    "rates_figure",
    "report",
    "steps_figure",
    "sweep_figures",
    "transfer_figure",
]
