"""The Transformer against an independent reference in NumPy.

Every parameter is random, the scalars too. The references compute in float64, so that a difference
is our float32's rounding: 6e-8 a sum, which grows with the number of layers and with cancellation,
and in gradients with the rare activation whose sign the rounding turns. What was seen is stated
beside each tolerance; a bias left out or a token masked wrongly gives 1e-2 and more.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import analysis, roles, schemes
from nf_resnets.models.transformer import Transformer
from nf_resnets.schemes import Anatomy, Scheme
from tests.models.trees import assert_close, quick_jit, random_like, shapes

VALUES = 1e-5  # of the largest entry; seen: 2e-6

D, HEADS, D_FF, V, PAD = 16, 2, 24, 13, 0
SOURCE = np.array([[5, 6, 7, 8, 2, 9, 3], [4, 4, 12, 1, PAD, PAD, PAD]])
TARGET = np.array([[1, 3, 9, 11, 2], [1, 7, 8, PAD, PAD]])


def scheme(name, **anatomy):
    def as_it_is(params, depth, *, key=None, rules=None):
        return params

    return Scheme(name, name, as_it_is, Anatomy(**anatomy), "", fits=frozenset({"transformer"}))


FIXUP = scheme("scalars", scalar_biases=True, multiplier=True)
PLAIN = scheme("plain", conv_biases=True)
PRE = scheme("pre", conv_biases=True, norm="layer", norm_place="pre")
POST = scheme("post", conv_biases=True, norm="layer", norm_place="post")
CONSTANTS = scheme(
    "constants",
    alpha=True,
    residual=lambda transitions: 1 / (1 + np.arange(len(transitions))),
    identity=0.9,
    beta=lambda transitions: 1 + np.arange(len(transitions)) / 10,
)
ALL = [FIXUP, PLAIN, PRE, POST, CONSTANTS]
RIVALS = [schemes.get(name) for name in ("dyt", "derf", "deepnorm", "admin")]
# The skip paths of two encoder and three decoder layers: torchscale's and admin_torch's formulas.
SKIPS = {
    "deepnorm": (0.81 * (2**4 * 3) ** 0.0625, 9**0.25),
    "admin": ((5 / math.log(5) - 1) ** 0.5, (10 / math.log(10) - 1) ** 0.5),
}


def small(scheme=FIXUP, **options):
    sizes = {"encoder_layers": 2, "decoder_layers": 3, "d_model": D, "num_heads": HEADS}
    sizes |= {"d_ff": D_FF, "vocab_size": V, "source_vocab_size": V + 2, "padding_id": PAD}
    return Transformer(scheme=scheme, **(sizes | options))


def random_params(model, seed=0):
    return random_like(shapes(model)["params"], seed)


@functools.cache
def compiled(model):
    return quick_jit(lambda p, source, target: model.apply({"params": p}, source, target))


def logits_of(model, params, source=SOURCE, target=TARGET):
    return np.asarray(compiled(model)(params, source, target))


def numpy_norm(p, x):
    if "input_scale" in p:
        function = np.vectorize(math.erf) if "input_shift" in p else np.tanh
        y = function(p["input_scale"] * x + p.get("input_shift", 0))
        return y * p["scale"] + p["bias"]
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-5) * p["scale"] + p["bias"]


def numpy_linear(p, x):
    return x @ p["kernel"] + p.get("bias", 0)


def numpy_attention(p, x, source, allowed):
    """One query of one head at a time, over the positions that it may attend to."""
    query = numpy_linear(p["query"], x)
    key, value = numpy_linear(p["key"], source), numpy_linear(p["value"], source)
    out = np.zeros_like(query)
    size = D // HEADS
    for b, t, head in np.ndindex(*x.shape[:2], HEADS):
        part = slice(head * size, (head + 1) * size)
        keys = [s for s in range(source.shape[1]) if allowed(b, t, s)]
        scores = key[b, keys, part] @ query[b, t, part] / np.sqrt(size)
        weights = np.exp(scores - scores.max())
        out[b, t, part] = weights / weights.sum() @ value[b, keys, part]
    return numpy_linear(p["out"], out + p.get("bias_out", 0))


def numpy_feed_forward(p, x):
    h = numpy_linear(p["linear_1"], x) + p.get("bias_relu", 0)
    return numpy_linear(p["linear_2"], np.maximum(h, 0) + p.get("bias_2", 0))


def numpy_transformer(scheme, params, source, target):
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    anatomy = scheme.anatomy
    k = 0  # branches so far

    def branch(p, x, function):
        nonlocal k
        k += 1
        residual, identity, beta = 1, 1, 1
        if scheme is CONSTANTS:
            residual, identity, beta = 1 / k, 0.9, 1 + (k - 1) / 10
        if scheme.name in SKIPS:
            identity = SKIPS[scheme.name][k > 4]
        h = x / beta
        h = numpy_norm(p["norm"], h) if anatomy.norm_place == "pre" else h
        h = function(p, h + p.get("bias_in", p.get("bias_1", 0)))
        y = identity * x + residual * p.get("multiplier", p.get("alpha", 1)) * h
        return numpy_norm(p["norm"], y) if anatomy.norm_place == "post" else y

    def embed(name, tokens):
        x = np.zeros((*tokens.shape, D))
        for (b, t), token in np.ndenumerate(tokens):
            if token != PAD:
                x[b, t] = params[name]["embedding"][token] * np.sqrt(D)
            for i in range(0, D, 2):
                angle = t / 10000 ** (i / D)
                x[b, t, i : i + 2] += [np.sin(angle), np.cos(angle)]
        return x

    def layers(stack):
        for index in range(len(jax.tree.leaves(stack["layers"])[0])):
            yield jax.tree.map(lambda leaf, i=index: leaf[i], stack["layers"])

    def end(p, x, bias):
        x = numpy_norm(p["norm"], x) if anatomy.norm_place == "pre" else x
        return x + p.get(bias, 0)

    def seen(b, t, s):
        return source[b, s] != PAD

    x = embed("encoder_embedding", source)
    for p in layers(params["encoder"]):
        x = branch(p["attention"], x, lambda p, h: numpy_attention(p, h, h, seen))
        x = branch(p["feed_forward"], x, numpy_feed_forward)
    memory = end(params["encoder"], x, "bias_memory")
    x = embed("decoder_embedding", target)
    for p in layers(params["decoder"]):
        x = branch(p["attention"], x, lambda p, h: numpy_attention(p, h, h, lambda b, t, s: s <= t))
        x = branch(p["cross_attention"], x, lambda p, h: numpy_attention(p, h, memory, seen))
        x = branch(p["feed_forward"], x, numpy_feed_forward)
    return end(params["decoder"], x, "bias_head") @ params["head"]["kernel"]


@pytest.mark.every(2)
@pytest.mark.parametrize("scheme", ALL + RIVALS, ids=lambda scheme: scheme.name)
def test_the_model_matches_numpy(scheme):
    model = small(scheme)
    params = random_params(model)
    assert_close(
        logits_of(model, params), numpy_transformer(scheme, params, SOURCE, TARGET), VALUES
    )


@functools.cache
def initialised(model):
    tokens = jnp.ones((1, 2), jnp.int32)
    params = quick_jit(model.init)(jax.random.key(3), tokens, tokens)["params"]
    return jax.tree.map(np.asarray, params)


def test_init_is_the_standard_one():
    params = initialised(small(PRE, d_model=64, d_ff=128, vocab_size=300))
    for place, leaf in zip(roles.assign(params).leaves, jax.tree.leaves(params), strict=True):
        if place.role is roles.Role.BRANCH and leaf.ndim == 3:
            limit = math.sqrt(6 / sum(leaf.shape[1:]))
            # The largest of more than 4096 uniform draws lies 1e-3 below the limit or less, but
            # for one time in 60 (it is exp(-4096 * 1e-3)).
            assert limit * (1 - 1e-3) < np.abs(leaf).max() <= limit
    embedding = params["decoder_embedding"]["embedding"]
    assert not embedding[PAD].any()
    for draws in (embedding[1:], params["head"]["kernel"]):
        # Of a standard deviation, to four standard errors: 4 / sqrt(2 * 19136).
        assert draws.std() * math.sqrt(64) == pytest.approx(1, abs=0.021)


def test_the_base_model_has_the_published_size():
    """65 million, of Vaswani et al.'s table 3, where one table is all three."""
    model = Transformer(
        vocab_size=37000, scheme=POST, num_layers=6, d_model=512, num_heads=8, d_ff=2048
    )
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes(model)["params"]))
    # A table; 18 attentions, 12 feed-forward layers and 30 norms, with their bias vectors.
    expected = 37000 * 512 + 18 * 4 * 513 * 512 + 12 * (513 * 2048 + 2049 * 512) + 30 * 2 * 512
    assert count - 2 * 37000 * 512 == expected == pytest.approx(65e6, rel=0.03)


