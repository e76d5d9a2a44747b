"""What sets the schemes apart that share an initialisation: what their networks contain."""

import pytest

from nf_resnets import roles
from nf_resnets.roles import Role
from tests.models.smallest import smallest
from tests.models.trees import shapes


def _count(architecture, scheme, role, ending=""):
    """How many arrays of a role there are, those of stacked blocks counted one by one."""
    return sum(
        leaf.count
        for leaf in roles.assign(shapes(smallest(architecture, scheme))["params"]).leaves
        if leaf.role is role and leaf.path.endswith(ending)
    )


@pytest.mark.every(4)
@pytest.mark.parametrize(
    ("scheme", "architecture", "norms"),
    [
        # L = 9 branches of two layers: one norm before each and one at the end, or one more at
        # every sum; in a CIFAR ResNet after the stem and each convolution.
        ("batchnorm", "wrn", 19),
        ("batchnorm_merge", "wrn", 28),
        ("batchnorm_last", "wrn", 1),
        ("batchnorm", "cifar-resnet", 19),
        ("batchnorm_merge", "cifar-resnet", 28),
        # Three layers of two branches and three of three; before the branches there is one more at
        # the end of either stack.
        ("layernorm_pre", "transformer", 17),
        ("layernorm_post", "transformer", 15),
        ("dyt", "transformer", 34),  # each has two scales, of its input and of its output
        ("t_fixup", "transformer", 0),
    ],
)
def test_how_many_norms_there_are(scheme, architecture, norms):
    assert _count(architecture, scheme, Role.NORM, "scale") == norms
