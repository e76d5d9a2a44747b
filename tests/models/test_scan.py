"""Scanned, unrolled and rematerialised blocks are one network; closed forms of its signal at start.

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
from nf_resnets.models.stage import Stage, group_size
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


def test_remat_keeps_only_the_inputs_of_blocks():
    """Outside loops the compiler must be kept from merging the recomputation with the original."""
    make = partial(PreActivationBlock, features=16, anatomy=schemes.get("fixup").anatomy)
    x = jax.ShapeDtypeStruct((16, 16, 16, 16), np.float32)

    def gradient_of(**options):
        stage = Stage(make, num_blocks=17, stride=1, **options)
        params = shapes(stage, x.shape[1:])["params"]
        grad = jax.grad(lambda p, x: stage.apply({"params": p}, x).sum())
        barriers = [
            eqn.params["prevent_cse"]
            for jaxpr in jaxprs_within(jax.make_jaxpr(grad)(params, x).jaxpr)
            for eqn in jaxpr.eqns
            if "prevent_cse" in eqn.params
        ]
        return barriers, quick_jit(grad).lower(params, x)

    def memory(lowered):
        return lowered.compile().memory_analysis().temp_size_in_bytes

    (_, plain), (barriers, remat) = gradient_of(), gradient_of(remat=True)
    kept, recomputed = memory(plain), memory(remat)
    # A block keeps what enters its two convolutions and two ReLU masks of a byte; with remat a
    # group of blocks keeps its input, and one group what its blocks keep. The rest, the same for
    # both, is what the backward pass of one block works with.
    image, size = 4 * 16**4, group_size(16)
    assert recomputed < kept - (16 * 2.5 - 16 / size - size * 2.5) * image
    assert sorted(barriers) == [False, True]  # the scanned ones, the first one
    assert all(gradient_of(remat=True, unroll=16)[0])


# --- Closed forms ------------------------------------------------------------------------------


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


DRAWS, BRANCHES, WIDTH = 12, 4, 64
INTERIOR = slice(
    2 * BRANCHES, -2 * BRANCHES
)  # no border of zeros, a pixel a convolution, gets there


@pytest.fixture(scope="module")
def measure():
    """``measure(scheme)``: log2 of the second moment after each block, over the input's."""

    def log2_moments(scheme):
        anatomy = schemes.get(scheme).anatomy
        block = PreActivationBlock(WIDTH, stride=1, anatomy=anatomy)
        constants = anatomy.constants((False,) * BRANCHES)
        x = images(8, 2, 4 * BRANCHES + 4, 4 * BRANCHES + 4, WIDTH)
        tree = {"stage_1": {"rest": shapes(block, x.shape[1:])["params"]}}
        stack = lambda a: np.zeros((BRANCHES, *a.shape), a.dtype)  # noqa: E731
        zeros = jax.tree.map(stack, tree)
        forward = quick_jit(lambda p, x, own: block.apply({"params": p}, x, own))
        initialise = schemes.get(scheme).init
        rows = []
        for draw in range(DRAWS):
            params = initialise(zeros, BRANCHES, key=jax.random.key(draw))["stage_1"]["rest"]
            signals = [jnp.asarray(x)]
            for k in range(BRANCHES):
                own = jax.tree.map(lambda leaf, k=k: leaf[k], params)
                signals.append(forward(own, signals[-1], constants.part(k)))
            moments = [float((np.asarray(s)[:, INTERIOR, INTERIOR] ** 2).mean()) for s in signals]
            rows.append(np.log2(np.array(moments) / moments[0]))
        return np.array(rows)

    return log2_moments


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("scheme", "growth"),
    [
        ("plain", 2.0),
        ("alpha_one", 2.0),
        ("alpha_rsqrt_depth", 1 + 1 / BRANCHES),
        ("sqrt_half", 1.0),
    ],
)
def test_second_moment_at_the_start(measure, scheme, growth):
    """A branch of He's weights adds alpha**2 of its input's second moment: METHODS' closed forms.

    Over the last block that is ``growth**L``: 16 for alpha = 1, (1 + 1/L)**L for L**-1/2.
    """
    slopes = np.diff(measure(scheme), axis=1)
    # The mean over the draws is within four of its standard errors, and these are small enough to
    # tell 2 from 1.25 and from 1. A finite width of C adds terms of order 1/C.
    error = slopes.mean(axis=1).std(ddof=1) / DRAWS**0.5
    assert error < 0.03
    assert abs(slopes.mean() - np.log2(growth)) < 4 * error + 1 / WIDTH
    # Each block for itself as well.
    errors = slopes.std(axis=0, ddof=1) / DRAWS**0.5
    assert (abs(slopes.mean(axis=0) - np.log2(growth)) < 4 * errors + 1 / WIDTH).all()
