"""RescaleNet on ImageNet as a user runs it, and what its recipe does."""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import rescale_imagenet as rescale
from experiments.experiment import Results
from experiments.main import settings_of
from nf_resnets import init, optim, schemes
from tests.experiments.as_a_user import lines_of, make

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_smoke_makes_both_kinds_of_networks(tmp_path):
    out = tmp_path / "out"
    shown = make("rescale_imagenet", "--scale", "smoke", "--variants", "rescalenet", "--out", out)
    rows = lines_of(out / "rows.csv")
    assert [row["network"] for row in rows] in (["resnet50", "vgg19"], ["vgg19", "resnet50"])
    assert {row["status"] for row in rows} == {"finished"}
    published = {row["network"]: row["published_accuracy"] for row in rows}
    assert published == {"resnet50": "76.57", "vgg19": ""}
    assert "76.57" in shown and "published: on ImageNet, by the paper" in shown


PAPER = rescale.SCALES["paper"]
ROWS = [(network, name) for network in rescale.NETWORKS for name in rescale.VARIANTS]


STREAMED = SimpleNamespace(  # 1,281,167 // 1,024
    steps=lambda batch_size, epochs=1: 1251 * epochs, num_classes=10, encoded=None, reading=None
)


def caught_optimizer(monkeypatch, settings, network, name):
    """The optimizer of a row's program, and the schedule's boundaries and warm-up, in steps."""
    seen = {}

    def step_decay(rate, boundaries, factor):
        seen.update(boundaries=boundaries, factor=factor)
        return lambda step: rate

    def warmup(schedule, warmup_steps, num_steps):
        seen["warmup"] = warmup_steps
        return schedule

    monkeypatch.setattr(rescale.optim, "step_decay", step_decay)
    monkeypatch.setattr(rescale.optim, "warmup", warmup)
    settings = dataclasses.replace(settings, networks=(network,), variants=(name,))
    point = rescale.points(settings, STREAMED, ())[0]
    setup = rescale.setup(settings, STREAMED, point)
    seen["model"] = setup.model
    return setup.optimizer({"learning_rate": 1.0}), seen


@pytest.mark.parametrize(("network", "name"), ROWS)
def test_each_network_has_its_published_recipe(network, name, monkeypatch):
    vgg = network == "vgg19"
    _, seen = caught_optimizer(monkeypatch, PAPER, network, name)
    assert seen["warmup"] == 5 * 1251
    # 30, 60 and 90 of the 100 epochs after the warm-up; VGG without normalisation 60 and 90.
    first = [] if vgg and name != "batchnorm" else [35]
    assert seen["boundaries"] == [epoch * 1251 for epoch in [*first, 65, 95]]
    assert rescale.rate_of(PAPER, network) == pytest.approx(0.04 if vgg else 0.4)
    model = seen["model"]
    assert model.dropout == (0.5 if vgg else 0.3)
    assert schemes.get(model.scheme).anatomy.dropout
    if not vgg:
        assert model.conv_dropout == 0.03
    assert PAPER.seeds == (0, 1, 2, 3, 4, 5) and PAPER.epochs == 105


def test_branches_before_dropout_are_drawn_for_it():
    schemes_of = [
        rescale.scheme_of(PAPER, "resnet50", name) for name in ("rescalenet", "uncalibrated")
    ]
    for scheme in schemes_of:
        # The last two stages of ResNet-50 have 6 and 3 of its 16 blocks.
        assert scheme.init.func is init.rescalenet
        assert scheme.init.keywords == {"dropout": (0.0,) * 7 + (0.03,) * 9}
    assert schemes_of[1].calibrate is None
    # Compiled once, not for each run.
    assert rescale.scheme_of(PAPER, "resnet50", "rescalenet") is schemes_of[0]


def test_vggs_weights_are_he_fan_out_with_the_head():
    tree = {
        "features_1": {"kernel": jnp.ones((3, 3, 8, 64))},
        "head": {"kernel": jnp.ones((64, 100)), "bias": jnp.ones(100)},
    }
    drawn = rescale.scheme_of(PAPER, "vgg19", "rescalenet").init(tree, 0, key=jax.random.key(0))
    # Within four standard errors, sqrt(1 / 2n) of a deviation.
    for layer, fan_out in (("features_1", 9 * 64), ("head", 100)):
        kernel = np.asarray(drawn[layer]["kernel"])
        error = 4 * (2 * kernel.size) ** -0.5
        assert kernel.std() == pytest.approx((2 / fan_out) ** 0.5, rel=error)


