"""Why a network trains or does not: pure functions of (network, parameters, batch)."""

from nf_resnets.analysis.bounds import (
    Bound,
    HeadDraws,
    block_bounds,
    draw_heads,
    excess_loss,
    parameter_bounds,
)
from nf_resnets.analysis.closed_form import (
    ClosedForm,
    alpha_one,
    alpha_rsqrt_depth,
    batch_norm,
    propagate,
    propagate_rectified,
    rescale,
    shares_of_last,
    sqrt_half,
)
from nf_resnets.analysis.coordinates import Coordinates, coordinate_rows, coordinates, growth
from nf_resnets.analysis.correlation import eta, multipliers
from nf_resnets.analysis.curvature import Eigenvalue, hessian_product, lanczos, largest_curvature
from nf_resnets.analysis.head import random_head
from nf_resnets.analysis.homogeneous import HomogeneousSet, homogeneous_sets
from nf_resnets.analysis.noise_scale import (
    GradientNoise,
    gradient_noise,
    noise_scale,
    pair_estimates,
)
from nf_resnets.analysis.observe import ObservedFn, branches, observe
from nf_resnets.analysis.predicted import predicted
from nf_resnets.analysis.scalar_branch import (
    Theorem4,
    fixup_exponents,
    scalar_update,
    smallest_left_out,
    theorem_4,
)
from nf_resnets.analysis.signal import (
    Moments,
    Signal,
    cropped,
    gradient_norms,
    moments,
    signal,
    signal_of,
)
from nf_resnets.analysis.stable_rate import StableRate, descend, largest_stable_rate
from nf_resnets.analysis.update_terms import (
    BranchNetwork,
    draw_network,
    network_logits,
    update_terms,
    update_terms_by_jacobian,
)
from nf_resnets.analysis.updates import (
    first_order_update,
    loss_gradient,
    small_rate,
    update,
    update_size,
)
from nf_resnets.analysis.weight_norms import (
    layer_gains,
    shortcut_gains,
    weight_norms,
)

__all__ = [
    "Bound",
    "BranchNetwork",
    "ClosedForm",
    "Coordinates",
    "Eigenvalue",
    "GradientNoise",
    "HeadDraws",
    "HomogeneousSet",
    "Moments",
    "ObservedFn",
    "Signal",
    "StableRate",
    "Theorem4",
    "alpha_one",
    "alpha_rsqrt_depth",
    "batch_norm",
    "block_bounds",
    "branches",
    "coordinate_rows",
    "coordinates",
    "cropped",
    "descend",
    "draw_heads",
    "draw_network",
    "eta",
    "excess_loss",
    "first_order_update",
    "fixup_exponents",
    "gradient_noise",
    "gradient_norms",
    "growth",
    "hessian_product",
    "homogeneous_sets",
    "lanczos",
    "largest_curvature",
    "largest_stable_rate",
    "layer_gains",
    "loss_gradient",
    "moments",
    "multipliers",
    "network_logits",
    "noise_scale",
    "observe",
    "pair_estimates",
    "parameter_bounds",
    "predicted",
    "propagate",
    "propagate_rectified",
    "random_head",
    "rescale",
    "scalar_update",
    "shares_of_last",
    "shortcut_gains",
    "signal",
    "signal_of",
    "small_rate",
    "smallest_left_out",
    "sqrt_half",
    "theorem_4",
    "update",
    "update_size",
    "update_terms",
    "update_terms_by_jacobian",
    "weight_norms",
]
