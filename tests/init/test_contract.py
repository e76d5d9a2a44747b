"""What every scheme of the registry owes its user, whatever it computes."""

import collections
import dataclasses
import functools
import inspect

import flax.core
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from nf_resnets import init, roles, schemes
from nf_resnets.init import Rules
from tests.models.trees import quick_jit

L = 2
RULES = Rules(
    branch=r"^body/(\d+)/conv_([01])$",
    head="^head$",
    stem="^stem$",
    scalar_bias="/shift$",
    multiplier="/multiplier$",
    alpha="/alpha$",
    norm="/(?:norm|gain)$",
    channel_bias="/vector$",
)
KEY = 7
# What some initialisers want to know beside the rules, by the name of the argument: which branches
# are a decoder's, which leaves are scales of norms within branches, or DyT's.
PATHS = {"decoder": r"^body/1\b", "scales": r"^body/(\d+)/(norm|gain)$", "alphas": "/norm$"}


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Point:
    """A pytree of the user's own."""

    stem: object
    body: object
    head: object


Body = collections.namedtuple("Body", "stem body head")


# A leaf of a block beside its two weights, the rule that names it, its shape, and who has it.
LEAVES = (
    ("shift", "scalar_bias", (), "scalar_biases"), ("multiplier", "multiplier", (), "multiplier"),
    ("alpha", "alpha", (), "alpha"), ("norm", "norm", (8,), "normalized"),
    ("vector", "channel_bias", (8,), "channel_biases"), ("gain", "norm", (8,), "standardized"),
)  # fmt: skip


def _present(scheme):
    anatomy = schemes.get(scheme).anatomy
    return [(name, rule, shape) for name, rule, shape, part in LEAVES if getattr(anatomy, part)]


def _tree(scheme, cast=jnp.asarray, seed=0, blocks=L):
    """Blocks of two layers, with the scalars that the scheme's anatomy asks for."""
    rng = np.random.default_rng(seed)

    def array(*shape):
        return cast(rng.standard_normal(shape).astype("float32"))

    def block():
        taps = () if scheme in ("t_fixup", "deepnorm") else (3, 3)  # of Transformers alone
        leaves = {"conv_0": array(*taps, 2, 8), "conv_1": array(*taps, 8, 2)}
        return leaves | {name: array(*shape) for name, _, shape in _present(scheme)}

    return {
        "stem": array(3, 3, 3, 2),
        "body": {str(b): block() for b in range(blocks)},
        "head": array(2, 8),
    }


def _rules(scheme):
    """The rules without those for what the scheme's networks do not have."""
    there = {rule for _, rule, _ in _present(scheme)}
    absent = {rule for _, rule, _, _ in LEAVES} - there
    return dataclasses.replace(RULES, **dict.fromkeys(absent))


CONTAINERS = {
    "FrozenDict": flax.core.freeze,
    "OrderedDict": collections.OrderedDict,
    "namedtuple": lambda tree: Body(**tree),
    "dataclass": lambda tree: Point(**tree),
}

DTYPES = {
    "float32": jnp.asarray,
    "bfloat16": lambda x: jnp.asarray(x, jnp.bfloat16),
    "float16": lambda x: jnp.asarray(x, jnp.float16),
    "NumPy float32": np.asarray,
    "NumPy float64": np.float64,  # of a scalar a NumPy scalar, else an array
    "NumPy bfloat16": lambda x: np.asarray(x).astype(ml_dtypes.bfloat16),
}


def _distinct():
    """A scheme for each initialiser and kind of block; the others differ in their networks only."""
    found = {}
    for name in schemes.names():
        function = schemes.get(name).init
        options = function.keywords if isinstance(function, functools.partial) else {}
        function = getattr(function, "func", function)
        found.setdefault((function, *options.items(), *_present(name)), name)
    return list(found.values())


every_initialiser = pytest.mark.parametrize("scheme", _distinct())
with_and_without_key = pytest.mark.parametrize("keyed", [False, True], ids=["as given", "drawn"])


def _init(scheme, params, depth=L, *, keyed=False, **options):
    if keyed:
        options.setdefault("key", jax.random.key(KEY))
    function = schemes.get(scheme).init
    options.setdefault("rules", _rules(scheme))
    known = inspect.signature(function).parameters
    options |= {name: path for name, path in PATHS.items() if name in known}
    return function(params, depth, **options)


