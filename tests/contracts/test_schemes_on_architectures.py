"""Every scheme on every architecture that it is for: they fit, they train, nothing normalizes.

No example's output depends on the others of its batch: its derivative by them is exactly 0. Of
networks with BatchNorm it is not.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import roles, schemes
from nf_resnets.models import ARCHITECTURES
from tests.models.smallest import example, smallest
from tests.models.trees import quick_jit, random_like


def _pairs(*parts, of=str):
    """Architectures with their schemes, one of those that are alike in these parts."""
    found = {}
    for architecture in ARCHITECTURES:
        for name in schemes.names(ARCHITECTURES[architecture].family):
            scheme = schemes.get(name)
            alike = (of(architecture), *(repr(getattr(scheme, part)) for part in parts))
            found.setdefault(alike, (architecture, name))
    return list(found.values())


PAIRS = _pairs("init", "anatomy", "calibrate")
NETWORKS = _pairs("anatomy")
ALIKE = {(of, repr(schemes.get(name).anatomy)): name for of, name in NETWORKS}
every_network = pytest.mark.parametrize(("architecture", "scheme"), NETWORKS)


# Whose numbers quick runs compute, for which a network compiles for a second or two: every scheme
# on an image network and on a Transformer, and a scheme on every other architecture.
QUICK = {
    *_pairs("init", "anatomy", "calibrate", of="transformer".__eq__),
    ("wrn", "lsuv"),
    ("resnet", "fixup"),
    ("resnet-v2", "rescalenet"),
    ("vgg", "lsuv"),
}


every_pair_computed = pytest.mark.parametrize(
    ("architecture", "scheme"),
    [pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow) for pair in PAIRS],
)
KEY = jax.random.key(0)


@functools.cache
def _network(architecture, scheme):
    """A small network, three examples for it, its logits and its variables as shapes."""
    model, inputs = smallest(architecture, scheme), example(architecture, 3)
    return model, inputs, *jax.eval_shape(model.init_with_output, KEY, *inputs)


@functools.cache
def _initialised(architecture, scheme):
    model, inputs, _, shapes = _network(architecture, scheme)
    variables = random_like(dict(shapes), 0, 2**0.5, shift=0.02)
    params, found = variables.pop("params"), schemes.get(scheme)
    result = found.init(params, model.num_branches)
    if found.calibrate is not None:
        result = found.calibrate(
            result, network=lambda params, *x: model.apply({"params": params}, *x), inputs=inputs
        )
    return params, result, variables


@functools.cache
def _derivatives(architecture, scheme):
    """The function of parameters, statistics and inputs that gives logits and derivatives.

    The derivatives are those of the first example's logits, with regard to parameters and images.
    """
    model, inputs, *_ = _network(architecture, scheme)

    options = {"train": True}
    if schemes.get(scheme).anatomy.dropout:
        options["keys"] = jax.random.split(KEY, len(inputs[0]))

    def first(params, statistics, *inputs):
        variables = {"params": params, **statistics}
        logits, _ = model.apply(variables, *inputs, mutable=list(statistics), **options)
        return (
            logits[0] * jnp.cos(jnp.arange(logits[0].size)).reshape(logits[0].shape)
        ).sum(), logits

    floating = np.issubdtype(inputs[0].dtype, np.floating)
    with_regard_to = (0, 2) if floating else 0
    return quick_jit(jax.value_and_grad(first, argnums=with_regard_to, has_aux=True))


@functools.cache
def _results(architecture, scheme):
    """Logits and derivatives at the initialisation, and where no leaf is 0."""
    _, inputs, *_ = _network(architecture, scheme)
    drawn, params, statistics = _initialised(architecture, scheme)
    # Schemes of one anatomy have one network, which is compiled once.
    run = _derivatives(architecture, ALIKE[architecture, repr(schemes.get(scheme).anatomy)])
    # Halved, lest the attention of a Transformer without norms is all on one word.
    away = jax.tree.map(lambda a, b: np.float32(0.5) * a + np.float32(0.1) * b, params, drawn)
    run_away = functools.partial(run, away, statistics)
    return run(params, statistics, *inputs), run_away(*inputs), run_away


@every_network
def test_every_leaf_has_a_role_and_every_branch_a_number(architecture, scheme):
    """Each has blocks in the loop as well, and few weights: it compiles within seconds."""
    model, _, logits, shapes = _network(architecture, scheme)
    assert (logits.shape[0], logits.dtype) == (3, jnp.float32)
    role_map = roles.assign(shapes["params"])
    assert [leaf.path for leaf in role_map.leaves if leaf.role is roles.Role.KEEP] == []
    assert role_map.num_branches == model.num_branches
    assert model.num_branches > 0 or ARCHITECTURES[architecture].family == "plain"
    assert [branch.k for branch in role_map.branches] == [*range(1, model.num_branches + 1)]
    assert model.num_branches == 0 or any(leaf.stacked for leaf in role_map.leaves)
    assert sum(math.prod(leaf.shape) for leaf in role_map.leaves) < 100_000


@pytest.mark.every(2)
@every_pair_computed
def test_it_is_finite_and_moves(architecture, scheme):
    at_start, away, _ = _results(architecture, scheme)
    for (_, logits), gradients in (at_start, away):
        assert np.isfinite(logits).all()
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    # A head of zeros is the first to move; away from such zeros every block's parameters count.
    assert _idle(at_start, (roles.Role.HEAD,)) == []
    assert _idle(away, roles.Role) == []


def _idle(found, of):
    """The leaves of these roles that have no gradient, be it in one of the blocks of a stack."""
    gradients = found[1][0] if isinstance(found[1], tuple) else found[1]
    return [
        leaf.path
        for leaf, value in roles.assign(gradients).items(gradients)
        if leaf.role in of and not np.any(np.reshape(value, (leaf.count, -1)), axis=1).all()
    ]


@pytest.mark.every(2)
@every_pair_computed
def test_an_output_depends_on_other_examples_only_with_batchnorm(architecture, scheme):
    _, inputs, *_ = _network(architecture, scheme)
    (_, logits), gradients = _results(architecture, scheme)[1]
    mixes = schemes.get(scheme).anatomy.has_batch_norm
    if isinstance(gradients, tuple):
        own, others = gradients[1][0], gradients[1][1:]
        assert np.any(own)
        assert bool(np.any(others)) == mixes
    others = [np.concatenate([array[:1], array[1:][::-1, ::-1]]) for array in inputs]
    (_, with_others), _ = _results(architecture, scheme)[2](*others)
    assert not np.array_equal(with_others[1:], logits[1:])
    assert np.array_equal(with_others[0], logits[0]) != mixes


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_does_not_fit_is_refused(architecture):
    others = {*schemes.names()} - {*schemes.names(ARCHITECTURES[architecture].family)}
    assert others
    for scheme in others:
        with pytest.raises(ValueError, match=f"^scheme={scheme!r} is for "):
            smallest(architecture, scheme)


def test_every_scheme_is_on_an_architecture():
    assert set(PAIRS) >= QUICK
    names = {name for each in ARCHITECTURES.values() for name in schemes.names(each.family)}
    assert names == set(schemes.names())
