"""VGG networks against loops in NumPy and a PyTorch module, and what they refuse."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import roles
from nf_resnets.models import VGG
from nf_resnets.models.vgg import adaptive_average_pool
from tests.models.reference import (
    logits_and_grads,
    numpy_conv,
    numpy_max_pool,
    numpy_norm,
    torch_names,
)
from tests.models.trees import assert_close, images, quick_jit, random_variables, shapes

VALUES = 1e-5  # of the largest logit; float32's rounding in 16 layers; seen: 3e-6
GRADIENTS = 3e-4  # of a leaf's largest entry; seen: 2e-5

# Table 1 of Simonyan and Zisserman: channels, and M for a max-pool.
D = "64 64 M 128 128 M 256 256 256 M 512 512 512 M 512 512 512 M"
PUBLISHED = {
    11: "64 M 128 M 256 256 M 512 512 M 512 512 M",
    16: D,
    19: D.replace("256 M", "256 256 M").replace("512 M", "512 512 M"),
}


def small(depth, scheme, **options):
    return VGG(depth, scheme, **{"stem_channels": 4, "num_classes": 10, **options})


def numpy_vgg(variables, x, scheme, *, depth, pool_size, train):
    """A VGG network whose last map is at least as large as the pool."""
    tree = jax.tree.map(lambda leaf: np.array(leaf, np.float64), variables)
    params, stats = tree["params"], tree.get("batch_stats", {})

    def bias(name):
        return params[f"bias_{name}"]["vector"] if scheme == "rescalenet" else 0

    x, count = x.astype(np.float64), itertools.count(1)
    for symbol in PUBLISHED[depth].split():
        if symbol == "M":
            x = numpy_max_pool(x, 2, 2)
            continue
        name = f"features_{next(count)}"
        p = params[name]
        assert p["kernel"].shape[3] * 16 == int(symbol)
        x = x if name == "features_1" else x + bias(name)
        x = numpy_conv(x, p["kernel"], 1) + p.get("bias", 0)
        x = np.maximum(numpy_norm(x, params, stats, f"norm_{name}", scheme, train), 0)
    dense = [name for name in ("classifier_1", "classifier_2") if name in params] + ["head"]
    x = x + bias(dense[0])
    size, sides = pool_size, x.shape[1:3]
    pooled = np.empty((len(x), size, size, x.shape[3]))
    for i, j in np.ndindex(size, size):
        rows, columns = (
            slice(at * n // size, -(-(at + 1) * n // size))
            for at, n in zip((i, j), sides, strict=True)
        )
        pooled[:, i, j] = x[:, rows, columns].mean((1, 2))
    x = pooled.reshape(len(x), -1)
    for index, name in enumerate(dense):
        x = x + bias(name) if index else x
        x = x @ params[name]["kernel"] + params[name].get("bias", 0)
        x = x if name == "head" else np.maximum(x, 0)
    return x


@pytest.mark.every(5)
@pytest.mark.parametrize("options", [{"classifier": (12, 8)}, {"classifier": (), "pool_size": 1}])
@pytest.mark.parametrize("scheme", ["plain", "batchnorm", "rescalenet"])
def test_matches_numpy(scheme, options):
    """On images whose last map, 3 x 2, is no multiple of the pool."""
    options = {"pool_size": 2, **options}
    model = small(11, scheme, **options)
    x = images(1, 3, 97, 64, 3)
    variables = random_variables(model, 2, x.shape[1:])
    expected = numpy_vgg(
        variables, x, scheme, depth=11, pool_size=options["pool_size"], train=False
    )
    assert_close(quick_jit(model.apply)(variables, x), expected, VALUES)


def published_vgg(torch, scheme, depth, width, classifier):
    """The authors' network with its names: torchvision's; RescaleNet's with biases as layers."""
    nn = torch.nn

    class Bias(nn.Module):
        def __init__(self, *shape):
            super().__init__()
            self._bias = nn.Parameter(torch.zeros(1, *shape))

        def forward(self, x):
            return x + self._bias

    rescale, norm = scheme == "rescalenet", scheme == "batchnorm"
    features, c_in, names, count = [], 3, {}, itertools.count(1)
    for symbol in PUBLISHED[depth].split():
        if symbol == "M":
            features.append(nn.MaxPool2d(kernel_size=2, stride=2))
            continue
        ours, c_out = f"features_{next(count)}", int(symbol) // 64 * width
        if rescale and features:
            names[rf"^bias_{ours}\.vector$"] = f"features.{len(features)}._bias"
            features.append(Bias(c_in, 1, 1))
        names[rf"^{ours}\."] = f"features.{len(features)}."
        features.append(nn.Conv2d(c_in, c_out, 3, padding=1, bias=scheme == "plain"))
        if norm:
            names[rf"^norm_{ours}\."] = f"features.{len(features)}."
            features.append(nn.BatchNorm2d(c_out))
        features.append(nn.ReLU(inplace=True))
        c_in = c_out
    if rescale:
        names[r"^bias_classifier_1\.vector$"] = f"features.{len(features)}._bias"
        features.append(Bias(c_in, 1, 1))

    dense, d_in = [], 49 * c_in
    for i, d_out in enumerate(classifier, start=1):
        if rescale and i > 1:
            names[rf"^bias_classifier_{i}\.vector$"] = f"classifier.{len(dense)}._bias"
            dense.append(Bias(d_in))
        names[rf"^classifier_{i}\."] = f"classifier.{len(dense)}."
        dense += [nn.Linear(d_in, d_out, bias=not rescale), nn.ReLU()]
        d_in = d_out
    if rescale:
        names[r"^bias_head\.vector$"] = f"classifier.{len(dense)}._bias"
        dense.append(Bias(d_in))
    names[r"^head\."] = f"classifier.{len(dense)}."
    dense.append(nn.Linear(d_in, 10))
    pool = nn.AdaptiveAvgPool2d((7, 7))
    parts = {"features": nn.Sequential(*features), "avgpool": pool, "flat": nn.Flatten()}
    module = nn.Sequential()
    for name, part in (*parts.items(), ("classifier", nn.Sequential(*dense))):
        module.add_module(name, part)
    names |= {r"\.kernel$": ".weight", r"\.scale$": ".weight"}
    names |= {r"\.mean$": ".running_mean", r"\.var$": ".running_var"}
    return module.double(), names


