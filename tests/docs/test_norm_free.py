"""The page that takes BatchNorm out of a ResNet: its diff is one, and its code trains."""

import difflib
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from docs.machinery import outputs

PAGE = (Path(__file__).parents[2] / "docs/how_to/norm_free.md").read_text()


def test_the_diff_is_that_of_the_two_blocks():
    found = re.findall(r"^class Block\(nn\.Module\):\n.*?(?=\n\n\nclass |^```)", PAGE, re.S | re.M)
    before, after = (block.rstrip().splitlines() for block in found)
    expected = list(difflib.unified_diff(before, after, lineterm="", n=len(before)))[3:]
    (shown,) = re.findall(r"^```diff\n(.*?)^```$", PAGE, re.S | re.M)
    assert [line.rstrip() for line in shown.splitlines()] == [line.rstrip() for line in expected]


@pytest.mark.slow
def test_the_tree_with_norms_is_refused_and_the_one_without_trains():
    names = {}
    said = "".join(outputs.run(PAGE, names=names))
    assert "'block_0/BatchNorm_0/scale' [16] is that of a norm in residual branch 'block_0'" in said
    losses = names["losses"]
    # The start is ln 10 but for a rounding; after 100 steps it has learnt.
    assert abs(losses[0] - np.log(10)) < 1e-6 and np.mean(losses[-5:]) < 2.2
    for index in range(4):
        block = names["params"][f"block_{index}"]
        assert jnp.abs(block["Conv_1"]["kernel"]).max() > 1e-3
        assert not jnp.allclose(
            block["Conv_0"]["kernel"], names["start"][f"block_{index}"]["Conv_0"]["kernel"]
        )
    assert names["found"].missing == names["found"].refused == ()
    assert "block_0/Conv_0/kernel" in said and "× 0.5" in said
