"""DyT and Derf: where their input scales start."""

import jax
import numpy as np
import pytest

from nf_resnets import init
from nf_resnets.models import ARCHITECTURES
from tests.models.smallest import example, smallest
from tests.trees.network import pairs


@pytest.mark.parametrize("name", ["dyt", "derf"])
def test_the_input_scales_start_where_they_are_told_to(name):
    found = ARCHITECTURES["transformer"]
    model = smallest(found, name)
    shapes = jax.eval_shape(model.init, jax.random.key(0), *example(found, 2))["params"]
    params = jax.tree.map(lambda leaf: np.full(leaf.shape, 7.0, "f4"), shapes)
    for options, near, others in (({}, 0.5, 0.5), ({"alpha": 0.2, "attention": 0.8}, 0.8, 0.2)):
        after = init.dyt(params, model.num_branches, **options)
        counts = {near: 0, others: 0}
        for path, leaf in pairs(after):
            value = 7.0
            if path.endswith("input_scale"):
                value = near if "attention" in path else others
                counts[value] += leaf.size
            np.testing.assert_array_equal(leaf, np.float32(value), err_msg=path)
        # Three layers: an attention and a feed-forward of the encoder, two and one of the decoder,
        # and one after either stack.
        assert counts == ({0.8: 3 + 6, 0.2: 3 + 3 + 2} if options else {0.5: 17})


def test_what_is_no_dyt_is_refused():
    found = ARCHITECTURES["transformer"]
    model = smallest(found, "layernorm_pre")
    params = jax.eval_shape(model.init, jax.random.key(0), *example(found, 2))["params"]
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, "f4"), params)
    with pytest.raises(ValueError, match="no input scale of DyT found by alphas="):
        init.dyt(params, model.num_branches)
    with pytest.raises(ValueError, match="attention=-1 found"):
        init.dyt(params, model.num_branches, attention=-1)