def as_theirs(variables, names, channels):
    """Ours by their names; they flatten the last map by channel, row, column."""
    flat = torch_names(variables, names)
    (first,) = [name for name, a in flat.items() if a.shape[1:] == (49 * channels,)]
    by_position = flat[first].reshape(-1, 7, 7, channels)
    flat[first] = by_position.transpose(0, 3, 1, 2).reshape(flat[first].shape)
    # Biases before dense layers have no positions.
    return {k: a.reshape(1, -1) if k.startswith("classifier") and a.ndim == 4 else a
            for k, a in flat.items()}  # fmt: skip


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("depth", "side", "scheme"),
    [
        (16, 64, "rescalenet"),
        (16, 64, "plain"),
        (16, 64, "batchnorm"),
        (19, 224, "rescalenet"),  # the published size
    ],
)
def test_matches_the_published_module(depth, side, scheme):
    """Also on small images, whose last map the pool to 7 x 7 repeats."""
    torch = pytest.importorskip("torch")
    model = small(depth, scheme, classifier=(24, 16))
    x, labels = images(6, 4, side, side, 3), np.array([0, 3, 9, 3])
    variables = random_variables(model, 1, x.shape[1:])

    module, names = published_vgg(torch, scheme, depth, 4, (24, 16))
    tensors = {k: torch.from_numpy(a.copy()) for k, a in as_theirs(variables, names, 32).items()}
    missing, unexpected = module.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert all(name.endswith("num_batches_tracked") for name in missing)
    expected = module(torch.from_numpy(x.transpose(0, 3, 1, 2).astype(float)))
    torch.nn.functional.cross_entropy(expected, torch.from_numpy(labels)).backward()

    logits, grads, _ = logits_and_grads(model, variables, x, labels)
    assert_close(logits, expected.detach().numpy(), VALUES)
    theirs = {name: p.grad.numpy() for name, p in module.named_parameters()}
    assert_close(as_theirs({"params": grads}, names, 32), theirs, GRADIENTS)


@pytest.mark.parametrize(("height", "width"), [(7, 7), (14, 7), (9, 13), (1, 2), (3, 20)])
def test_the_pool_averages_what_each_position_covers(height, width):
    x = images(3, 2, height, width, 5)
    y = adaptive_average_pool(jnp.asarray(x), 7)
    for i, j in np.ndindex(7, 7):
        rows = [r for r in range(height) if r + 1 > i * height / 7 and r < (i + 1) * height / 7]
        columns = [c for c in range(width) if c + 1 > j * width / 7 and c < (j + 1) * width / 7]
        expected = np.float64(x)[:, rows][:, :, columns].mean((1, 2))
        # Sums of at most nine float32 of order 1.
        np.testing.assert_allclose(y[:, i, j], expected, atol=1e-6)


