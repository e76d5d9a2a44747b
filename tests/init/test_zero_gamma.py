"""Zero-gamma: which scale of a branch is the last one."""

import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import init
from nf_resnets.init import Rules
from tests.models.smallest import smallest
from tests.models.trees import random_variables
from tests.trees import pairs


@pytest.mark.every(2)
@pytest.mark.parametrize(("name", "last"), [("cifar-resnet", "norm_2"), ("resnet", "norm_3")])
def test_the_last_scale_of_every_branch_is_zero_and_no_other(name, last):
    model = smallest(name, "zero_gamma")
    params = init.zero_gamma(random_variables(model, 0)["params"], model.num_branches)
    zero = [path for path, leaf in pairs(params) if path.endswith("scale") and not np.any(leaf)]
    stages = 3 if name == "cifar-resnet" else 4
    assert zero == [
        f"stage_{stage}/{part}/{last}/scale"
        for stage in range(1, stages + 1)
        for part in ("first", "rest")
    ]


def _tree(branches=3):
    block = {"conv_1": jnp.ones((3, 3, 2, 2)), "conv_2": jnp.ones((3, 3, 2, 2))}
    block |= {f"bn_{j}": {"scale": jnp.ones(2), "bias": jnp.ones(2)} for j in (2, 10)}
    return {f"block_{b}": block for b in range(branches)}


RULES = Rules(branch=r"block_(\d+)/conv_(\d)", norm=r"/bn_\d+/")
SCALES = r"block_(\d+)/bn_(\d+)/scale"


def test_norms_are_ordered_as_numbers():
    after = init.zero_gamma(_tree(), 3, scales=SCALES, rules=RULES)
    for block in after.values():
        assert not np.any(block["bn_10"]["scale"])
        assert np.all(block["bn_2"]["scale"] == 1) and np.all(block["bn_10"]["bias"] == 1)


def test_an_expression_that_finds_too_few_is_refused():
    with pytest.raises(ValueError, match="1 last scales of norms found by scales="):
        init.zero_gamma(_tree(), 3, scales=r"bn_(\d+)/scale", rules=RULES)
