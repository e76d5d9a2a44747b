"""What each leaf of a parameter tree is: stem, branch, shortcut, head, scalar, norm.

Every scheme in :mod:`nf_resnets.init` asks one question first: which leaves are the layers of
which residual branch, and which are not. :func:`read` has the answer from what the network
computes. For a tree without its network it comes from the leaf's *path* (its keys joined by ``/``)
through the regular expressions of a :class:`Rules`, never from the order of a dict, in which
``block_10`` stands before ``block_2``. :func:`verify` holds either against the network.
"""

from nf_resnets.roles.assignment import assign
from nf_resnets.roles.leaf import (
    LAYER_ROLES,
    Branch,
    Group,
    Leaf,
    Role,
    axes_of,
    fans,
    path_name,
)
from nf_resnets.roles.reading import read
from nf_resnets.roles.role_map import RoleMap
from nf_resnets.roles.rules import OUR_RULES, Rules
from nf_resnets.roles.sizes import Sizes, sizes
from nf_resnets.roles.verification import verify

__all__ = [
    "LAYER_ROLES", "OUR_RULES", "Branch", "Group", "Leaf", "Role", "RoleMap", "Rules", "Sizes",
    "assign", "axes_of", "fans", "path_name", "read", "sizes", "verify",
]  # fmt: skip
