"""The page that takes the norms out of a network: what its code makes learns."""

from pathlib import Path

import numpy as np
import pytest

from docs.machinery import outputs

PAGE = (Path(__file__).parents[2] / "docs/how_to/norm_free.md").read_text()


@pytest.mark.slow
def test_the_network_without_norms_learns():
    names = {}
    said = "".join(outputs.run(PAGE, names=names))
    assert said.startswith("9 norms taken out")
    losses = names["losses"]
    # The start is ln 10 but for a rounding; after 100 steps it has learnt.
    assert abs(losses[0] - np.log(10)) < 1e-6 and np.mean(losses[-5:]) < 2.2