def _bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def _assert_close(one, two):
    """Equal to 4 units in the last place of a leaf's largest number.

    XLA may fuse a product with its neighbours, and uniform draws are differences.
    """
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        np.testing.assert_allclose(a, b, rtol=0, atol=5e-7 * np.abs(b, dtype="f8").max())


@pytest.mark.every(6)
@every_initialiser
@with_and_without_key
def test_the_input_is_not_changed(scheme, keyed):
    for cast in (jnp.asarray, np.array):
        params = _tree(scheme, cast)
        before, leaves = _bits(params), jax.tree.leaves(params)
        result = _init(scheme, params, keyed=keyed)
        assert _bits(params) == before
        kept = zip(leaves, jax.tree.leaves(params), strict=True)
        assert all(one is two for one, two in kept)
        if keyed and cast is np.array:  # a drawn leaf is new memory, which may be written to
            result["stem"][...] = 0
            assert _bits(params) == before


def test_a_role_map_serves_in_place_of_the_rules():
    params = _tree("fixup")
    found = roles.assign(params, _rules("fixup"))
    assert roles.assign(params, found) is found
    expected = _init("fixup", params, keyed=True)
    assert _bits(_init("fixup", params, keyed=True, rules=found)) == _bits(expected)
    with pytest.raises(ValueError, match="params has 1 leaves"):
        _init("fixup", {"stem": params["stem"]}, rules=found)


@pytest.mark.every(3)
@every_initialiser
@with_and_without_key
@pytest.mark.parametrize("container", CONTAINERS)
def test_containers_are_kept(scheme, keyed, container):
    params = CONTAINERS[container](_tree(scheme))
    result = _init(scheme, params, keyed=keyed)
    assert jax.tree.structure(result) == jax.tree.structure(params)
    assert sorted(_bits(result)) == sorted(_bits(_init(scheme, _tree(scheme), keyed=keyed)))


@pytest.mark.every(5)
@every_initialiser
@with_and_without_key
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_and_array_types_are_kept(scheme, keyed, dtype):
    params = _tree(scheme, DTYPES[dtype])
    result = _init(scheme, params, keyed=keyed)
    for before, after in zip(jax.tree.leaves(params), jax.tree.leaves(result), strict=True):
        assert (after.dtype, after.shape) == (before.dtype, before.shape)
        assert type(after) is type(before)
        assert np.all(np.isfinite(np.asarray(after, "float32")))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "NumPy bfloat16", "NumPy float64"])
def test_fixup_rounds_once_whatever_the_dtype(dtype):
    params = _tree("fixup", DTYPES[dtype], blocks=3)
    before = params["body"]["0"]["conv_0"]
    result = init.fixup(params, np.int64(3), rules=_rules("fixup"))["body"]["0"]["conv_0"]
    # The product in double precision, rounded once. float32 carries 13 bits more than float16, so
    # that its own rounding is seen in one of 8,000.
    exact = np.asarray(before, "float64") * 3**-0.5
    np.testing.assert_array_equal(np.asarray(result), exact.astype(before.dtype))


@pytest.mark.every(3)
@every_initialiser
@with_and_without_key
def test_shardings_are_kept(scheme, keyed):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:8])
    on_host = _tree(scheme)
    split = {(3, 3, 2, 8): P(None, None, None, "data"), (8, 2): P("data"), (8,): P("data")}
    params = jax.tree.map(
        lambda leaf: jax.device_put(leaf, NamedSharding(mesh, split.get(leaf.shape, P()))), on_host
    )
    result = _init(scheme, params, keyed=keyed)
    for before, after in zip(jax.tree.leaves(params), jax.tree.leaves(result), strict=True):
        assert after.sharding == before.sharding
        assert len(after.sharding.device_set) == 8
    _assert_close(result, _init(scheme, on_host, keyed=keyed))


@pytest.mark.every(7)
@every_initialiser
@with_and_without_key
def test_under_jit(scheme, keyed):
    params = _tree(scheme)
    result = quick_jit(lambda tree: _init(scheme, tree, keyed=keyed))(params)
    assert jax.tree.structure(result) == jax.tree.structure(params)
    _assert_close(result, _init(scheme, params, keyed=keyed))


