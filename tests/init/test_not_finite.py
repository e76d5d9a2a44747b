"""Every initialiser refuses leaves that are not finite, unless it draws them anew."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from nf_resnets import init, models, schemes
from nf_resnets.init import Rules

KEY = jax.random.key(0)
RULES = Rules(
    branch=r"block_(\d)/conv_(\d)", alpha="alpha", head="^head", keep="^mask$", optional=("keep",)
)


def tree(**leaves):
    block = {"conv_1": jnp.ones((3, 3, 2, 2)), "conv_2": jnp.ones((3, 3, 2, 2))}
    return {"block_1": block | {"alpha": jnp.ones(())}, "head": jnp.ones((2, 3))} | leaves


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize(
    "initialise", ["fixup", "skipinit", "rezero", "rescalenet", "nf_resnet", "standard"]
)
def test_schemes(initialise, keyed):
    function = getattr(init, initialise)
    if initialise == "rescalenet":  # which asks whether the network has its constants
        constants = schemes.get("rescalenet").constants(1)
        function = functools.partial(function, constants=constants)
    wrong = tree(head=jnp.full((2, 3), jnp.nan))
    if keyed:  # the weights are drawn, the scalars are not
        if initialise != "nf_resnet":  # which looks at all leaves first
            function(wrong, 1, key=KEY, rules=RULES)
        wrong = tree()
        wrong["block_1"]["alpha"] = jnp.asarray(jnp.inf)
    options = {"key": KEY} if keyed else {}
    with pytest.raises(ValueError, match=r"leaf '.*' has values that are not finite"):
        function(wrong, 1, rules=RULES, **options)


@pytest.mark.parametrize("draw", [init.he, init.xavier, init.orthogonal])
def test_draws(draw):
    with pytest.raises(ValueError, match=r"leaf 'scale' has values that are not finite"):
        draw(tree(scale=jnp.full(3, jnp.nan)), KEY, rules=RULES)


@pytest.mark.parametrize("cast", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_every_kind_of_number(cast, value):
    weight = np.ones((2, 3), cast)
    weight[1, 2] = value
    arrays = [weight] if cast == np.float64 else [weight, jnp.asarray(weight)]
    for array in arrays:
        with pytest.raises(ValueError, match=r"leaf 'head' has values"):
            init.fixup(tree(head=array), 1, rules=RULES)


def test_a_mask_that_is_kept_may_hold_infinities():
    mask = jnp.asarray([[0.0, -jnp.inf], [0.0, 0.0]])
    result = init.fixup(tree(mask=mask), 1, rules=RULES)
    np.testing.assert_array_equal(result["mask"], mask)
    with pytest.raises(ValueError, match=r"leaf 'mask' has values"):
        init.fixup(tree(mask=jnp.nan * mask), 1, rules=RULES)


def test_inside_jit_what_is_closed_over_is_refused_and_what_is_traced_is_not():
    wrong = tree(head=jnp.full((2, 3), jnp.nan))
    with pytest.raises(ValueError, match=r"leaf 'head' has values"):
        jax.jit(lambda: init.fixup(wrong, 1, rules=RULES))()
    jax.jit(lambda params: init.fixup(params, 1, rules=RULES))(wrong)


def test_on_many_devices():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    over = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    head = jax.device_put(jnp.ones((8, 3)).at[7, 2].set(jnp.nan), over)
    with pytest.raises(ValueError, match=r"leaf 'head' has values"):
        init.fixup(tree(head=head), 1, rules=RULES)


def test_those_that_look_at_data():
    images = jax.random.normal(KEY, (2, 4, 4, 3))
    for scheme, calibrate in (("lsuv", init.lsuv), ("rescalenet", init.rescale_biases)):
        model = models.WideResNet(10, scheme=scheme, stem_channels=2)
        params = jax.tree.map(
            lambda leaf: jnp.ones(leaf.shape), jax.eval_shape(model.init, KEY, images)["params"]
        )
        params["head"]["bias"] = params["head"]["bias"] * jnp.nan
        with pytest.raises(ValueError, match=r"leaf 'head/bias' has values"):
            calibrate(model.apply, params, images)


def test_every_scheme_of_the_registry():
    assert {"fixup", "rezero", "skipinit"} <= set(schemes.names())
    for scheme in ("alpha_one", "regularized_skipinit", "plain", "sqrt_half", "rezero"):
        with pytest.raises(ValueError, match=r"leaf 'head' has values"):
            schemes.get(scheme).init(tree(head=jnp.full((2, 3), jnp.nan)), 1, rules=RULES)
