"""The Transformer against independent references: NumPy, torch's layers, the published Fixup model.

Every parameter is random, the scalars too. The references compute in float64, so that a difference
is our float32's rounding: 6e-8 a sum, which grows with the number of layers and with cancellation,
and in gradients with the rare activation whose sign the rounding turns. What was seen is stated
beside each tolerance; a bias left out or a token masked wrongly gives 1e-2 and more.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nf_resnets import init, roles, schemes
from nf_resnets.models.transformer import Layer, Transformer, sinusoids
from nf_resnets.schemes import Anatomy, BranchConstants, Scheme
from tests.models.trees import assert_close, quick_jit

VALUES = 1e-5  # of the largest entry; seen: 2e-6
GRADIENTS = 2e-4  # of a leaf's largest entry; seen: 4e-5, in a scalar

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
every_anatomy = pytest.mark.parametrize("scheme", ALL, ids=[scheme.name for scheme in ALL])


def small(scheme=FIXUP, **options):
    sizes = {"encoder_layers": 2, "decoder_layers": 3, "d_model": D, "num_heads": HEADS}
    sizes |= {"d_ff": D_FF, "vocab_size": V, "source_vocab_size": V + 2, "padding_id": PAD}
    return Transformer(scheme=scheme, **(sizes | options))


def random_like(shapes, seed):
    """Draws every leaf away from zero and from one, so that none can be left out unnoticed."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        name, noise = path[-1].key, rng.standard_normal(leaf.shape)
        if name in ("kernel", "embedding"):
            value = noise * leaf.shape[-2 if name == "kernel" else -1] ** -0.5
        elif name in ("multiplier", "alpha", "scale", "input_scale"):
            value = 1 + 0.2 * np.tanh(noise)
        else:
            value = 0.3 * noise
        return np.asarray(value, np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes)


@functools.cache
def shapes_of(model):
    tokens = jax.ShapeDtypeStruct((2, 4), np.int32)
    return jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)["params"]


def random_params(model, seed=0):
    return random_like(shapes_of(model), seed)


@functools.cache
def compiled(model):
    return quick_jit(lambda p, source, target: model.apply({"params": p}, source, target))


def logits_of(model, params, source=SOURCE, target=TARGET):
    return np.asarray(compiled(model)(params, source, target))


# --- NumPy -------------------------------------------------------------------------------------


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


# --- torch's own layers ------------------------------------------------------------------------


def our_layer(scheme, *, cross):
    """A layer with LayerNorm, its random parameters and inputs."""
    layer = Layer(num_heads=HEADS, d_ff=D_FF, anatomy=scheme.anatomy, cross=cross)
    rng = np.random.default_rng(3)
    x = rng.standard_normal((2, 5, D), dtype=np.float32)
    memory = rng.standard_normal((2, 7, D), dtype=np.float32)
    padded = np.arange(7) >= np.array([[7], [4]])
    if cross:
        mask = np.tri(5, dtype=bool)[None, None]
        inputs = (x, mask, BranchConstants(), memory, ~padded[:, None, None])
    else:
        inputs = (memory, ~padded[:, None, None], BranchConstants())
    shapes = jax.eval_shape(layer.init, jax.random.key(0), *inputs)["params"]
    return layer, random_like(shapes, 4), inputs, padded


def torch_names(params, *, cross):
    """Our parameters of a layer under the names, and in the layouts, of torch's."""
    flat = {}
    attentions = {"self_attn": "attention"}
    if cross:
        attentions["multihead_attn"] = "cross_attention"
    norms = [*attentions.values(), "feed_forward"]
    for theirs, ours in attentions.items():
        p = params[ours]
        for kind, name in (("kernel", "weight"), ("bias", "bias")):
            three = [np.asarray(p[layer][kind]).T for layer in ("query", "key", "value")]
            flat[f"{theirs}.in_proj_{name}"] = np.concatenate(three)
            flat[f"{theirs}.out_proj.{name}"] = np.asarray(p["out"][kind]).T
    for j in (1, 2):
        p = params["feed_forward"][f"linear_{j}"]
        flat |= {f"linear{j}.weight": p["kernel"].T, f"linear{j}.bias": p["bias"]}
    for number, ours in enumerate(norms, start=1):
        p = params[ours]["norm"]
        flat |= {f"norm{number}.weight": p["scale"], f"norm{number}.bias": p["bias"]}
    return {name: np.array(value, np.float64) for name, value in flat.items()}


