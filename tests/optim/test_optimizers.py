"""The optimizers against their equations, and stacked kernels against their layers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from nf_resnets import optim, roles, schemes
from nf_resnets.init import Rules
from tests.models.trees import quick_jit

N = 3  # blocks
_REST = {"head": "^head", "multiplier": "alpha$", "norm": "norm/"}
_REST["embedding"] = roles.OUR_RULES.embedding  # which may match nothing
RULES = {
    "stacked": Rules(branch=r"(blocks)/conv_(\d)/kernel", stacked="^blocks/", **_REST),
    "unstacked": Rules(branch=r"block_(\d+)/conv_(\d)/kernel", **_REST),
}


def blocks_of(seed):
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return rng.standard_normal((N, *shape)).astype(np.float32)

    return {
        "conv_1": {"kernel": draw(3, 3, 4, 6)},
        "conv_2": {"kernel": draw(3, 3, 6, 4)},
        "norm": {"scale": draw(4)},
        "alpha": draw(),
    }


def trees(seed):
    """The same numbers, the blocks stacked, and by themselves."""
    rng, blocks = np.random.default_rng(seed + 100), blocks_of(seed)
    ends = {
        "embed": rng.standard_normal((5, 4)).astype(np.float32),
        "head": {"kernel": rng.standard_normal((4, 3)).astype(np.float32)},
    }
    alone = {f"block_{k + 1}": jax.tree.map(lambda x, k=k: x[k], blocks) for k in range(N)}
    return {"blocks": blocks, **ends}, {**alone, **ends}


def walk(optimizer, params, gradients):
    def step(both, gradient):
        params, state = both
        updates, state = optimizer.update(gradient, state, params)
        return (optax.apply_updates(params, updates), state), None

    gradients = jax.tree.map(lambda *each: jnp.stack(each), *gradients)
    both = params, optimizer.init(params)
    (params, _), _ = quick_jit(lambda *given: jax.lax.scan(step, *given))(both, gradients)
    return params


def small_of(tree):
    """Half as wide, as a base network."""

    def shape(path, leaf):
        axes = [4, 6] if leaf.ndim else []
        return jnp.zeros([n // 2 if n in axes else n for n in leaf.shape])

    return jax.tree_util.tree_map_with_path(shape, tree)


@pytest.mark.parametrize("name", optim.NAMES)
def test_a_stacked_kernel_is_its_layers(name):
    """Leaf by leaf: no optimizer takes the axis over blocks for one of a matrix."""
    rule, kind = optim.OPTIMIZERS[name]
    found = {}
    for place, (layout, rules) in enumerate(RULES.items()):
        params, gradients = trees(0)[place], [trees(seed)[place] for seed in (1, 2, 3)]
        optimizer = optim.parametrized(
            rule(0.1, weight_decay=0.1, scheme="fixup", rules=rules), params, "completep",
            base=small_of(params), base_depth=1, kind=kind, rules=rules,
        )  # fmt: skip
        found[layout] = walk(optimizer, params, gradients)
    stacked, alone = found["stacked"], found["unstacked"]
    for k in range(N):
        of_stack = jax.tree.map(lambda x, k=k: x[k], stacked["blocks"])
        # Newton-Schulz steps may multiply matrices in another order, in float32.
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
            of_stack,
            alone[f"block_{k + 1}"],
        )
    for name in ("embed", "head"):
        jax.tree.map(np.testing.assert_array_equal, stacked[name], alone[name])


def closed_form(name, theta, grads, eta, decay, b1=0.9):
    """theta after each step by the papers' equations, in float64."""
    m, v, b2 = 0.0, 0.0, {"sgd": None, "nesterov": None, "adamw": 0.999, "lion": 0.99}[name]
    for t, g in enumerate(grads, start=1):
        if b2 is None:  # decay goes through the momentum
            g = g + decay * theta
            m = b1 * m + g
            theta = theta - eta * (g + b1 * m if name == "nesterov" else m)
            continue
        if name == "lion":  # Chen et al., algorithm 2
            step, m = np.sign(b1 * m + (1 - b1) * g), b2 * m + (1 - b2) * g
        else:  # Loshchilov and Hutter, algorithm 2
            m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
            step = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + 1e-8)
        theta = theta - eta * (step + decay * theta)
    return theta


