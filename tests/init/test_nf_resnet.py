"""NF-ResNet: what the analytic deviations promise, measured in a wide network at initialisation."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.untrained import forward
from nf_resnets import init, schemes
from nf_resnets.analysis import observe
from nf_resnets.init.nf_resnet import ALPHA
from nf_resnets.models import WideResNet
from tests.models.smallest import smallest
from tests.models.trees import filled_with, quick_jit
from tests.trees import pairs


def test_the_published_draws():
    model = smallest("wrn", "nf_resnet", stem_channels=16)
    given = filled_with(7.0, model)
    result = init.nf_resnet(given, model.num_branches, key=jax.random.key(1))
    for path, leaf in pairs(result):
        if path.endswith("alpha"):
            assert not np.any(leaf)
        elif path.endswith("gain"):
            assert np.all(leaf == 7)  # as given
        elif path.endswith("bias"):
            assert not np.any(leaf)
        else:
            fan_in = math.prod(leaf.shape[leaf.ndim == 5 : -1])
            std = 0.01 if path.startswith("head") else fan_in**-0.5
            # Five times the standard error of a sample's standard deviation.
            assert abs(leaf.std() / std - 1) < 5 / math.sqrt(2 * leaf.size), path
    ones = init.nf_resnet(given, model.num_branches, gain=1.0)
    assert np.all(ones["stage_1"]["rest"]["alpha"] == 1)
    assert np.all(ones["stem"]["kernel"] == 7)


@pytest.mark.slow
def test_branches_have_variance_one_and_inputs_beta():
    """The analytic deviations hold for wide layers, away from borders, averaged over draws."""
    draws, images = 6, np.random.default_rng(0).standard_normal((2, 32, 32, 3)).astype("f4")
    model = WideResNet(depth=16, width=1, scheme="nf_resnet", stem_channels=128)
    anatomy = schemes.get("nf_resnet").anatomy
    beta = anatomy.constants((False, False) + (True, False) * 2).beta

    @quick_jit
    def measure(key):
        params = model.init(key, jnp.asarray(images))["params"]
        params = init.nf_resnet(params, model.num_branches, gain=1.0, key=key)
        _, blocks = observe(forward(model), params, jnp.asarray(images))
        inner = slice(2, -2)  # what zeros beyond the border lower is left out
        rows = [
            [jnp.square(of[:, inner, inner]).mean() for of in (block.input, block.branch)]
            for block in blocks
        ]
        return jnp.asarray(rows)

    rows = np.mean([measure(key) for key in jax.random.split(jax.random.key(2), draws)], axis=0)
    # Standard errors over the draws are about 2%; the zeros beyond the border lower the second
    # moments by up to 9% at the end, in spite of the interior.
    np.testing.assert_allclose(rows[:, 0], beta**2, rtol=0.1)
    np.testing.assert_allclose(rows[:, 1], ALPHA**2, rtol=0.1)