@pytest.mark.parametrize("scale", ["paper", "laptop"])
def test_only_the_paper_scale_decays_all_of_batch_norms_parameters(scale, monkeypatch):
    settings = dataclasses.replace(rescale.SCALES[scale], stem_channels=4)
    optimizer, seen = caught_optimizer(monkeypatch, settings, "resnet50", "batchnorm")
    shapes = jax.eval_shape(seen["model"].init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))
    shapes = {name: shapes["params"][name] for name in ("stem", "norm_stem", "head")}
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape), shapes)
    zeros = jax.tree.map(np.zeros_like, params)
    updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    moved = {
        path[-1].key: bool(np.abs(update).max() > 0)
        for path, update in jax.tree_util.tree_flatten_with_path(updates)[0]
    }
    decays = scale == "paper"
    assert moved == {"kernel": True, "bias": decays, "scale": decays}


def test_the_committed_rows_are_those_of_the_laptop_scale():
    kept = json.loads((ROOT / "results/rescale_imagenet-laptop/settings.json").read_text())
    laptop = json.loads(json.dumps(dataclasses.asdict(rescale.SCALES["laptop"])))
    changed = {
        field
        for field in {*kept["settings"], *laptop} - set(rescale.EXPERIMENT.grid)
        if kept["settings"].get(field) != laptop.get(field)
    }
    assert changed == set()
    for name in rescale.VARIANTS:
        own = name in ("rescalenet", "uncalibrated")
        for network in ("resnet50", "vgg19"):
            rates = rescale.dropout_of(rescale.SCALES["laptop"], network, name)
            assert rates == ((0.03, 0.3) if own else (0.0, 0.0))
            assert rescale.drops_of(rescale.SCALES["laptop"], network, name) == (0.3, 0.6, 0.9)
            scheme = rescale.scheme_of(rescale.SCALES["laptop"], network, name)
            assert scheme.init is rescale.VARIANTS[name].init


def test_biases_and_multipliers_do_not_decay():
    settings = rescale.SCALES["smoke"]
    model = rescale.make_model(settings, "resnet50", "rescalenet", 10)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))["params"]
    decays = optim.decay_mask(shapes, undecayed=optim.UNDECAYED)
    named = {
        "/".join(key.key for key in path): value
        for path, value in jax.tree_util.tree_flatten_with_path(decays)[0]
    }
    assert all(type(value) is bool for value in named.values())
    kernels = {name for name, value in named.items() if name.endswith("kernel")}
    assert {name for name, value in named.items() if value} == kernels and kernels
    others = set(named) - kernels
    assert any("bias" in name for name in others) and any("multiplier" in name for name in others)


def test_the_calibrated_variant_differs_in_its_biases_only():
    calibrated, other = rescale.VARIANTS["rescalenet"], rescale.VARIANTS["uncalibrated"]
    assert calibrated.anatomy == other.anatomy and calibrated.init is other.init
    assert calibrated.calibrate is not None and other.calibrate is None
    assert np.isclose(sum(rescale.PUBLISHED.values()), 76.57 + 77.55)


def test_the_table_has_the_spread_of_several_runs():
    row = {"network": "resnet50", "variant": "rescalenet", "status": "finished"}
    accuracies = ("0.70", "0.74")
    rows = [row | {"test_accuracy": of, "train_accuracy": "0.5"} for of in accuracies]

    def table(*rows):
        return rescale.table(Results(rescale.SCALES["laptop"], None, rows))

    # The sample's standard deviation of 70 and 74 is 2 sqrt(2).
    assert "72.0 ± 2.8 (2 runs)" in table(*rows)
    gone = row | {"status": "diverged", "test_accuracy": "nan", "train_accuracy": "nan"}
    assert "72.0 ± 2.8 (2 runs, 1 diverged)" in table(*rows, gone)
    assert "70.0 " in table(rows[0]) and "±" not in table(rows[0])


def test_a_network_that_there_is_not_is_refused():
    with pytest.raises(SystemExit, match="--networks vgg16 found; expected some of resnet50"):
        settings_of(rescale.EXPERIMENT, rescale.Command(networks=("vgg16",)))