@pytest.mark.parametrize("scheme", [PRE, POST], ids=["pre", "post"])
@pytest.mark.parametrize("cross", [False, True], ids=["encoder", "decoder"])
def test_layers_with_norm_match_torch(scheme, cross):
    torch = pytest.importorskip("torch")
    layer, params, inputs, padded = our_layer(scheme, cross=cross)
    cls = torch.nn.TransformerDecoderLayer if cross else torch.nn.TransformerEncoderLayer
    theirs = cls(D, HEADS, D_FF, dropout=0.0, batch_first=True, norm_first=scheme is PRE).double()
    state = torch_names(params, cross=cross)
    theirs.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})

    activations = [torch.from_numpy(a.astype(float)).requires_grad_() for a in inputs[::3]]
    if cross:
        future = torch.from_numpy(~np.tri(5, dtype=bool))
        masks = {"tgt_mask": future, "memory_key_padding_mask": torch.from_numpy(padded)}
    else:
        masks = {"src_key_padding_mask": torch.from_numpy(padded)}
    expected = theirs(*activations, **masks)
    # A random direction, for the sum over a normalised vector has no gradient.
    direction = np.random.default_rng(5).standard_normal(expected.shape)
    (expected * torch.from_numpy(direction)).sum().backward()

    def loss_fn(params, activations):
        x, mask, constants, *rest = inputs
        arguments = (activations[0], mask, constants, *activations[1:], *rest[1:])
        y = layer.apply({"params": params}, *arguments)
        return (y * direction).sum(), y

    ours = quick_jit(jax.grad(loss_fn, argnums=(0, 1), has_aux=True))
    (grads, input_grads), y = ours(params, list(inputs[::3]))
    assert_close(y, expected.detach().numpy(), VALUES)
    assert_close(input_grads, [a.grad.numpy() for a in activations], GRADIENTS)
    their_grads = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    assert_close(torch_names(grads, cross=cross), their_grads, GRADIENTS)


# --- the published Fixup Transformer -----------------------------------------------------------


