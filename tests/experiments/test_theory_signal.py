"""The experiment on signal propagation."""

import numpy as np

from experiments import theory_signal as experiment
from nf_resnets import schemes
from nf_resnets.analysis.closed_form import propagate_rectified


def test_without_the_relu_the_gains_alone_are_multiplied():
    form = propagate_rectified([2.0, 2.0, 2.0])
    found = experiment.without_relu(form, schemes.get("alpha_one"))
    np.testing.assert_allclose(found, [3, 9, 27], rtol=1e-6)
    form = propagate_rectified([1.0, 1.0, 1.0], normalized=True)
    found = experiment.without_relu(form, schemes.get("batchnorm"))
    np.testing.assert_allclose(found, [2, 3, 4], rtol=1e-6)
