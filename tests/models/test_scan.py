"""Scanned, unrolled and rematerialised blocks are one network, which starts as the identity.

The three forms do the same operations in the same order, but the compiler fuses them differently:
float32 rounding, 6e-8 a sum, seen up to 1e-6 of a leaf's largest entry.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import schemes
from nf_resnets.models.blocks import PostActivationBlock, PreActivationBlock
from nf_resnets.models.stage import Stage
from tests.models.trees import (
    assert_close,
    images,
    jaxprs_within,
    quick_jit,
    random_variables,
    shapes,
)

TOLERANCE = 2e-5
# What is 0 in exact numbers, as the gradient of a bias vector before BatchNorm, is the rounding of
# a sum of some hundred terms of order 1: seen 1e-6.
ZERO = 1e-5
FORMS = {
    "scan": {},
    "unroll": {"unroll": 99},
    "unroll by two": {"unroll": 2},
    "remat": {"remat": True},
    "unroll and remat": {"unroll": 99, "remat": True},
}
BLOCKS = [partial(PostActivationBlock, projection=False), PreActivationBlock]
BOTTLENECK = {"kernels": (1, 3, 1), "expansion": 4}
FAMILIES = ("post_activation", "pre_activation")  # of the two, and of the two
# One scheme for each anatomy.
ANATOMIES = [
    {schemes.get(name).anatomy: name for name in reversed(schemes.names(family))}.values()
    for family in FAMILIES
]
BLOCK_SCHEMES = [(b, name) for b, names in zip(BLOCKS, ANATOMIES, strict=True) for name in names]


def value_grads_stats(module, variables, x, **options):
    def loss_fn(params, x):
        y, updated = module.apply(
            {**variables, "params": params}, x, mutable=["batch_stats"], **options
        )
        return jnp.sin(y).sum(), (y, updated)

    grads, (y, updated) = quick_jit(jax.grad(loss_fn, (0, 1), has_aux=True))(variables["params"], x)
    return y, grads, dict(updated)


STAGES = [
    *BLOCK_SCHEMES,
    (PostActivationBlock, "rescalenet"),
    (partial(PostActivationBlock, **BOTTLENECK), "rescalenet"),
    (partial(PreActivationBlock, **BOTTLENECK), "nf_resnet"),
]


@pytest.mark.every(12)
@pytest.mark.parametrize(("block", "scheme"), STAGES)
def test_forms_of_a_stage_agree(block, scheme):
    """A stage for each anatomy: down-sampling, then two blocks in the loop, or with Fixup three."""
    anatomy = schemes.get(scheme).anatomy
    # A standardised 1x1 kernel of two inputs would be a sign, and its gradient 0.
    features = 16 if getattr(block, "keywords", None) == BOTTLENECK else 8
    make = partial(block, features=features, anatomy=anatomy, bn_groups=2, train=True)
    # Two blocks at a time leave one of three; test_remat.py has statistics and constants in groups.
    names = list(FORMS) if scheme == "fixup" else ["unroll", "remat"]
    num_blocks = 4 if scheme == "fixup" else 3
    scanned, *forms = (
        Stage(make, num_blocks=num_blocks, stride=2, **FORMS[name]) for name in ("scan", *names)
    )
    x = images(0, 4, 6, 6, 4)
    tree = shapes(scanned, x.shape[1:])
    assert tree["params"]["rest"]["conv_1"]["kernel"].shape[0] == num_blocks - 1
    assert all(shapes(form, x.shape[1:]) == tree for form in forms)
    variables = random_variables(scanned, 1, x.shape[1:])
    # A scan has to hand each block its own.
    constants = anatomy.constants((True,) + (False,) * (num_blocks - 1))
    expected = value_grads_stats(scanned, variables, x, constants=constants)
    for form in forms:
        found = value_grads_stats(form, variables, x, constants=constants)
        assert_close(found, expected, TOLERANCE, ZERO)


def test_recomputed_blocks_outside_a_loop_stand_behind_barriers():
    """The compiler would merge the recomputation with the first one; a loop keeps it from that."""
    make = partial(PreActivationBlock, features=16, anatomy=schemes.get("fixup").anatomy)
    x = jax.ShapeDtypeStruct((16, 16, 16, 16), np.float32)

    def barriers(**options):
        stage = Stage(make, num_blocks=17, stride=1, remat=True, **options)
        params = shapes(stage, x.shape[1:])["params"]
        grad = jax.grad(lambda p, x: stage.apply({"params": p}, x).sum())
        return [
            eqn.params["prevent_cse"]
            for jaxpr in jaxprs_within(jax.make_jaxpr(grad)(params, x).jaxpr)
            for eqn in jaxpr.eqns
            if "prevent_cse" in eqn.params
        ]

    assert sorted(barriers()) == [False, True]  # the scanned ones, the first one
    assert all(barriers(unroll=16))


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("scheme", ["fixup", "skipinit"])
def test_every_block_starts_as_the_identity(scheme, block):
    """Bit for bit; the ReLU after a CIFAR ResNet's sum lets what the stem's ReLU gave it pass."""
    make = partial(block, features=4, anatomy=schemes.get(scheme).anatomy)
    stage = Stage(make, num_blocks=3, stride=1)
    x = np.abs(images(6, 2, 8, 8, 4)) * np.where(block is PreActivationBlock, -1, 1)
    params = random_variables(stage, 0, x.shape[1:])["params"]
    params = schemes.get(scheme).init({"stage_1": params}, 3)["stage_1"]
    y = quick_jit(lambda p, x: stage.apply({"params": p}, x))(params, x)
    np.testing.assert_array_equal(y, x)