def published_fixup_transformer(torch, layers):
    """The structure of the authors' release: where it shifts, scales and multiplies.

    Time stands before batch there, and query, key and value are one matrix.
    """
    nn = torch.nn

    class Shift(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return x - self.bias

    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, x):
            return x * self.weight

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.in_proj_weight = nn.Parameter(torch.zeros(3 * D, D))
            self.out_proj = nn.Linear(D, D, bias=False)

        def forward(self, x, source, forbidden):
            query, key, value = self.in_proj_weight.chunk(3)

            def heads(weight, values):
                y = values @ weight.T
                return y.reshape(len(y), -1, D // HEADS).transpose(0, 1)

            q, k, v = heads(query, x), heads(key, source), heads(value, source)
            scores = q * (D // HEADS) ** -0.5 @ k.transpose(1, 2)
            scores = scores.masked_fill(forbidden.repeat_interleave(HEADS, 0), float("-inf"))
            y = scores.softmax(-1) @ v
            return self.out_proj(y.transpose(0, 1).reshape(x.shape))

    class EncoderLayer(nn.Module):
        def __init__(self):
            super().__init__()
            self.self_attn = Attention()
            self.fc1 = nn.Linear(D, D_FF, bias=False)
            self.fc2 = nn.Linear(D_FF, D, bias=False)
            self.shift0, self.shift1, self.shift2, self.shift3 = (Shift() for _ in range(4))
            self.scale0, self.scale1 = Scale(), Scale()

        def forward(self, x, forbidden):
            h = self.shift0(x)
            x = x + self.scale0(self.self_attn(h, h, forbidden))
            h = torch.relu(self.shift2(self.fc1(self.shift1(x))))
            return x + self.scale1(self.fc2(self.shift3(h)))

    class DecoderLayer(nn.Module):
        def __init__(self):
            super().__init__()
            self.self_attn, self.encoder_attn = Attention(), Attention()
            self.fc1 = nn.Linear(D, D_FF, bias=False)
            self.fc2 = nn.Linear(D_FF, D, bias=False)
            self.shift0, self.shift1, self.shift2, self.shift3, self.shift4 = (
                Shift() for _ in range(5)
            )
            self.scale0, self.scale1, self.scale2 = (Scale() for _ in range(3))

        def forward(self, x, memory, future, forbidden):
            h = self.shift0(x)
            x = x + self.scale0(self.self_attn(h, h, future))
            x = x + self.scale1(self.encoder_attn(self.shift1(x), memory, forbidden))
            h = torch.relu(self.shift3(self.fc1(self.shift2(x))))
            return x + self.scale2(self.fc2(self.shift4(h)))

    class Side(nn.Module):
        def __init__(self, layer, number, vocabulary):
            super().__init__()
            self.embed_tokens = nn.Embedding(vocabulary, D, padding_idx=PAD)
            self.layers = nn.ModuleList(layer() for _ in range(number))
            self.shift0 = Shift()

        def embed(self, tokens):
            positions = torch.from_numpy(sinusoids(tokens.shape[1], D).astype(float))
            return (D**0.5 * self.embed_tokens(tokens) + positions).transpose(0, 1)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = Side(EncoderLayer, layers[0], V + 2)
            self.decoder = Side(DecoderLayer, layers[1], V)
            self.embed_out = nn.Parameter(torch.zeros(V, D))

        def forward(self, source, target):
            forbidden = (source == PAD)[:, None]
            x = self.encoder.embed(source)
            for layer in self.encoder.layers:
                x = layer(x, forbidden)
            memory = self.encoder.shift0(x)
            future = torch.ones(target.shape[1], target.shape[1]).triu(1).bool()
            future = future.expand(len(target), -1, -1)
            x = self.decoder.embed(target)
            for layer in self.decoder.layers:
                x = layer(x, memory, future, forbidden)
            return self.decoder.shift0(x).transpose(0, 1) @ self.embed_out.T

    return Model().double()


def published_names(params):
    """Our tree under the published names; a published bias is subtracted."""
    flat = {"embed_out": params["head"]["kernel"].T}
    scalars = {
        "encoder": ["attention/bias_in", *(f"feed_forward/bias_{j}" for j in (1, "relu", 2))],
        "decoder": [
            "attention/bias_in",
            "cross_attention/bias_in",
            *(f"feed_forward/bias_{j}" for j in (1, "relu", 2)),
        ],
    }
    branches = {
        "encoder": ["attention", "feed_forward"],
        "decoder": ["attention", "cross_attention", "feed_forward"],
    }
    modules = {"attention": "self_attn", "cross_attention": "encoder_attn"}
    for side, bias in (("encoder", "bias_memory"), ("decoder", "bias_head")):
        flat[f"{side}.shift0.bias"] = -params[side][bias].reshape(1)
        flat[f"{side}.embed_tokens.weight"] = params[f"{side}_embedding"]["embedding"]
        stack = params[side]["layers"]
        for i in range(len(stack["attention"]["bias_in"])):
            prefix = f"{side}.layers.{i}."
            for number, path in enumerate(scalars[side]):
                branch, name = path.split("/")
                flat[f"{prefix}shift{number}.bias"] = -stack[branch][name][i].reshape(1)
            for number, branch in enumerate(branches[side]):
                flat[f"{prefix}scale{number}.weight"] = stack[branch]["multiplier"][i].reshape(1)
            for j in (1, 2):
                kernel = stack["feed_forward"][f"linear_{j}"]["kernel"][i]
                flat[f"{prefix}fc{j}.weight"] = kernel.T
            for branch in branches[side][:-1]:
                p, name = stack[branch], prefix + modules[branch]
                three = [np.asarray(p[k]["kernel"][i]).T for k in ("query", "key", "value")]
                flat[f"{name}.in_proj_weight"] = np.concatenate(three)
                flat[f"{name}.out_proj.weight"] = p["out"]["kernel"][i].T
    return {name: np.array(value, np.float64) for name, value in flat.items()}


def biases_together(flat):
    """All scalar biases as one leaf: a gradient summed over everything may cancel to near zero."""
    biases = [name for name in sorted(flat) if "shift" in name]
    rest = {name: value for name, value in flat.items() if name not in biases}
    return rest | {"shifts": np.concatenate([flat[name] for name in biases])}


def test_fixup_matches_the_published_model():
    torch = pytest.importorskip("torch")
    model = small(FIXUP)
    params = random_params(model, 1)
    # The published attention has no bias before its last layer.
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: 0 * leaf if path[-1].key == "bias_out" else leaf, params
    )
    for side in ("encoder_embedding", "decoder_embedding"):
        params[side]["embedding"][PAD] = 0  # as it stays in fairseq
    theirs = published_fixup_transformer(torch, model.depths)
    state = {name: torch.from_numpy(value) for name, value in published_names(params).items()}
    theirs.load_state_dict(state)
    expected = theirs(torch.from_numpy(SOURCE), torch.from_numpy(TARGET))
    labels = np.array([[3, 9, 11, 2, 2], [7, 8, 2, PAD, PAD]])
    torch.nn.functional.cross_entropy(
        expected.transpose(1, 2), torch.from_numpy(labels), ignore_index=PAD
    ).backward()

    def loss_fn(params):
        logits = model.apply({"params": params}, SOURCE, TARGET)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses.mean(where=labels != PAD), logits

    grads, logits = quick_jit(jax.grad(loss_fn, has_aux=True))(params)
    assert_close(logits, expected.detach().numpy(), VALUES)
    their_grads = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    assert_close(biases_together(published_names(grads)), biases_together(their_grads), GRADIENTS)
    assert all(np.abs(grad).max() > 0 for grad in their_grads.values())


# --- initialisation ----------------------------------------------------------------------------


@functools.cache
def initialised(model):
    tokens = jnp.ones((1, 2), jnp.int32)
    params = quick_jit(model.init)(jax.random.key(3), tokens, tokens)["params"]
    return jax.tree.map(np.asarray, params)


def test_init_is_the_standard_one():
    params = initialised(small(PRE, d_model=64, d_ff=128, vocab_size=300))
    for role, leaf in labelled(params):
        if role is roles.Role.BRANCH and leaf.ndim == 3:
            limit = math.sqrt(6 / sum(leaf.shape[1:]))
            # The largest of more than 4096 uniform draws lies 1e-3 below the limit or less, but
            # for one time in 60 (it is exp(-4096 * 1e-3)).
            assert limit * (1 - 1e-3) < np.abs(leaf).max() <= limit
        elif leaf.ndim == 1 or leaf.shape[0] in (2, 3):
            assert np.isin(leaf, (0, 1)).all()  # biases, norms
    embedding = params["decoder_embedding"]["embedding"]
    assert not embedding[PAD].any()
    for draws in (embedding[1:], params["head"]["kernel"]):
        # Of a standard deviation, to four standard errors: 4 / sqrt(2 * 19136).
        assert draws.std() * math.sqrt(64) == pytest.approx(1, abs=0.021)


def labelled(params):
    role_map = roles.assign(params)
    return [
        (leaf.role, value)
        for leaf, value in zip(role_map.leaves, jax.tree.leaves(params), strict=True)
    ]


def test_fixup_of_six_and_six_layers():
    model = small("fixup", encoder_layers=None, decoder_layers=None)
    assert model.num_branches == 30
    before = random_params(model)
    after = init.fixup(before, depth=30)
    factors = {"query": -1 / 6, "key": -1 / 6, "value": -1 / 6, "linear_1": -1 / 2}
    for side in ("encoder", "decoder"):
        for name, branch in before[side]["layers"].items():
            new = after[side]["layers"][name]
            np.testing.assert_array_equal(new["multiplier"], np.ones(6))
            for layer in branch:
                if layer in factors:
                    # Two roundings of float32: of the factor and of the product.
                    np.testing.assert_allclose(
                        new[layer]["kernel"],
                        branch[layer]["kernel"] * 30.0 ** factors[layer],
                        rtol=1.2e-7,
                    )
                elif layer in ("out", "linear_2"):
                    assert branch[layer]["kernel"].any() and not new[layer]["kernel"].any()
                elif layer != "multiplier":
                    assert not new[layer].any()
    assert not after["head"]["kernel"].any()
    for side in ("encoder_embedding", "decoder_embedding"):
        np.testing.assert_array_equal(after[side]["embedding"], before[side]["embedding"])

    logits = logits_of(model, after)
    assert not logits.any()
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, TARGET)
    assert float(losses.mean()) == pytest.approx(math.log(V), rel=1e-6)  # float32's rounding


