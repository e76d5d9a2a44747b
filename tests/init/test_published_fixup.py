"""Fixup as its authors' code has it: draws, slow leaves, the Transformer's positions."""

import dataclasses
import math

import jax
import numpy as np
import optax
import pytest

from nf_resnets import init, models, optim, roles
from nf_resnets.models.transformer import sinusoids
from tests.models.trees import block_trees, images, quick_jit


def published_fixup_resnet(torch, blocks_per_stage):
    """The Fixup ResNet for CIFAR with the structure and the names of the authors' release."""
    nn = torch.nn

    def scalar(value):
        return nn.Parameter(torch.full((1,), float(value)))

    def conv3x3(c_in, c_out, stride=1):
        return nn.Conv2d(c_in, c_out, kernel_size=3, stride=stride, padding=1, bias=False)

    class FixupBasicBlock(nn.Module):
        def __init__(self, c_in, c_out, stride=1, downsample=None):
            super().__init__()
            self.bias1a = scalar(0)
            self.conv1 = conv3x3(c_in, c_out, stride)
            self.bias1b = scalar(0)
            self.relu = nn.ReLU(inplace=True)
            self.bias2a = scalar(0)
            self.conv2 = conv3x3(c_out, c_out)
            self.scale = scalar(1)
            self.bias2b = scalar(0)
            self.downsample = downsample

        def forward(self, x):
            identity = x
            out = self.conv1(x + self.bias1a)
            out = self.relu(out + self.bias1b)
            out = self.conv2(out + self.bias2a)
            out = out * self.scale + self.bias2b
            if self.downsample is not None:
                identity = self.downsample(x + self.bias1a)
                identity = torch.cat((identity, torch.zeros_like(identity)), 1)
            return self.relu(out + identity)

    class FixupResNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = conv3x3(3, 16)
            self.bias1 = scalar(0)
            self.relu = nn.ReLU(inplace=True)
            self.layer1 = self.make_layer(16, 16, 1)
            self.layer2 = self.make_layer(16, 32, 2)
            self.layer3 = self.make_layer(32, 64, 2)
            self.bias2 = scalar(0)
            self.linear = nn.Linear(64, 10)

        def make_layer(self, c_in, c_out, stride):
            downsample = nn.AvgPool2d(1, stride=stride) if stride != 1 else None
            blocks = [FixupBasicBlock(c_in, c_out, stride, downsample)]
            blocks += [FixupBasicBlock(c_out, c_out) for _ in range(blocks_per_stage - 1)]
            return nn.Sequential(*blocks)

        def forward(self, x):
            x = self.relu(self.conv1(x) + self.bias1)
            x = self.layer3(self.layer2(self.layer1(x)))
            x = nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)
            return self.linear(x + self.bias2)

    return FixupResNet().double()


def published_names(params):
    """Our tree under the names, and in the layouts, of the published module."""
    flat = {"conv1.weight": params["stem"]["kernel"], "bias1": params["bias_stem"]}
    names = {
        "bias_1a": "bias1a",
        "bias_1b": "bias1b",
        "bias_2a": "bias2a",
        "bias_2b": "bias2b",
        "multiplier": "scale",
    }
    for stage in (1, 2, 3):
        for index, block in enumerate(block_trees(params[f"stage_{stage}"])):
            prefix = f"layer{stage}.{index}."
            flat |= {prefix + theirs: block[ours] for ours, theirs in names.items()}
            flat |= {prefix + f"conv{j}.weight": block[f"conv_{j}"]["kernel"] for j in (1, 2)}
    flat |= {"bias2": params["bias_head"], "linear.bias": params["head"]["bias"]}
    flat["linear.weight"] = params["head"]["kernel"]
    layouts = {4: lambda a: a.transpose(3, 2, 0, 1), 2: np.transpose, 0: lambda a: a.reshape(1)}
    return {k: layouts.get(a.ndim, np.asarray)(np.asarray(a, float)) for k, a in flat.items()}


def shapes(model, *inputs):
    tree = jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]
    return jax.tree.map(lambda leaf: np.ones(leaf.shape, "f4"), tree)


