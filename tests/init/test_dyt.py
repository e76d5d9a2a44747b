"""DyT and Derf: where their input scales start."""

import numpy as np
import pytest

from nf_resnets import init
from tests.models.smallest import smallest
from tests.models.trees import filled_with
from tests.trees import pairs


@pytest.mark.parametrize("name", ["dyt", "derf"])
def test_the_input_scales_start_where_they_are_told_to(name):
    model = smallest("transformer", name)
    params = filled_with(7.0, model)
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
    model = smallest("transformer", "layernorm_pre")
    params = filled_with(1.0, model)
    with pytest.raises(ValueError, match="no input scale of DyT found by alphas="):
        init.dyt(params, model.num_branches)
    with pytest.raises(ValueError, match="attention=-1 found"):
        init.dyt(params, model.num_branches, attention=-1)