@pytest.mark.every(6)
@pytest.mark.parametrize("name", schemes.names("transformer"))
def test_every_scheme_for_transformers(name):
    model = small(name)
    before = random_params(model)
    after = schemes.get(name).init(before, model.num_branches)
    jax.tree.map(lambda old, new: np.testing.assert_equal(new.shape, old.shape), before, after)
    assert np.isfinite(logits_of(model, after)).all()


@pytest.mark.parametrize(
    ("name", "here"),
    [("fixup", FIXUP), ("plain", PLAIN), ("t_fixup", PLAIN), ("layernorm_pre", PRE),
     ("layernorm_post", POST)],
)  # fmt: skip
def test_the_anatomies_here_are_those_of_the_registry(name, here):
    assert schemes.get(name).anatomy == here.anatomy


def test_the_base_model_has_the_published_size():
    """65 million, of Vaswani et al.'s table 3, counts to a million and with about 37,000 tokens."""
    model = Transformer(
        vocab_size=37000,
        scheme=POST,
        num_layers=6,
        d_model=512,
        num_heads=8,
        d_ff=2048,
        shared="all",
    )
    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes_of(model)))
    attention = 4 * (512 * 512 + 512)
    feed_forward = 512 * 2048 + 2048 + 2048 * 512 + 512
    norm = 2 * 512
    encoder = 6 * (attention + feed_forward + 2 * norm)
    decoder = 6 * (2 * attention + feed_forward + 3 * norm)
    assert count == 37000 * 512 + encoder + decoder == 63_082_496
    assert count == pytest.approx(65e6, rel=0.03)