@pytest.mark.parametrize(
    ("shape", "ratio"),
    [((3, 3, 3, 16), 1.0607), ((7, 7, 3, 64), 0.5303)],
    ids=["CIFAR", "ImageNet"],
)
def test_the_stem(shape, ratio):
    """PyTorch's default: uniform, of variance ``1/(3 fan_in)``; how much larger ours is."""
    block = {f"conv_{j}": {"kernel": np.ones((3, 3, 4, 4), "f4")} for j in (1, 2)}
    params = {"stem": {"kernel": np.ones(shape, "f4")}, "stage_1": {"first": block}}
    key = jax.random.key(1)
    ours = init.fixup(params, 1, key=key)
    theirs = init.fixup(params, 1, published=True, key=key)
    stem = np.float64(theirs["stem"]["kernel"])
    bound = stem[..., 0].size ** -0.5
    assert 0.95 * bound < np.abs(stem).max() <= bound
    # The standard error of the deviation of a uniform sample is 0.45 of it over sqrt(n).
    assert abs(stem.std() * 3**0.5 / bound - 1) < 5 * 0.45 / math.sqrt(stem.size)
    deviation = (2 / (shape[0] ** 2 * shape[-1])) ** 0.5
    assert deviation / (bound / 3**0.5) == pytest.approx(ratio, rel=1e-4)
    jax.tree.map(np.testing.assert_array_equal, theirs["stage_1"], ours["stage_1"])
    given = init.fixup(params, 1, published=True)
    np.testing.assert_array_equal(given["stem"]["kernel"], params["stem"]["kernel"])


TRANSFORMER = models.Transformer(
    vocab_size=11, num_layers=2, d_model=32, num_heads=2, d_ff=48, scheme="fixup_published"
)
TOKENS = np.ones((1, 3), "i4")


@pytest.mark.parametrize("keyed", [False, True])
def test_the_transformers_attention(keyed):
    """The bound of the joint matrix ``[3D, D]`` is ``sqrt(6/4D)``; typed from the authors' code."""
    params = shapes(TRANSFORMER, TOKENS, TOKENS)
    L, D, d_ff = 10, 32, 48
    key = jax.random.key(1)
    xavier = init.xavier(params, key)
    params = init.fixup(params if keyed else xavier, L, published=True, key=key if keyed else None)
    for stack, name, blocks in (
        ("encoder", "attention", L),
        ("decoder", "attention", L),
        ("decoder", "cross_attention", 12),
    ):
        branch = params[stack]["layers"][name]
        for layer in ("query", "key", "value"):
            largest = np.abs(branch[layer]["kernel"]).max()
            bound = (6 / (D + 3 * D)) ** 0.5 * blocks ** (-1 / 6)
            # 2,048 uniform numbers: the largest is within a percent of the bound.
            assert 0.99 * bound < largest <= bound * (1 + 1e-6)
        assert not np.any(branch["out"]["kernel"])
    fc1 = params["encoder"]["layers"]["feed_forward"]["linear_1"]["kernel"]
    bound = (6 / (D + d_ff)) ** 0.5 * L**-0.5
    assert 0.99 * bound < np.abs(fc1).max() <= bound * (1 + 1e-6)
    assert not np.any(params["head"]["kernel"])
    paper = init.fixup(xavier, L)
    for stack, name, factor in (
        ("encoder", "attention", 2**0.5),
        ("decoder", "cross_attention", 2**0.5 * (10 / 12) ** (-1 / 6)),
    ):
        one, two = (tree[stack]["layers"][name]["value"]["kernel"] for tree in (paper, params))
        np.testing.assert_allclose(one, factor * two, rtol=1e-6)


