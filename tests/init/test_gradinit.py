"""GradInit: its steps against NumPy, the constraint that it holds, stacked weights."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nf_resnets import init, schemes
from nf_resnets.init.gradinit import SCHEME_STEPS
from tests.init.test_metainit import (
    CLASSES,
    DEPTH,
    IMAGES,
    _deep,
    _deep_params,
    _linear,
    _linear_params,
    _norms,
)
from tests.models.trees import quick_jit

LABELS = np.random.default_rng(1).integers(0, CLASSES, len(IMAGES))
BATCH = IMAGES[:30], LABELS[:30]
BEFORE, AFTER = slice(0, 20), [*range(10), *range(20, 30)]


def softmax_regression(kernel, examples):
    """Loss and gradient in float64."""
    x = BATCH[0].reshape(30, -1)[examples].astype("f8")
    labels = BATCH[1][examples]
    logits = x @ kernel
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    loss = -np.log(p[np.arange(len(labels)), labels]).mean()
    return loss, x.T @ (p - np.eye(CLASSES)[labels]) / len(labels)


def scales_by_hand(kernel, steps, rate, eta, gamma, least):
    """Algorithm 1 for one weight, with slopes that are differences."""
    scale, moments, counts = 1.0, np.zeros((2, 2)), np.zeros(2)
    visited = []
    for _ in range(steps):
        _, g = softmax_regression(scale * kernel, BEFORE)
        norm = np.linalg.norm(g)
        visited.append((scale, norm))
        phase = int(norm <= gamma)

        def objective(s, phase=phase, g=g, norm=norm):
            if phase == 0:
                return np.linalg.norm(softmax_regression(s * kernel, BEFORE)[1])
            return softmax_regression(s * kernel - eta * g / norm, AFTER)[0] / eta

        slope = (objective(scale + 1e-5) - objective(scale - 1e-5)) / 2e-5
        slope = np.clip(slope, -1, 1)
        counts[phase] += 1
        moments[phase] += (1 - np.array([0.9, 0.999])) * ([slope, slope**2] - moments[phase])
        first, second = moments[phase] / (1 - np.array([0.9, 0.999]) ** counts[phase])
        scale = max(scale - rate * first / (np.sqrt(second) + 1e-8), least)
    visited.append((scale, np.linalg.norm(softmax_regression(scale * kernel, BEFORE)[1])))
    within = [s for s, norm in visited if norm <= gamma]
    return (within or [scale])[-1], counts


@pytest.mark.parametrize(
    ("gamma", "phases"),
    [pytest.param(100.0, (0, 7), marks=pytest.mark.slow), (0.1, (7, 0)), (0.775, (5, 2))],
)
def test_steps_against_numpy(gamma, phases):
    kernel = _linear_params()["head"]["kernel"]
    numbers = {"steps": 7, "eta": 0.2, "gamma": gamma, "least": 0.01}
    expected, counts = scales_by_hand(kernel.astype("f8"), 7, 0.1, 0.2, gamma, 0.01)
    result = init.gradinit(_linear, {"head": {"kernel": kernel}}, *BATCH, learning_rate=0.1,
                           **numbers)["head"]["kernel"]  # fmt: skip
    assert tuple(counts) == phases
    # Differences of 1e-5 in float64, and seven steps of Adam in float32.
    np.testing.assert_allclose(result, expected * kernel, rtol=2e-5)
    assert abs(expected - 1) > 0.05


def gradient_norm(apply_fn, params):
    def loss(params):
        logits = apply_fn({"params": params}, BATCH[0][BEFORE])
        return optax.softmax_cross_entropy_with_integer_labels(logits, BATCH[1][BEFORE]).mean()

    return float(optax.tree.norm(jax.grad(loss)(params)))


def unrolled(variables, images):
    """``_deep`` with a leaf for each layer."""
    params = variables["params"]
    layers = [params["stage_1"][f"block_{k}"]["conv_1"] for k in range(DEPTH)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
    return _deep({"params": {**params, "stage_1": {"rest": {"conv_1": stacked}}}}, images)


def test_the_constraint_holds_after_its_steps_and_stacked_weights_are_the_unstacked():
    params, gamma = _deep_params(gain=1.6), 1.0
    params = jax.tree.map(jnp.asarray, params)
    assert gradient_norm(_deep, params) > 10 * gamma
    how = {"steps": 60, "learning_rate": 0.02}
    result = quick_jit(lambda tree: init.gradinit(_deep, tree, *BATCH, **how))(params)
    assert gradient_norm(_deep, result) <= gamma * (1 + 1e-5)  # computed in another order
    # Each weight keeps its direction; biases stay.
    factors = {path: _norms(result)[path] / norm for path, norm in _norms(params).items()}
    layers = result["stage_1"]["rest"]["conv_1"]
    before = params["stage_1"]["rest"]["conv_1"]
    np.testing.assert_array_equal(layers["bias"], before["bias"])
    scales = factors["stage_1/rest/conv_1/kernel"]
    np.testing.assert_allclose(
        layers["kernel"], scales.reshape(-1, 1, 1) * np.asarray(before["kernel"]), rtol=1e-5
    )
    assert len(set(scales.round(3))) == DEPTH

    alone = {f"block_{k}": {"conv_1": jax.tree.map(lambda leaf, k=k: leaf[k], before)}
             for k in range(DEPTH)}  # fmt: skip
    rules = init.Rules(stem="^stem", head="^head", branch=r"stage_1/block_(\d+)/conv_(\d+)")
    found = quick_jit(lambda tree: init.gradinit(unrolled, tree, *BATCH, **how, rules=rules))(
        {**params, "stage_1": alone}
    )
    for k in range(DEPTH):
        np.testing.assert_allclose(
            found["stage_1"][f"block_{k}"]["conv_1"]["kernel"], layers["kernel"][k], rtol=1e-3
        )


def test_the_first_step_then_lowers_the_loss_more():
    """What the scales are chosen by: the loss after a step of length 0.1, on images half new."""
    kernel = 0.3 * _linear_params()["head"]["kernel"]
    result = init.gradinit(_linear, {"head": {"kernel": kernel}}, *BATCH, steps=40, gamma=10.0)

    def after(kernel):
        _, g = softmax_regression(kernel, BEFORE)
        return softmax_regression(kernel - 0.1 * g / np.linalg.norm(g), AFTER)[0]

    assert after(np.asarray(result["head"]["kernel"], "f8")) < after(kernel.astype("f8"))


def test_the_scheme_has_drawn_labels_and_fewer_steps():
    params = _linear_params()
    result = schemes.get("gradinit").calibrate(_linear, params, IMAGES)
    labels = jax.random.randint(jax.random.key(0), (32,), 0, CLASSES)
    expected = init.gradinit(_linear, params, IMAGES, labels, steps=SCHEME_STEPS)
    assert jax.tree.all(jax.tree.map(np.array_equal, result, expected))
    assert not np.array_equal(result["head"]["kernel"], params["head"]["kernel"])


def test_refusals():
    def tune(params=None, images=BATCH[0], labels=BATCH[1], **options):
        return init.gradinit(_linear, params or _linear_params(), images, labels, **options)

    for options, message in (
        ({"steps": 0}, "steps=0 found; expected 1 or more"),
        ({"gamma": 0.0}, "gamma=0.0 found; expected a finite number above 0"),
        ({"least": -1.0}, "least=-1.0 found; expected a finite number above 0"),
        ({"images": IMAGES[:2], "labels": LABELS[:2]}, "expected 3 images or more, and a label"),
        ({"labels": BATCH[1] - 1}, "labels has the value -1; expected one integer"),
        ({"labels": LABELS[:29]}, r"labels \[29\] found; expected 3 images"),
        ({"images": IMAGES[:0]}, r"a batch of shape \(0, 2, 2, 3\) found"),
        ({"params": {"params": _linear_params()}}, "params has the key 'params'"),
        ({"params": {"head": {"bias": np.ones(3, "f4")}}}, "no layer's weight found in params"),
        ({"images": BATCH[0] * np.nan}, "tuned scales at leaf 'head/kernel' are not finite"),
    ):
        with pytest.raises(ValueError, match=message):
            tune(**{"steps": 1, **options})


def test_inputs_that_are_dicts_and_leaves_that_are_no_floats():
    """Of an Equinox module, say; the network is called with them as they are."""
    params = {"head": np.ones((2, 3), np.float32), "steps": np.int32(7), "act": jax.nn.relu}
    rules = init.Rules(head="^head")

    def apply_fn(variables, inputs):
        of = variables["params"]
        assert of["steps"] == 7 and of["act"] is jax.nn.relu
        return inputs["x"] @ of["head"]

    inputs, labels, key = {"x": np.eye(4, 2)}, np.arange(4) % 3, jax.random.key(0)

    def tune(apply_fn, heads):
        tree = {**params, "head": heads}
        return (
            init.gradinit(apply_fn, tree, inputs, labels, steps=1, rules=rules)["head"],
            init.metainit(apply_fn, tree, inputs, key=key, steps=1, rules=rules)["head"],
        )

    found = jax.eval_shape(lambda head: tune(apply_fn, head), params["head"])
    assert {(leaf.shape, leaf.dtype.name) for leaf in found} == {((2, 3), "float32")}
    for of in (init.gradinit, init.metainit):
        more = {"labels": labels} if of is init.gradinit else {"key": key}
        with pytest.raises(TypeError, match="the network gives a tuple; expected one array"):
            of(lambda *each: (apply_fn(*each),), params, inputs, **more, rules=rules)
    for of in (init.lsuv, init.rescale_biases):
        with pytest.raises(TypeError, match="apply_fn does not take .*mutable.*; expected model"):
            of(apply_fn, params, np.ones((4, 2)))