def test_fixup_has_five_scalar_biases_and_two_multipliers_in_an_encoder_layer():
    counts = {}
    for role, leaf in labelled(shapes_of(small(FIXUP))):
        counts[role] = counts.get(role, 0) + math.prod(leaf.shape)
    assert counts[roles.Role.SCALAR_BIAS] == 2 * 5 + 3 * 7 + 2  # memory and head
    assert counts[roles.Role.MULTIPLIER] == 2 * 2 + 3 * 3 == small(FIXUP).num_branches
    assert roles.Role.NORM not in counts


# --- masks, scan, sharing ----------------------------------------------------------------------


@every_anatomy
def test_no_logit_depends_on_a_later_token(scheme):
    model = small(scheme)
    params = random_params(model)
    before = logits_of(model, params)
    for t in range(1, TARGET.shape[1]):
        changed = TARGET.copy()
        changed[:, t] = (TARGET[:, t] + 5) % V
        after = logits_of(model, params, target=changed)
        np.testing.assert_array_equal(after[:, :t], before[:, :t])
        assert np.abs(after[:, t:] - before[:, t:]).max(axis=(1, 2)).min() > 1e-3


@pytest.mark.every(2)
@every_anatomy
def test_padding_does_not_matter(scheme):
    model = small(scheme)
    params = random_params(model)
    expected = logits_of(model, params, SOURCE[1:, :4], TARGET[1:, :3])
    padded = logits_of(model, params)[1:, :3]
    # The sums are over more terms, zeros, in another order.
    assert_close(padded, expected, VALUES)
    # Not even the padding token's own vector.
    for side in ("encoder_embedding", "decoder_embedding"):
        params[side]["embedding"][PAD] += 7
    np.testing.assert_array_equal(logits_of(model, params)[1:, :3], padded)


def test_a_source_of_nothing_but_padding_has_finite_gradients():
    model = small(encoder_layers=1, decoder_layers=1)
    source = np.full((1, 3), PAD)
    grads = quick_jit(
        jax.grad(lambda p: (model.apply({"params": p}, source, TARGET[:1]) ** 2).sum())
    )(random_params(model))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