@pytest.mark.parametrize("name", ["sgd", "nesterov", "adamw", "lion"])
def test_equations_in_every_group(name):
    """Weights, Fixup's slow scalars, and leaves without decay; of three rates at a time, traced."""
    rng = np.random.default_rng(0)
    params = {"head": {"kernel": np.ones((2, 3)), "bias": np.ones(3)}, "bias_head": np.ones(())}
    grads = [jax.tree.map(lambda p: rng.standard_normal(p.shape), params) for _ in range(4)]
    scheme = dataclasses.replace(schemes.get("fixup"), undecayed=optim.UNDECAYED)
    options = {"scheme": scheme, "scalar_factor": 0.3}
    rule = optim.sgd if name == "nesterov" else optim.OPTIMIZERS[name][0]
    if name == "nesterov":
        options["nesterov"] = True

    def train(rate, decay):
        optimizer = rule(rate, momentum=0.9, weight_decay=decay, **options)
        return walk(optimizer, *jax.tree.map(np.float32, (params, grads)))

    rates = np.float32([0.1, 0.05, 0.02])
    found = jax.vmap(train, (0, None))(rates, np.float32(0.2))
    for run, rate in enumerate(rates):
        for get, eta, decay in (
            (lambda tree: tree["head"]["kernel"], rate, 0.2),
            (lambda tree: tree["head"]["bias"], rate, 0.0),
            (lambda tree: tree["bias_head"], 0.3 * rate, 0.0),
        ):
            expected = closed_form(name, get(params), list(map(get, grads)), eta, decay)
            # Four steps in float32.
            np.testing.assert_allclose(get(found)[run], expected, rtol=2e-5, atol=2e-6)


def test_a_schedule_holds_for_both_groups_at_every_step():
    params = {"head": {"kernel": np.zeros((1, 1), np.float32)}, "bias_head": np.float32(0)}
    grads = [jax.tree.map(np.ones_like, params) for _ in range(3)]
    schedule = optax.piecewise_constant_schedule(0.5, {1: 0.5, 2: 0.5})
    found = walk(optim.sgd(schedule, momentum=0.0), params, grads)
    np.testing.assert_allclose(found["head"]["kernel"], -0.875, rtol=1e-6)
    np.testing.assert_allclose(found["bias_head"], -0.0875, rtol=1e-6)


def test_the_factor_meets_the_rate_and_not_the_update():
    """Committed rows are rounded so; of these numbers the other order differs in the last place."""
    tree, rate = {"bias_head": jnp.float32(1 / 37)}, jnp.float32(0.3)
    expected = np.float32(0.1) * np.float32(rate) * tree["bias_head"]
    assert expected != np.float32(0.1) * (rate * tree["bias_head"])
    for given in (rate, lambda step: rate):
        optimizer = optim.sgd(given, scheme="fixup", momentum=0.0)
        updates, _ = optimizer.update(tree, optimizer.init(tree), tree)
        assert updates["bias_head"] == -expected