@every_initialiser
@with_and_without_key
def test_under_eval_shape(scheme, keyed):
    params = _tree(scheme, DTYPES["bfloat16"])
    shapes = jax.eval_shape(lambda tree: _init(scheme, tree, keyed=keyed), params)
    expected = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), params)
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), shapes) == expected


@every_initialiser
def test_under_vmap_over_trees(scheme):
    trees = [_tree(scheme, seed=seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
    results = jax.vmap(lambda tree: _init(scheme, tree))(stacked)
    for index, tree in enumerate(trees):
        one = jax.tree.map(lambda leaf, i=index: leaf[i], results)
        _assert_close(one, _init(scheme, tree))


@every_initialiser
def test_without_a_key_twice_changes_nothing_or_is_refused(scheme):
    once = _init(scheme, _tree(scheme))
    try:
        twice = _init(scheme, once)
    except ValueError as error:
        assert "already" in str(error)
        return
    same = all(map(np.allclose, jax.tree.leaves(twice), jax.tree.leaves(once)))
    # What rescales again must say so.
    function = schemes.get(scheme).init
    said = inspect.getdoc(getattr(function, "func", function)) or ""
    assert same != ("twice" in said)


def test_fixup_twice_is_refused_under_jit():
    once = _init("fixup", _tree("fixup"))
    with pytest.raises(ValueError, match="leaf 'body/0/conv_1'.* already zero"):
        jax.jit(lambda: _init("fixup", once))()  # closed over, so still concrete


@every_initialiser
def test_the_draws_of_a_leaf_do_not_depend_on_the_others(scheme):
    whole = _init(scheme, _tree(scheme), keyed=True)
    rules = dataclasses.replace(_rules(scheme), keep="^extra$")
    grown = {"extra": jnp.ones((2, 2))} | _tree(scheme, seed=1)
    result = _init(scheme, grown, key=jax.random.key(KEY), rules=rules)
    assert _bits(result["stem"]) == _bits(whole["stem"])
    assert _bits(result["body"]["1"]["conv_0"]) == _bits(whole["body"]["1"]["conv_0"])
    np.testing.assert_array_equal(result["extra"], 1)


@every_initialiser
def test_a_key_decides_the_draw(scheme):
    params = _tree(scheme)
    one, two = (_init(scheme, params, key=jax.random.key(seed)) for seed in (0, 1))
    assert not np.any(np.asarray(one["stem"]) == np.asarray(two["stem"]))
    raw = _init(scheme, params, key=jax.random.PRNGKey(0))
    assert _bits(raw) == _bits(one)
    assert _bits(_init(scheme, one, key=jax.random.key(0))) == _bits(one)


@every_initialiser
def test_every_depth_but_the_true_one_is_refused(scheme):
    for depth in (0, L - 1, L + 1, -L):
        with pytest.raises(ValueError, match=f"{L} residual branches found, depth={depth} given"):
            _init(scheme, _tree(scheme), depth)
    for depth in (float(L), True, None, jnp.asarray(L)):
        with pytest.raises(TypeError, match="expected a Python int"):
            _init(scheme, _tree(scheme), depth)


@pytest.mark.parametrize("scheme", schemes.names())
def test_what_a_scheme_says_of_itself(scheme):
    value = schemes.get(scheme)
    assert schemes.get(value) is value
    assert (value.name, bool(value.title), bool(value.reference)) == (scheme, True, True)
    assert value.fits
    for constants in value.anatomy.constants((False, True, False, False)):
        assert constants is None or (constants.shape == (4,) and np.isfinite(constants).all())
    assert value.anatomy.constants(()) is not None  # of a network without branches, too


def test_alphas_of_the_schemes():
    for scheme, alpha in {"skipinit": 0.0, "alpha_rsqrt_depth": L**-0.5, "alpha_one": 1.0}.items():
        result = _init(scheme, _tree(scheme))
        found = [block["alpha"] for block in result["body"].values()]
        np.testing.assert_array_equal(found, np.float32([alpha] * L))