@pytest.mark.every(2)
@pytest.mark.parametrize("scheme", [FIXUP, CONSTANTS], ids=["scalars", "constants"])
def test_scanned_and_unrolled_are_the_same(scheme):
    model = small(scheme)
    params = random_params(model)

    def gradients(model):
        return quick_jit(
            jax.grad(lambda p: (model.apply({"params": p}, SOURCE, TARGET) ** 2).sum())
        )(params)

    unrolled = dataclasses.replace(model, unroll=3)
    assert shapes_of(unrolled) == shapes_of(model)
    # The same sums, fused otherwise.
    assert_close(gradients(unrolled), gradients(model), GRADIENTS)


@pytest.mark.parametrize(
    ("shared", "tables"),
    [
        ("none", {"encoder_embedding": V + 2, "decoder_embedding": V, "head": D}),
        ("target", {"encoder_embedding": V + 2, "decoder_embedding": V}),
        ("all", {"embedding": V}),
    ],
)
def test_shared_tables(shared, tables):
    model = small(PLAIN, shared=shared, source_vocab_size=V if shared == "all" else V + 2)
    params = random_params(model)
    found = {name: jax.tree.leaves(leaf)[0].shape[0] for name, leaf in params.items()}
    assert {name: found[name] for name in found if name not in ("encoder", "decoder")} == tables
    if shared == "none":
        return
    target_table = params["embedding" if shared == "all" else "decoder_embedding"]["embedding"]
    source_table = params["embedding" if shared == "all" else "encoder_embedding"]["embedding"]
    separate = {name: params[name] for name in ("encoder", "decoder")}
    separate |= {"encoder_embedding": {"embedding": source_table}}
    separate |= {"decoder_embedding": {"embedding": target_table}}
    separate |= {"head": {"kernel": target_table.T}}
    source = SOURCE % V
    expected = numpy_transformer(PLAIN, separate, source, TARGET)
    assert_close(logits_of(model, params, source), expected, VALUES)


def test_activations_are_tapped():
    model = small(FIXUP)
    params = random_params(model)
    _, variables = quick_jit(
        lambda p: model.apply({"params": p}, SOURCE, TARGET, mutable=["taps"])
    )(params)
    encoder, decoder = (variables["taps"][side]["layers"] for side in ("encoder", "decoder"))
    assert sorted(decoder) == ["attention", "cross_attention", "feed_forward"]
    assert encoder["attention"]["input"].shape == (2, 2, 7, D)
    assert decoder["cross_attention"]["branch"].shape == (3, 2, 5, D)
    for stack in (encoder, decoder):
        for taps in stack.values():
            np.testing.assert_array_equal(taps["sum"], taps["skip"] + taps["branch"])
            np.testing.assert_array_equal(taps["input"], taps["skip"])
        np.testing.assert_array_equal(
            stack["feed_forward"]["sum"][:-1], stack["attention"]["input"][1:]
        )


def test_a_perturbation_shifts_one_branch():
    model = small(FIXUP)
    params = random_params(model)
    zeros = {"decoder": {"layers": {"feed_forward": {"branch": np.zeros((3, 2, 5, D), "float32")}}}}

    @quick_jit
    def logits(perturbations):
        return model.apply({"params": params, "perturbations": perturbations}, SOURCE, TARGET)

    shifted = jax.tree.map(np.copy, zeros)
    shifted["decoder"]["layers"]["feed_forward"]["branch"][-1] = 1
    difference = logits(shifted) - logits(zeros)
    # Behind the last branch there is but the head.
    assert_close(difference, np.tile(params["head"]["kernel"].sum(0), (2, 5, 1)), 1e-5)


# --- dropout, precision, refusals --------------------------------------------------------------


