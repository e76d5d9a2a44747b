"""Fixup as its authors' code has it: draws, slow leaves, steps."""

import dataclasses
import math

import jax
import numpy as np
import optax
import pytest

from nf_resnets import init, models, optim, roles
from tests.models.reference import torch_names
from tests.models.trees import assert_close, filled_with, images, quick_jit, random_variables


@pytest.mark.parametrize("shape", [(3, 3, 3, 16), (7, 7, 3, 64)], ids=["CIFAR", "ImageNet"])
def test_the_stem(shape):
    """PyTorch's default: uniform, of variance ``1/(3 fan_in)``."""
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
    jax.tree.map(np.testing.assert_array_equal, theirs["stage_1"], ours["stage_1"])
    given = init.fixup(params, 1, published=True)
    np.testing.assert_array_equal(given["stem"]["kernel"], params["stem"]["kernel"])


TRANSFORMER = models.Transformer(
    vocab_size=11, num_layers=2, d_model=32, num_heads=2, d_ff=48, scheme="fixup_published"
)


@pytest.mark.parametrize("keyed", [False, True])
def test_the_transformers_attention(keyed):
    """The bound of the joint matrix ``[3D, D]`` is ``sqrt(6/4D)``; typed from the authors' code."""
    params = filled_with(1.0, TRANSFORMER)
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


def test_thirty_steps_of_the_authors_module():
    """Their parameter groups, by their names, in PyTorch and float64, away from Fixup's zeros."""
    torch = pytest.importorskip("torch")
    from tests.trained.test_from_torch import FIXUP
    from tests.trained.torch_modules import CLASSES, FixupResNet

    rate, decay, steps = 0.1, 5e-4, 30
    model = models.CifarResNet(8, stem_channels=16, num_classes=CLASSES, scheme="fixup_published")
    x, labels = images(0, 7, 8, 8, 3), np.arange(7)
    params = random_variables(model, 1, branch=1.0)["params"]
    optimizer = optim.sgd(rate, momentum=0.9, weight_decay=decay, scheme="fixup_published")

    def loss_fn(params):
        logits = model.apply({"params": params}, x)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def step(both, _):
        params, state = both
        loss, grads = jax.value_and_grad(loss_fn)(params)
        updates, state = optimizer.update(grads, state, params)
        return (optax.apply_updates(params, updates), state), loss

    run = quick_jit(
        lambda params: jax.lax.scan(step, (params, optimizer.init(params)), length=steps)
    )
    (after, _), losses = run(params)

    module = FixupResNet((1, 1, 1), width=16).double()
    renamed = torch_names({"params": params}, FIXUP)
    module.load_state_dict({name: torch.tensor(array) for name, array in renamed.items()})
    named = list(module.named_parameters())
    slow = [p for n, p in named if "bias" in n or "scale" in n]
    others = [p for n, p in named if not ("bias" in n or "scale" in n)]
    theirs = torch.optim.SGD(
        [{"params": slow, "lr": rate / 10}, {"params": others}],
        lr=rate, momentum=0.9, weight_decay=decay,
    )  # fmt: skip
    inputs, targets = torch.tensor(np.float64(x).transpose(0, 3, 1, 2)), torch.tensor(labels)
    for loss in losses:
        theirs.zero_grad()
        expected = torch.nn.functional.cross_entropy(module(inputs), targets)
        expected.backward()
        theirs.step()
        # Thirty steps of float32, whose rounding grows a little from step to step; logits of 10 are
        # rounded to 1e-6.
        assert loss == pytest.approx(expected.item(), rel=1e-4, abs=3e-6)
    found = torch_names({"params": after}, FIXUP)
    assert_close(found, {name: p.detach().numpy() for name, p in named}, 1e-3)


def test_our_rules_can_be_changed():
    """One rule at a time: the others may match nothing, the changed one must match."""
    params = filled_with(1.0, models.CifarResNet(8))
    params["teacher"] = {"kernel": np.ones((3, 3, 4, 4), "f4")}
    result = init.fixup(params, 3, rules=dataclasses.replace(roles.OUR_RULES, keep=r"^teacher/"))
    np.testing.assert_array_equal(result["teacher"]["kernel"], params["teacher"]["kernel"])
    wrong = dataclasses.replace(roles.OUR_RULES, keep=r"^teachers/", stem=r"^(?:stem|teacher)/")
    with pytest.raises(ValueError, match=r"rules.keep='\^teachers/' matches no leaf"):
        init.fixup(params, 3, rules=wrong)