def test_dropout_is_each_example_s_own():
    """In training only, with keys only; what an example loses does not depend on the others."""
    model = small(11, "plain", classifier=(64, 64), pool_size=1, dropout=0.5)
    x = images(1, 4, 32, 32, 3)
    variables = random_variables(model, 2, x.shape[1:])
    keys = jax.random.split(jax.random.key(0), 4)
    train = quick_jit(lambda x, keys: model.apply(variables, x, train=True, keys=keys))
    whole = train(x, keys)
    # In another place of the batch, and among others, an example loses the same.
    moved = train(np.concatenate([x[2:], 2 * x[:2]]), keys[np.array([2, 3, 1, 0])])
    np.testing.assert_allclose(moved[:2], whole[2:], rtol=1e-5, atol=1e-5)
    assert np.abs(train(x, keys[::-1]) - whole).max() > 0.1
    tested = quick_jit(model.apply)(variables, x)
    assert np.abs(tested - whole).max() > 0.1
    with pytest.raises(ValueError, match="keys=None found; a network with dropout needs"):
        model.apply(variables, x, train=True)
    without = quick_jit(functools.partial(model.clone(dropout=0.0).apply, train=True))
    np.testing.assert_array_equal(without(variables, x), tested)


def test_dropout_differs_from_layer_to_layer():
    """Ones pass two layers that only drop: a quarter remains, four times as large."""
    model = small(11, "plain", classifier=(64, 64), pool_size=1, dropout=0.5, num_classes=64)
    x, zeros = images(1, 16, 32, 32, 3), np.zeros((32, 64), np.float32)
    params = random_variables(model, 2, x.shape[1:])["params"]
    params["classifier_1"] = {"kernel": zeros, "bias": np.ones(64, np.float32)}
    params |= dict.fromkeys(("classifier_2", "head"), {"kernel": np.eye(64), "bias": zeros[0]})
    keys = jax.random.split(jax.random.key(0), 16)
    train = quick_jit(functools.partial(model.apply, train=True))
    logits = train({"params": params}, x, keys=keys)
    assert set(np.unique(logits)) == {0, 4}
    # Five standard errors of 1024 draws.
    assert abs((np.asarray(logits) > 0).mean() - 0.25) < 5 * (0.25 * 0.75 / 1024) ** 0.5


def test_roles():
    """There is no branch; what is not the head is the stem, as initialisers see it."""
    role_map = roles.assign(shapes(small(16, "rescalenet"), (32, 32, 3))["params"])
    assert role_map.num_branches == small(16, "rescalenet").num_branches == 0
    found = [leaf.role for leaf in role_map.leaves]
    # 13 convolutions and 2 dense layers; a bias before each but the first, and before the head.
    assert [found.count(role) for role in ("stem", "channel_bias", "head")] == [15, 15, 2]


@pytest.mark.parametrize("width", [4, pytest.param(16, marks=pytest.mark.slow)])
def test_half_precision(width):
    """Without a barrier behind each convolution, jax 0.12 makes NaN of both on a CPU."""
    model = small(16, "rescalenet", classifier=(24,), stem_channels=width)
    x = images(2, 2, 64, 64, 3)
    variables = random_variables(model, 1, x.shape[1:])
    one, other = (
        quick_jit(m.apply)(variables, x) for m in (model, model.clone(dtype=jnp.bfloat16))
    )
    assert other.dtype == jnp.float32
    # 2**-9 for each of 15 layers' roundings, of the size of what they round.
    assert 0 < np.abs(one - other).max() < 0.05 * np.abs(one).max()


def test_refusals():
    with pytest.raises(ValueError, match="depth=18 found; a VGG network has 11, 13, 16 or 19"):
        VGG(18)
    with pytest.raises(ValueError, match=r"classifier=\(4096, 0\) found; expected 1 or more"):
        VGG(16, classifier=(4096, 0))
    with pytest.raises(ValueError, match="pool_size=0 found; expected 1 or more"):
        VGG(16, pool_size=0)
    with pytest.raises(ValueError, match="'fixup' is for .* networks; expected one for plain"):
        VGG(16, "fixup")
    with pytest.raises(ValueError, match=r"images of shape \(2, 32, 31, 3\) found; a VGG network"):
        shapes(VGG(16), (32, 31, 3))
