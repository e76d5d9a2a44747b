"""Case 19: what an initialiser is given.

Wrong depths, unknown leaves, containers, dtypes, empty trees and inputs that stay as they are, are
tested in tests/init/test_errors.py, test_contract.py and test_trees.py; here it is depth 10,000,
`m = 1`, and that a sweep refuses a network that its scheme cannot initialise.
"""

from __future__ import annotations

import hashlib

import jax
import numpy as np
import pytest

from nf_resnets import init
from nf_resnets.sweep import image_task
from tests.faults.sweeping import TINY

CASE = "19 what an initialiser is given: depth 10,000, m = 1; schemes that do not fit a sweep"
RULES = init.Rules(branch=r"branch_(\d+)/layer_(\d+)/kernel", head=r"^head/", keep=r"^stem/")


def deep(depth, layers):
    """A tree of `depth` branches of `layers` layers, its leaves not zero anywhere."""
    kernel = np.full((2, 2), 0.5, np.float32)
    return {
        "stem": {"kernel": kernel.copy()},
        "head": {"kernel": kernel.copy()},
        **{
            f"branch_{k}": {f"layer_{j}": {"kernel": kernel.copy()} for j in range(layers)}
            for k in range(depth)
        },
    }


def digest(tree):
    found = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        found.update(f"{path} {leaf.dtype} {leaf.shape}".encode() + np.asarray(leaf).tobytes())
    return found.hexdigest()


@pytest.mark.slow
def test_ten_thousand_branches():
    tree = deep(10_000, 2)
    before = digest(tree)
    new = init.fixup(tree, depth=10_000, rules=RULES)
    assert digest(tree) == before
    # L^(-1/(2m-2)) with m = 2, and a last layer of zeros: in the 2nd branch and the 10,000th.
    for k in (1, 9_999):
        first, last = (new[f"branch_{k}"][f"layer_{j}"]["kernel"] for j in (0, 1))
        np.testing.assert_allclose(first, 0.5 * 10_000**-0.5, rtol=1e-6)
        assert not np.any(last)
    # Negative control: another depth is refused with both numbers.
    with pytest.raises(ValueError, match=r"(?s)10,?000.*depth=9999|depth=9999.*10,?000"):
        init.fixup(tree, depth=9_999, rules=RULES)


def test_branches_of_one_layer():
    """m = 1: the exponent -1 / (2m - 2) does not exist, which is said and not divided by."""
    tree = deep(3, 1)
    before = digest(tree)
    with pytest.raises(ValueError, match=r"'branch_0' has m = 1 layer; .* needs m >= 2"):
        init.fixup(tree, depth=3, rules=RULES)
    assert digest(tree) == before
    # Negative control: it is because of the layers.
    assert digest(init.fixup(deep(3, 2), depth=3, rules=RULES)) != digest(deep(3, 2))


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"model": ("wrn-11-1",)}, "11"),
        ({"model": ("transformer-2",)}, "transformer-2"),
        ({"scheme": ("fixup", "t_fixup")}, "t_fixup"),
        ({"scheme": ("fixip",)}, "fixip"),
    ],
)
def test_a_sweep_refuses_what_cannot_be_initialised(axes, message):
    with pytest.raises(ValueError, match=message):
        image_task.make_sweep(axes, {name: v for name, v in TINY.items() if name not in axes})
    assert len(image_task.make_sweep({"scheme": ("fixup", "skipinit")}, TINY).runs) == 2