@pytest.mark.parametrize(("lacking", "branches"), [("encoder_layers", 9), ("decoder_layers", 4)])
def test_a_stack_may_have_no_layers(lacking, branches):
    model = small(**{lacking: 0})
    assert model.num_branches == branches
    assert roles.assign(shapes(model)["params"]).num_branches == branches


def test_dropout_is_in_training_only_and_of_its_rate():
    model, without = small(PLAIN, dropout=0.25), small(PLAIN)
    params = random_params(model)
    np.testing.assert_array_equal(logits_of(model, params), logits_of(without, params))

    def train(key):
        def network(params, *inputs):
            return model.apply({"params": params}, *inputs, True, rngs={"dropout": key})

        return analysis.observe(network, params, SOURCE, TARGET)

    train = quick_jit(train)
    (one, blocks), (two, _) = train(jax.random.key(0)), train(jax.random.key(1))
    assert not np.array_equal(one, two)
    np.testing.assert_array_equal(one, train(jax.random.key(0))[0])
    dropped = [np.asarray(block.branch) == 0 for block in blocks]
    # Layers draw for themselves.
    assert len({(mask.shape, mask.tobytes()) for mask in dropped}) == len(dropped)
    for mask in dropped:
        # Five standard errors of a rate over at least 2 * 5 * 16 independent draws.
        assert mask.mean() == pytest.approx(0.25, abs=5 * math.sqrt(0.25 * 0.75 / mask.size))


