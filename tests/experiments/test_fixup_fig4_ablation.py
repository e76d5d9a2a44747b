"""The variants of Fixup's figure 4."""

import jax
import numpy as np
import pytest

from experiments import fixup_fig4_ablation as fig4
from nf_resnets import init, models, schemes
from tests.models.trees import filled_with
from tests.trees import by_path


def before_and_after(variant):
    """ResNet-8 as it is given to a variant's scheme, and as the scheme makes it.

    L = 3 branches of m = 2 layers, so that rule 2's factor is 3**-0.5.
    """
    scheme = fig4.VARIANTS.get(variant) or schemes.get(variant)
    model = models.CifarResNet(depth=8, scheme=scheme, stem_channels=4)
    # A leaf of one name is drawn alike in all variants.
    before = init.he(filled_with(1.0, model), jax.random.key(0))
    return before, scheme.init(before, model.num_branches)


def leaves_of(variant):
    return by_path(before_and_after(variant)[1])


@pytest.mark.parametrize(("variant", "factor"), [("no_bias", 1), ("tenth", 0.1), ("tenfold", 10)])
def test_the_ablations_differ_from_fixup_in_biases_and_scale_only(variant, factor):
    fixup, found = leaves_of("fixup"), leaves_of(variant)
    biases = {name for name in fixup if "/bias_" in name or name.startswith("bias_")}
    assert biases and set(found) == set(fixup) - biases
    for name in found:
        # conv_1 of a branch is what Fixup rescales; conv_2 is zero in all of them. Two products
        # in float32 instead of one leave an error of 2^-23 or so.
        expected = fixup[name] * (factor if name.endswith("conv_1/kernel") else 1)
        np.testing.assert_allclose(found[name], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("variant", "head", "last", "factor", "scalars"),
    [
        ("nonzero", 0, 1, 3**-0.5, True),
        ("no_rule_2", 0, 0, 1, True),
        ("rule_2", 1, 1, 3**-0.5, False),
        ("no_rule", 1, 1, 1, False),
    ],
)
def test_each_rule_changes_its_own_layers(variant, head, last, factor, scalars):
    before, after = before_and_after(variant)
    anew = fig4.VARIANTS.get(variant, schemes.get("fixup")).init(before, 3, key=jax.random.key(7))
    assert not np.array_equal(anew["stem"]["kernel"], before["stem"]["kernel"])
    assert ("multiplier" in str(jax.tree.structure(before))) is scalars
    assert ("bias_stem" in before) is scalars
    np.testing.assert_array_equal(after["stem"]["kernel"], before["stem"]["kernel"])
    np.testing.assert_array_equal(after["head"]["kernel"], head * before["head"]["kernel"])
    for stage in ("stage_1", "stage_2", "stage_3"):
        for conv, kept in (("conv_1", 1), ("conv_2", last)):
            new, old = (tree[stage]["first"][conv]["kernel"] for tree in (after, before))
            # One product in float32 and the rounding of the factor.
            np.testing.assert_allclose(new, kept * factor * old, rtol=1e-6)


def test_without_branches_there_is_no_convolution_but_the_stem():
    names = leaves_of("no_branches")
    assert {name for name in names if name.endswith("kernel")} == {"stem/kernel", "head/kernel"}
    assert not any("multiplier" in name for name in names)
