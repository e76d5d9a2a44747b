"""What ``norm_free`` can do beside taking norms out, and what it refuses."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from nf_resnets import norm_free, roles, schemes
from tests.norm_free.drawn import X, assert_same, drawn
from tests.roles.networks import f, rms

pytestmark = pytest.mark.usefixtures("strangers_broadcast")

WIDTH = 8


def vectors(body, count=2, **more):
    """A network of blocks ``x = body(layer, x)`` in plain JAX, with its parameters."""
    layer = {"up": f(WIDTH, 16), "down": f(16, WIDTH), "scale": f(WIDTH), **more}
    params = drawn({"stem": f(6, WIDTH), **{f"l{i}": layer for i in range(count)}})

    def network(params, x):
        x = x @ params["stem"]
        for i in range(count):
            x = x + body(params[f"l{i}"], x)
        return x

    return network, params


def feed(p, x):
    return jax.nn.relu(x @ p["up"]) @ p["down"]


def normalized(p, x):
    return feed(p, rms(x, p["scale"]))


@pytest.mark.parametrize("scheme", ["skipinit", "rezero", "rescalenet", "sqrt_half"])
def test_other_schemes_have_their_own_parts(scheme):
    network, params = vectors(normalized)
    net = norm_free(network, params, X, scheme=scheme, depth=2)
    starts = {"skipinit": 0, "rezero": 0, "rescalenet": 1}
    scalar = "multiplier" if scheme == "rescalenet" else "alpha"
    for part in net.params["parts"].values():
        assert part.get(scalar, None) == starts.get(scheme)
    new = drawn(net.params)
    anatomy, constants = schemes.get(scheme).anatomy, schemes.get(scheme).constants(2)
    x = X @ params["stem"] * 0 + X @ new["network"]["stem"]
    for k in (1, 2):
        part, layer = new["parts"].get(f"branch_{k}", {}), new["network"][f"l{k - 1}"]
        kind = "bias_layer" if anatomy.channel_biases else "bias_vector"
        one, two = (part.get(f"{kind}_{j}", 0.0) for j in (1, 2))
        if anatomy.channel_biases:
            h = jax.nn.relu((x + one) @ layer["up"]) + two
            h = h @ layer["down"]
        else:
            h = jax.nn.relu(x @ layer["up"] + one) @ layer["down"] + two
        h = h * part.get(scalar, 1.0) * constants.residual[k - 1]
        x = constants.identity[k - 1] * x + h
    assert_same(net.apply(new, X), x)


def test_it_is_a_function_like_any_other():
    network, params = vectors(normalized)
    net = norm_free(network, params, X, depth=2)
    roles.verify(net.apply, net.params, net.roles, X)
    new = drawn(net.params)
    expected = net.apply(new, X)
    assert_same(jax.jit(net.apply)(new, X), expected)
    assert_same(jax.vmap(net.apply, (None, 0))(new, X[:, None])[:, 0], expected)
    assert_same(net.apply(new, np.tile(X, (3, 1)))[4:8], expected)  # another batch
    gradient = jax.grad(lambda new: (net.apply(new, X) ** 2).sum())(new)
    assert all(value.any() for value in jax.tree.leaves(gradient))
    assert jax.tree.structure(gradient) == jax.tree.structure(new)
    made = jax.jit(lambda params: norm_free(network, params, X, depth=2).params)(params)
    jax.tree.map(np.testing.assert_array_equal, made, net.params)
    assert "2 norms taken out\n  l0/scale\n  l1/scale\n" in str(net)


@pytest.mark.parametrize("scheme", ["fixup", "rescalenet"])
def test_a_loop_over_examples_has_the_parts_of_one_network(scheme):
    network, params = vectors(normalized)
    net = norm_free(network, params, X, scheme=scheme, depth=2)
    looped = norm_free(
        lambda params, x: lax.map(lambda one: network(params, one), x), params, X,
        scheme=scheme, depth=2,
    )  # fmt: skip
    jax.tree.map(np.testing.assert_array_equal, looped.params, net.params)
    new = drawn(net.params)
    assert_same(looped.apply(new, X), net.apply(new, X))


def test_what_a_network_closes_over_may_change():
    """A program that is kept would hold the first value, and have no gradient with regard to it."""

    def loss(factor):
        network, params = vectors(lambda p, x: factor * normalized(p, x))
        net = norm_free(network, params, X, depth=2)
        return net.apply(drawn(net.params), X).sum()

    step = 1e-2
    expected = (loss(2.0 + step) - loss(2.0 - step)) / (2 * step)
    np.testing.assert_allclose(jax.grad(loss)(2.0), expected, rtol=1e-3)  # of the step's square


def test_norms_that_are_meant_stay():
    def length_one(x):
        return x / jnp.linalg.norm(x, axis=-1, keepdims=True)

    inner, params = vectors(lambda p, x: feed(p, rms(rms(x, p["scale"]), p["own"])), own=f(WIDTH))

    def network(params, x):
        return length_one(inner(params, length_one(x)))

    net = norm_free(network, params, X, depth=2)
    assert net.norms == ("l0/scale", "l0/own", "l1/scale", "l1/own")
    y = net.apply(drawn(net.params), X)
    np.testing.assert_allclose(jnp.linalg.norm(y, axis=-1), 1, rtol=1e-6)
    np.testing.assert_allclose(net.apply(drawn(net.params), 2 * X), y, rtol=1e-4)
    assert norm_free(network, params, X, depth=2, keep="own").norms == ("l0/scale", "l1/scale")
    assert len(norm_free(network, params, X, depth=2, keep="").norms) == 6
    with pytest.raises(ValueError, match="keep='norm' matches no norm; expected one of paths like"):
        norm_free(network, params, X, depth=2, keep="norm")


def in_cond(p, x):
    return lax.cond(x[0, 0] > 0, normalized, lambda p, x: x, p, x)


def in_while(p, x):
    h = lax.while_loop(lambda h: h[0, 0] > 9, lambda h: rms(h, p["scale"]), x)
    return feed(p, h)


def in_shard_map(p, x):
    mesh, spec = jax.make_mesh((1,), ("data",)), jax.P()
    return jax.shard_map(normalized, mesh=mesh, in_specs=(spec, spec), out_specs=spec)(p, x)


def over_devices(p, x):
    norm = nn.BatchNorm(False, axis_name="batch", use_scale=False, use_bias=False)
    state = {"batch_stats": {"mean": p["scale"], "var": p["scale"]}}

    def one(x):
        return feed(p, norm.apply(state, x[None], mutable=["batch_stats"])[0][0])

    return jax.vmap(one, axis_name="batch")(x)


@pytest.mark.parametrize(
    ("body", "options", "message"),
    [
        (in_cond, {}, "the norm 'l0/scale' is in a cond; expected it in plain code, jax.jit"),
        (in_shard_map, {}, "the norm 'l0/scale' is in a shard_map; expected"),
        (in_while, {}, "the norm 'l0/scale' is in a while; expected"),
        (normalized, {"depth": 3}, "2 residual branches found, depth=3 given"),
        (normalized, {"scheme": "batchnorm"}, "scheme='batchnorm' is for norms; expected one"),
        (
            lambda p, x: feed(p, x) + normalized(p, 2 * x),
            {"scheme": "rescalenet", "depth": 4},
            "residual branch 2 ends in a sum of 3 values; expected one skip path and one branch",
        ),
        (over_devices, {}, "divides by a statistic of the data; expected the root of a mean"),
        (
            lambda p, x: feed(p, x / jnp.abs(x).mean(-1, keepdims=True)),
            {},
            "a step div .* at 'stem' divides by a statistic of the data; expected the root",
        ),
        (
            lambda p, x: feed(p, x * lax.rsqrt((x @ p["up"]).mean() ** 2)),
            {},
            "divides by a statistic of the data",
        ),
    ],
)
def test_what_it_cannot_do_is_refused(body, options, message):
    network, params = vectors(body)
    with pytest.raises(ValueError, match=message):
        norm_free(network, params, X, **{"depth": 2, **options})