@pytest.mark.every(5)
@pytest.mark.parametrize("scheme", ALL)
def test_token_by_token_the_logits_are_those_of_the_whole_sequence(scheme):
    model = small(scheme)
    params = random_params(model)
    encode = quick_jit(lambda params: model.apply({"params": params}, SOURCE, method="encode"))

    @quick_jit
    def one(variables, memory, token, position):
        return model.apply(
            variables, memory, SOURCE, token, position, length=9, method="decode_next",
            mutable=["cache"],
        )  # fmt: skip

    memory, kept, found = encode(params), {}, []
    for position in range(TARGET.shape[1]):
        logits, kept = one({"params": params, **kept}, memory, TARGET[:, position], position)
        found.append(np.asarray(logits))
        # Once its keys and values are kept, the encoder's output itself is not read any more.
        memory = jnp.full_like(memory, jnp.nan)
    whole = logits_of(model, params)
    # A padding token of the target is looked up as 0 in both, so padded positions agree too. Seen:
    # 6e-7. A token at a wrong position gives 1e-1 and more.
    assert np.abs(np.stack(found, axis=1) - whole).max() <= VALUES * np.abs(whole).max()
    assert np.ptp(whole) > 1
    sizes = jax.tree.map(jnp.shape, kept["cache"]["decoder"]["layers"])
    own, of_source = ((3, 2, length, HEADS, D // HEADS) for length in (9, SOURCE.shape[1]))
    assert sizes["attention"] == {"keys": own, "values": own}
    assert sizes["cross_attention"] == {"keys": of_source, "values": of_source}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": scheme("a", norm="group")}, "norm='group', norm_place='default'.* found"),
        ({"num_heads": 3}, "expected an even multiple of num_heads=3"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        small(**options)