def test_fairseqs_positions():
    """Typed from its ``SinusoidalPositionalEmbedding``, in loops; padding is token 1 there."""
    length, d, padding = 5, 8, 1
    expected = np.zeros((length, d))
    for position in range(length):
        for i in range(d // 2):
            frequency = math.exp(-i * math.log(10000) / (d // 2 - 1))
            expected[position, i] = math.sin((padding + 1 + position) * frequency)
            expected[position, d // 2 + i] = math.cos((padding + 1 + position) * frequency)
    found = sinusoids(length, d, "fairseq", padding + 1)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-7)  # rounded to float32
    assert sinusoids(2, 2, "fairseq").shape == (2, 2)

    # The network adds them to the embeddings, which here are 0; so its logits are those of one that
    # has them as its embeddings. Its first branch sees them.
    model = TRANSFORMER.clone(d_model=d, padding_id=padding, positions="fairseq")
    tokens = np.full((1, length), 5, "i4")
    params = jax.tree.map(np.zeros_like, shapes(model, tokens, tokens))
    encoded = model.apply({"params": params}, tokens, method="encode")
    np.testing.assert_allclose(encoded[0], expected, rtol=0, atol=1e-6)


# --- The head's bias vector learns slowly, too ------------------------------------------------


def warm_start():
    """A network away from Fixup's zeros, which is where the head's bias counts."""
    model = models.CifarResNet(8, stem_channels=16, scheme="fixup_published")
    x, labels = images(0, 8, 8, 8, 3), np.array([0, 1, 2, 3, 4, 5, 6, 7])
    params = quick_jit(model.init)(jax.random.key(0), x)["params"]
    rng = np.random.default_rng(1)

    def moved(leaf):
        return np.asarray(leaf) * np.float32(0.5) + np.float32(0.02) * rng.standard_normal(
            leaf.shape, dtype="f4"
        )

    return model, jax.tree.map(moved, params), x, labels


RATE, DECAY, STEPS = 0.1, 5e-4, 30


def trained(model, params, x, labels, scheme):
    """Losses and parameters of 30 steps of our optimizer."""
    optimizer = optim.sgd(RATE, momentum=0.9, weight_decay=DECAY, scheme=scheme)

    def loss_fn(params):
        logits = model.apply({"params": params}, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    @quick_jit
    def step(params, state):
        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    state, losses = optimizer.init(params), []
    for _ in range(STEPS):
        params, state, loss = step(params, state)
        losses.append(float(loss))
    return np.array(losses), params


def test_thirty_steps_of_the_authors_module():
    """Their parameter groups, by their names, in PyTorch and float64."""
    torch = pytest.importorskip("torch")
    model, params, x, labels = warm_start()
    losses, after = trained(model, params, x, labels, "fixup_published")

    module = published_fixup_resnet(torch, 1)
    renamed = published_names(params)
    module.load_state_dict({name: torch.tensor(np.float64(a)) for name, a in renamed.items()})
    module.double()
    slow = [p for n, p in module.named_parameters() if "bias" in n or "scale" in n]
    others = [p for n, p in module.named_parameters() if not ("bias" in n or "scale" in n)]
    optimizer = torch.optim.SGD(
        [{"params": slow, "lr": RATE / 10}, {"params": others}],
        lr=RATE, momentum=0.9, weight_decay=DECAY,
    )  # fmt: skip
    images_, targets = torch.tensor(np.float64(x).transpose(0, 3, 1, 2)), torch.tensor(labels)
    for loss in losses:
        optimizer.zero_grad()
        expected = torch.nn.functional.cross_entropy(module(images_), targets)
        expected.backward()
        optimizer.step()
        assert loss == pytest.approx(expected.item(), rel=1e-4)
    theirs = {name: p.detach().numpy() for name, p in module.named_parameters()}
    for name, ours in published_names(after).items():
        np.testing.assert_allclose(
            ours, theirs[name], rtol=0, atol=1e-3 * np.abs(theirs[name]).max()
        )


def test_our_rules_can_be_changed():
    """One rule at a time: the others may match nothing, the changed one must match."""
    params = shapes(models.CifarResNet(8), np.zeros((1, 8, 8, 3), "f4"))
    params["teacher"] = {"kernel": np.ones((3, 3, 4, 4), "f4")}
    with pytest.raises(ValueError, match="no rule says what the weight 'teacher/kernel'"):
        init.fixup(params, 3)
    rules = dataclasses.replace(roles.OUR_RULES, keep=r"^teacher/")
    result = init.fixup(params, 3, rules=rules)
    np.testing.assert_array_equal(result["teacher"]["kernel"], params["teacher"]["kernel"])
    np.testing.assert_allclose(result["stage_1"]["first"]["conv_1"]["kernel"], 3**-0.5, rtol=1e-6)
    wrong = dataclasses.replace(roles.OUR_RULES, keep=r"^teachers/", stem=r"^(?:stem|teacher)/")
    with pytest.raises(ValueError, match=r"rules.keep='\^teachers/' matches no leaf"):
        init.fixup(params, 3, rules=wrong)