def newton_schulz(matrix):
    """The five steps of KellerJordan/Muon, in float64; the smaller side is that of the rows."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = wide / (np.linalg.norm(wide) + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x if wide is matrix else x.T


@pytest.mark.parametrize(
    ("shape", "axes", "matrix"),
    [((3, 3, 4, 5), "HWIO", (36, 5)), ((4, 2, 3), "IOO", (4, 6)), ((2, 3, 4), "IIO", (6, 4)),
     ((2, 4, 6), "NIO", (4, 6))],
)  # fmt: skip
def test_muon_orthogonalises_the_matrix_of_inputs_and_outputs(shape, axes, matrix):
    gradient = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    params = {"block_1": {"conv_1": {"kernel": np.zeros(shape, np.float32)}}}
    rules = Rules(branch=r"block_(\d+)/conv_(\d+)", axes={"kernel": axes})
    optimizer = optim.muon(1.0, momentum=0.9, scheme="plain", rules=rules)
    found = walk(optimizer, params, [{"block_1": {"conv_1": {"kernel": gradient}}}])
    found = -np.reshape(found["block_1"]["conv_1"]["kernel"], (-1, *matrix))
    for update, grad in zip(found, gradient.reshape(-1, *matrix), strict=True):
        expected = newton_schulz(grad) * max(1, matrix[1] / matrix[0]) ** 0.5
        np.testing.assert_allclose(update, expected, rtol=1e-3, atol=1e-4)  # float32, five steps


@pytest.mark.skipif(jax.device_count() < 4, reason="needs four devices")
def test_muon_keeps_shardings():
    """Under explicit axes no array may be reshaped but where it says how."""
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
    params, gradient = trees(0)[1], trees(1)[1]

    def put(tree):
        spec = {4: P(None, None, "a", "b"), 2: P("a", None)}
        place = lambda leaf: NamedSharding(mesh, spec.get(leaf.ndim, P()))  # noqa: E731
        return jax.tree.map(lambda leaf: jax.device_put(leaf, place(leaf)), tree)

    def step(params, gradient):
        optimizer = optim.muon(0.1, scheme="fixup", rules=RULES["unstacked"])
        return optimizer.update(gradient, optimizer.init(params), params)[0]

    del params["embed"], gradient["embed"]  # of five rows
    given = put(params)
    found, expected = jax.jit(step)(given, put(gradient)), jax.jit(step)(params, gradient)
    for update, leaf, value in zip(*map(jax.tree.leaves, (found, given, expected)), strict=True):
        assert update.sharding.is_equivalent_to(leaf.sharding, leaf.ndim)
        # Sums over parts of an axis, in five Newton-Schulz steps.
        np.testing.assert_allclose(update, value, rtol=1e-4, atol=1e-5)


def test_muon_leaves_the_rest_to_adamw():
    params, gradient = trees(0)[1], trees(1)[1]
    options = {"momentum": 0.9, "scheme": "fixup", "rules": RULES["unstacked"]}
    found, adam = (
        walk(rule(0.1, **options), params, [gradient]) for rule in (optim.muon, optim.adamw)
    )
    for name in ("embed", "head"):
        jax.tree.map(np.testing.assert_array_equal, found[name], adam[name])
    for name, leaf in adam["block_1"].items():
        same = jax.tree.map(np.array_equal, found["block_1"][name], leaf)
        assert jax.tree.leaves(same) == [not name.startswith("conv")]


@pytest.mark.parametrize("name", optim.NAMES)
def test_numbers_may_be_injected(name):
    """optax.inject_hyperparams reads the names of the arguments."""
    params = {"block_1": {"dense_1": jnp.eye(2)}, "head": {"kernel": jnp.ones((2, 2))}}
    make, _ = optim.OPTIMIZERS[name]
    given = {"weight_decay": 0.1, "scheme": "fixup", "rules": Rules(branch=r"block_(\d)/dense_(\d)",
             head="^head/")}  # fmt: skip

    def step(optimizer):
        return jax.jit(optimizer.update)(params, optimizer.init(params), params)[0]

    injected = step(optax.inject_hyperparams(make)(learning_rate=0.1, **given))
    # Injected numbers are float32: 1 - b2 of 0.001 is off by half a unit in the last place of 1.
    jax.tree.map(
        lambda one, two: np.testing.assert_allclose(one, two, rtol=6e-8 / 0.001),
        injected,
        step(make(0.1, **given)),
    )


def test_muon_takes_a_module_that_can_be_called():
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")

    class Block(eqx.Module):
        fc_1: jax.Array

        def __call__(self, x):
            raise AssertionError

    params = Block(jnp.ones((2, 2)))
    optimizer = optim.muon(0.1, rules=Rules(branch=r"^fc_(\d)", layout="HWIO"))
    jax.eval_shape(lambda: optimizer.update(params, optimizer.init(params), params))


def test_states_keep_the_dtype_of_the_weights():
    params = {"head": {"kernel": jnp.ones((2, 3), jnp.bfloat16)}}
    for name in optim.NAMES:
        rule, _ = optim.OPTIMIZERS[name]
        optimizer = rule(0.1, momentum=jnp.float32(0.9), weight_decay=jnp.float32(0.1))
        state = optimizer.init(params)
        _, after = optimizer.update(params, state, params)
        jax.tree.map(lambda a, b: np.testing.assert_equal(a.dtype, b.dtype), state, after)
