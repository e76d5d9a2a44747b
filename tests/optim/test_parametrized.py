"""Factors of rates, decay and epsilon against the sources' own rules, written out by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import init, models, optim, schemes
from nf_resnets.init import Rules
from nf_resnets.parametrization import Factors, Parametrization
from tests.models.trees import shapes

# A language model as its users write it; blocks h_0, h_1, each with two branches.
GPT_RULES = Rules(
    branch=r"h_(\d+)/(attn|mlp)/(c_attn|c_fc|c_proj)/",
    embedding="^wt?p?e",
    norm="ln_",
    head="^lm_head",
    order=("attn", "mlp", "c_attn", "c_fc", "c_proj"),
)


def gpt(width, blocks=2):
    def linear(inputs, outputs):
        return {"kernel": np.ones((inputs, outputs)), "bias": np.zeros(outputs)}

    norm = {"scale": np.ones(width), "bias": np.zeros(width)}
    block = {
        "ln_1": norm,
        "attn": {"c_attn": linear(width, 3 * width), "c_proj": linear(width, width)},
        "ln_2": norm,
        "mlp": {"c_fc": linear(width, 4 * width), "c_proj": linear(4 * width, width)},
    }
    tree = {f"h_{k}": block for k in range(blocks)}
    ends = {"wte": np.ones((11, width)), "wpe": np.ones((7, width)), "ln_f": norm}
    return {**tree, **ends, "lm_head": {"kernel": np.ones((width, 11))}}


def by_path(tree):
    flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: isinstance(x, Factors))
    return {"/".join(key.key for key in path): value for path, value in flat}


@pytest.mark.parametrize(("name", "a"), [("mup", None), ("depth_mup", 0.5), ("completep", 1.0)])
def test_adamw_on_a_users_language_model_has_the_groups_of_nanogpt_mup(name, a):
    """The optimizer's groups of EleutherAI/nanoGPT-mup, branch completep, ``model.py``."""
    width, layers = 4.0, 3.0  # mup_width_multiplier, depth_multiplier
    tree = gpt(64)
    found = optim.factors(
        tree, name, base=gpt(16), base_depth=4 / layers, kind="adam", rules=GPT_RULES
    )
    depth_lr_scaling = 1.0 if a is None else layers ** (a - 1)
    width_lr_scaling = 1 / width
    ends_eps = 1 / width
    hidden_eps = ends_eps if a is None else (1 / width) * layers**-a
    for path, factors in by_path(found).items():
        if path == "lm_head/kernel":
            # Its input there is divided by the width: the same steps of a smaller weight.
            expected = (1 / width, width, 1.0, width**-0.5)
        elif path in ("wte", "wpe") or path.startswith("ln_f"):
            expected = (1.0, 1.0, ends_eps, 1.0)
        elif path.endswith("kernel"):
            expected = (width_lr_scaling * depth_lr_scaling, width, hidden_eps, 1.0)
        else:  # norms and biases of the branches
            expected = (depth_lr_scaling, 1.0, hidden_eps, 1.0)
        np.testing.assert_allclose(factors, expected, rtol=1e-12, err_msg=path)


def test_sgd_on_images_has_the_groups_of_musgd():
    """``MuSGD`` of microsoft/mup: by how many axes of a leaf grow with the width."""

    wide, base = (
        shapes(models.WideResNet(16, width, "batchnorm", stem_channels=4))["params"]
        for width in (6, 2)
    )
    r = 3.0
    found = by_path(optim.factors(wide, "mup", base=base, kind="sgd"))
    rates = {path: factors.learning_rate for path, factors in found.items()}
    assert rates["stem/kernel"] == 1.0  # a Wide ResNet's stem is as wide as ever
    assert rates["stage_1/first/conv_1/kernel"] == pytest.approx(r)  # outputs grow
    assert rates["stage_2/first/conv_1/kernel"] == pytest.approx(1.0)  # both do
    assert rates["stage_1/rest/norm_1/scale"] == pytest.approx(r)
    assert rates["head/bias"] == 1.0
    # r for a weight whose input is divided by r, so r / r**2 for the product of both.
    assert rates["head/kernel"] == pytest.approx(1 / r)
    for path, factors in found.items():
        assert factors.weight_decay * factors.learning_rate == pytest.approx(1.0), path
        assert factors.eps == 1.0


def transformer(d_model, scheme="completep", layers=1):
    model = models.Transformer(
        vocab_size=7, num_layers=layers, d_model=d_model, num_heads=d_model // 4, d_ff=2 * d_model,
        scheme=scheme,
    )  # fmt: skip
    return model, shapes(model)["params"]


