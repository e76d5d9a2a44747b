"""Why a network trains or does not: pure functions of (network, parameters, batch).

A network is ``network(params, *inputs)``, the forward pass, of any library.
"""

from nf_resnets.analysis.bounds import Bound, block_bounds, parameter_bounds
from nf_resnets.analysis.closed_form import ClosedForm
from nf_resnets.analysis.coordinates import Coordinates, coordinate_rows, coordinates, growth
from nf_resnets.analysis.curvature import (
    Eigenvalue,
    descend,
    largest_curvature,
    largest_stable_rate,
)
from nf_resnets.analysis.noise_scale import GradientNoise, noise_scale, pair_estimates
from nf_resnets.analysis.observe import Activations, Slopes, observe, slopes
from nf_resnets.analysis.predicted import predicted
from nf_resnets.analysis.signal import Signal, eta, signal, signal_of
from nf_resnets.analysis.updates import loss_gradient, update_size
from nf_resnets.analysis.weights import multipliers, random_head, weight_norms

__all__ = [
    "Activations", "Bound", "ClosedForm", "Coordinates", "Eigenvalue", "GradientNoise", "Signal",
    "Slopes", "block_bounds", "coordinate_rows", "coordinates", "descend", "eta",
    "growth", "largest_curvature", "largest_stable_rate", "loss_gradient", "multipliers",
    "noise_scale", "observe", "pair_estimates", "parameter_bounds", "predicted", "random_head",
    "signal", "signal_of", "slopes", "update_size", "weight_norms",
]  # fmt: skip