def test_dropout_is_in_training_only_and_of_its_rate():
    model, without = small(PLAIN, dropout=0.25), small(PLAIN)
    params = random_params(model)
    np.testing.assert_array_equal(logits_of(model, params), logits_of(without, params))

    def train(key):
        return model.apply(
            {"params": params}, SOURCE, TARGET, True, rngs={"dropout": key}, mutable=["taps"]
        )

    train = quick_jit(train)
    (one, taps), (two, _) = train(jax.random.key(0)), train(jax.random.key(1))
    assert not np.array_equal(one, two)
    np.testing.assert_array_equal(one, train(jax.random.key(0))[0])
    for stack in taps["taps"].values():
        for branch in stack["layers"].values():
            dropped = np.asarray(branch["branch"]) == 0
            # Layers draw for themselves.
            assert not np.array_equal(dropped[0], dropped[1])
            # Five standard errors of a rate over at least 2 * 2 * 5 * 16 independent draws.
            error = 5 * math.sqrt(0.25 * 0.75 / dropped.size)
            assert dropped.mean() == pytest.approx(0.25, abs=error)


def test_half_precision_gives_float32_logits():
    params = random_params(small())
    logits = logits_of(small(dtype=jnp.bfloat16), params)
    assert logits.dtype == jnp.float32
    # bfloat16 rounds to 2^-9 at each of some ten places along the depth; seen: 3e-2.
    assert_close(logits, logits_of(small(), params), 6e-2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_heads": 3}, "d_model=16 found; expected an even multiple of num_heads=3"),
        ({"d_model": 15, "num_heads": 5}, "d_model=15 found; expected an even multiple"),
        ({"decoder_layers": 0}, "decoder_layers=0 found; expected 1 or more"),
        ({"vocab_size": 0}, "vocab_size=0 found"),
        ({"shared": "head"}, "shared='head' found; expected 'none', 'target' or 'all'"),
        ({"shared": "all"}, "source_vocab_size=15 and vocab_size=13 found; expected one vocabul"),
        (
            {"shared": "target", "scheme": "mup"},
            "shared='target' with scheme='mup' found; ex",
        ),
        ({"scheme": "batchnorm"}, "scheme='batchnorm' is for .*; expected one for transformer"),
        ({"scheme": scheme("a", norm="group")}, "norm='group', norm_place='default'.* found"),
        ({"scheme": scheme("a", norm="layer")}, "norm='layer', norm_place='default'.* found"),
        ({"scheme": scheme("a", standardized=True)}, r"Anatomy\(standardized=True\) found"),
        ({"scheme": scheme("a", standardized="timm")}, r"Anatomy\(standardized=.timm.\) found"),
        ({"scheme": scheme("a", same_padding=True)}, r"Anatomy\(same_padding=True\) found"),
        ({"scheme": scheme("a", branches=False)}, r"Anatomy\(branches=False\) found"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        small(**options)


def test_a_sequence_that_is_too_long_is_refused():
    model = small(max_length=6)
    with pytest.raises(ValueError, match="a sequence of 7 tokens found; expected at most .*=6"):
        jax.eval_shape(model.init, jax.random.key(0), SOURCE, TARGET)


# --- learning ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_fixup_transformer_learns_to_reverse():
    """Sequences of five of six letters; whoever knows nothing but the letters has ln 6 = 1.8."""
    model = Transformer(
        vocab_size=8, num_layers=2, d_model=32, num_heads=4, d_ff=64, scheme="fixup", max_length=5
    )
    params = init.fixup(initialised(model), model.num_branches)
    tx = optax.adam(5e-3)

    def loss_fn(params, key):
        words = jax.random.randint(key, (32, 5), 2, 8)
        labels = words[:, ::-1]
        begun = jnp.concatenate([jnp.ones((32, 1), words.dtype), labels[:, :-1]], axis=1)
        logits = model.apply({"params": params}, words, begun)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def step(state, key):
        params, opt_state = state
        loss, grads = jax.value_and_grad(loss_fn)(params, key)
        updates, opt_state = tx.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    train = quick_jit(lambda params, keys: jax.lax.scan(step, (params, tx.init(params)), keys)[1])
    losses = np.asarray(train(params, jax.random.split(jax.random.key(0), 240)))
    assert losses[0] == pytest.approx(math.log(8), rel=1e-6)  # float32's rounding
    assert losses[-20:].mean() < 0.5  # seen: 0.09