def test_our_transformer():
    """Embeddings that the network multiplies by the root of its width; norms behind the stacks."""
    (_, wide), (_, base) = transformer(16, "layernorm_pre"), transformer(4, "layernorm_pre")
    scheme = schemes.parametrized("layernorm_pre", schemes.get("completep").parametrization)
    adam, sgd = (
        by_path(optim.factors(wide, scheme, base=base, base_depth=1, kind=kind))
        for kind in ("adam", "sgd")
    )
    # Weights 1/c of those of a network without the multiplier c = sqrt(r): Adam's rate / c, its
    # epsilon times c, SGD's rate / c**2.
    assert adam["encoder_embedding/embedding"] == pytest.approx((1 / 2, 2.0, 2 / 4, 1.0))
    assert sgd["encoder_embedding/embedding"] == pytest.approx((4 / 4, 1.0, 1.0, 1.0))
    assert adam["encoder/norm/scale"] == pytest.approx((1.0, 1.0, 1 / 4, 1.0))
    assert adam["encoder/layers/attention/norm/scale"] == pytest.approx((1.0, 1.0, 1 / 20, 1.0))
    assert adam["decoder/layers/attention/query/kernel"] == pytest.approx((1 / 4, 4, 1 / 20, 1))
    assert sgd["decoder/layers/attention/query/kernel"] == pytest.approx((5.0, 1 / 5, 1.0, 1.0))


def test_bases_that_do_not_fit():
    narrow, wide = gpt(4), gpt(8)
    factors = functools.partial(optim.factors, wide, "mup", kind="sgd", rules=GPT_RULES)
    other = {name: leaf for name, leaf in narrow.items() if name != "h_0"} | {"h_9": wide["h_0"]}
    with pytest.raises(ValueError, match=r"'h_0/attn/c_attn/bias' \[24\] is not there in base"):
        factors(base=other)
    with pytest.raises(ValueError, match="base_depth=0 found"):
        factors(base=narrow, base_depth=0)
    with pytest.raises(ValueError, match="kind='adamw' found"):
        factors(base=narrow, kind="adamw")


def test_a_parametrisation_from_outside():
    """All that one needs to write: the factors, and the exponent of the branches."""
    theirs = Parametrization(
        "theirs",
        "theirs",
        lambda sizes, kind: Factors(learning_rate=sizes.depth**-1.5),
        "effective depth",
        exponent=0.25,
    )
    scheme = schemes.parametrized("plain", theirs, base_depth=2)
    model = models.WideResNet(depth=28, scheme=scheme, stem_channels=4)
    tree = shapes(model)["params"]
    found = by_path(optim.factors(tree, scheme, base=tree, base_depth=3, kind="sgd"))
    assert found["stage_1/rest/conv_1/kernel"].learning_rate == pytest.approx(4**-1.5)
    assert found["stem/kernel"] == Factors()
    np.testing.assert_allclose(scheme.constants(12).residual, 6**-0.25, rtol=1e-6)


def test_branches_and_heads_of_the_schemes():
    for name, constant in {"mup": 1.0, "depth_mup": 12**-0.5, "completep": 1 / 12}.items():
        np.testing.assert_allclose(schemes.get(name).constants(12).residual, constant, rtol=1e-6)
    with pytest.raises(ValueError, match=r"scheme='sqrt_half' has branches with a constant"):
        schemes.parametrized("sqrt_half", schemes.get("completep").parametrization)

    (model, wide), (_, base) = transformer(16, "mup"), transformer(4, "mup")
    scheme = init.at_base("mup", base)
    key, ones = jax.random.key(1), jax.tree.map(lambda leaf: jnp.ones(leaf.shape), wide)
    plain, scaled = (
        each.init(ones, model.num_branches, key=key) for each in (schemes.get("mup"), scheme)
    )
    np.testing.assert_allclose(scaled["head"]["kernel"], plain["head"]["kernel"] / 2, rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, scaled["encoder"], plain["encoder"])
    assert init.at_base("fixup", base) is schemes.get("fixup")
    deeper = init.at_base("completep", base, base_depth=2)
    assert deeper.constants(6).residual.tolist() == pytest.approx([1 / 3] * 6)


@pytest.mark.parametrize(("kind", "up"), [("sgd", 16.0), ("adam", 1.0)])
def test_an_inner_width_that_grows_alone(kind, up):
    """microsoft/mup#62: what comes back to a stream that stays narrow is a readout."""
    rules = Rules(branch=r"layer_(\d)/(up|down)", order=("up", "down"), stem="^stem", head="^head")

    def tree(inner):
        layer = {"up": np.ones((16, inner)), "down": np.ones((inner, 16))}
        return {"stem": np.ones((8, 16)), "layer_0": layer, "head": np.ones((16, 3))}

    factors = optim.factors(tree(64), "mup", base=tree(4), kind=kind, rules=rules)
    assert factors["stem"] == factors["head"] == Factors()
    assert factors["layer_0"]["down"] == Factors(1 / 16, 16.0, 1.0, 1 / 4)
    assert factors["layer_0"]["up"].learning_rate == up
    assert factors["layer_0"]["up"].std == 1.0
