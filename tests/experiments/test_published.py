"""Every number of every recipe against the table that was typed from the papers."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import pkgutil
from types import SimpleNamespace

import numpy as np
import pytest

import experiments
from experiments import (
    fixup_fig3_depth,
    fixup_fig4_ablation,
    fixup_table1_resnet110,
    fixup_table2_imagenet,
    fixup_table3_translation,
    fixup_table4_regularized,
    rescale_multipliers,
    skipinit_lr_batch,
    skipinit_table1_depth,
    skipinit_table2_placement,
)
from experiments.experiment import Point
from experiments.runs import ExperimentTask
from nf_resnets import optim, schemes, training
from nf_resnets.sweep import image_task
from nf_resnets.sweep.settings import make
from tests.experiments import published

# What is measured at initialisation or in theory, with sizes that no paper prescribes.
OF_OURS = {
    "theory_backward", "theory_bounds", "theory_signal", "theory_stable_rate", "theory_updates"
}  # fmt: skip


def flattened(value, prefix=""):
    """Every number of nested settings by its dotted name."""
    if dataclasses.is_dataclass(value):
        pairs = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    elif isinstance(value, dict):
        pairs = list(value.items())
    else:
        return {prefix: value}
    found = {}
    for name, inside in pairs:
        found |= flattened(inside, f"{prefix}.{name}" if prefix else name)
    return found


def module_of(name):
    return importlib.import_module(f"experiments.{name}")


def values(table):
    return {name: value for name, (value, _) in table.items()}


def differences(found, table):
    """Each name whose value is another than the table's, or that only one of them has."""
    expected = values(table)
    return {
        name: (found.get(name, "missing"), expected.get(name, "not in the table"))
        for name in {*found, *expected}
        if found.get(name, "missing") != expected.get(name, "not in the table")
    }


@pytest.mark.parametrize("name", published.RECIPES)
def test_the_paper_scale_is_the_published_recipe(name):
    settings = flattened(module_of(name).SCALES["paper"])
    assert differences(settings, published.RECIPES[name]) == {}


def test_every_experiment_with_a_paper_scale_is_in_the_table():
    found = set()
    for module in pkgutil.iter_modules(experiments.__path__):
        a_paper = module.name.startswith(("fixup", "skipinit", "rescale", "theory"))
        if a_paper and "paper" in module_of(module.name).SCALES:
            found.add(module.name)
    assert found == set(published.RECIPES) | OF_OURS


def test_every_entry_says_where_it_is_from():
    def places(table):
        if isinstance(table, tuple):
            yield table[-1]
        elif isinstance(table, dict):
            for inside in table.values():
                yield from places(inside)

    for table in (
        published.RECIPES, published.WMT, published.RATES, published.OF_USERS,
        published.OF_FUNCTIONS, published.RESULTS, published.ACCURACIES,
    ):  # fmt: skip
        assert all(isinstance(place, str) and place for place in places(table))


def test_the_scale_of_wmt():
    scales = fixup_table3_translation.SCALES
    paper, wmt = flattened(scales["paper"]), flattened(scales["paper_wmt"])
    changed = {name: value for name, value in wmt.items() if value != paper[name]}
    assert differences(changed, published.WMT) == {}


@pytest.mark.parametrize("name", published.RESULTS)
def test_published_errors_stand_beside_ours(name):
    variants = module_of(name).VARIANTS
    errors, _ = published.RESULTS[name]
    found = {key: variant.published for key, variant in variants.items() if variant.published}
    assert found == errors


@pytest.mark.parametrize("name", published.ACCURACIES)
def test_published_accuracies_stand_beside_ours(name):
    found = module_of(name).PUBLISHED
    accuracies, _ = published.ACCURACIES[name]
    assert found == accuracies


def test_mixup_ablations_and_other_variants():
    mixup, _ = published.MIXUP
    for name, variant in fixup_table2_imagenet.VARIANTS.items():
        assert variant.mixup == (mixup[variant.scheme] if name.endswith("mixup") else 0.0)
    scales = {
        name: scheme.init.keywords["scale"]
        for name, scheme in fixup_fig4_ablation.VARIANTS.items()
        if isinstance(scheme.init, functools.partial) and "scale" in scheme.init.keywords
    }
    assert scales == published.ABLATIONS[0]
    rates = {name: each.rate for name, each in fixup_table1_resnet110.VARIANTS.items()}
    assert {name: rate for name, rate in rates.items() if rate != 1} == published.XAVIER_RATES[0]
    anatomies = {name: each.anatomy for name, each in fixup_fig4_ablation.VARIANTS.items()}
    bare = [name for name, each in anatomies.items() if each.multiplier and not each.scalar_biases]
    ours = set(fixup_fig4_ablation.VARIANTS) - set(
        published.RECIPES["fixup_fig4_ablation"]["variants"][0]
    )
    assert set(bare) - ours == set(published.WITHOUT_BIASES[0])
    assert [name for name, each in anatomies.items() if not each.branches] == ["no_branches"]
    regularized = [
        name
        for name, each in fixup_table4_regularized.VARIANTS.items()
        if each.regularized and each.published
    ]
    plain = (
        fixup_table4_regularized.VARIANTS["fixup"],
        fixup_table4_regularized.VARIANTS["batchnorm"],
    )
    assert not any(each.regularized for each in plain)
    assert all(
        each.slow_scalars for each in fixup_table4_regularized.VARIANTS.values() if each.published
    )
    assert tuple(regularized) == published.REGULARIZED[0]
    for name, factor in published.BLOCK_FACTORS[0].items():
        anatomy = schemes.get(skipinit_table2_placement.LINES[name].scheme).anatomy
        assert (anatomy.residual, anatomy.identity, anatomy.norm) == (factor, factor, "batch")
    assert not rescale_multipliers.VARIANTS["without"].anatomy.multiplier
    assert rescale_multipliers.VARIANTS["multipliers"].anatomy.multiplier
    without = [
        name
        for module in (skipinit_table1_depth, skipinit_table2_placement)
        for name, line in module.LINES.items()
        if not line.l2
    ]
    assert tuple(without) == published.WITHOUT_L2[0]
    epochs = fixup_table2_imagenet.MORE_EPOCHS
    assert {depth: 100 * epochs.get(depth, 1) for depth in (50, 101)} == {50: 100, 101: 200}  # 4.2


@pytest.mark.parametrize("name", published.OF_USERS)
def test_what_users_get_by_default(name):
    module, _, cls = name.rpartition(".")
    found = flattened(getattr(importlib.import_module(module), cls)())
    assert differences(found, published.OF_USERS[name]) == {}


@pytest.mark.parametrize("name", published.OF_FUNCTIONS)
def test_defaults_of_arguments(name):
    module, _, function = name.rpartition(".")
    called = getattr(importlib.import_module(module), function)
    parameters = inspect.signature(called).parameters
    numbers = {
        key: parameter.default
        for key, parameter in parameters.items()
        if key in published.OF_FUNCTIONS[name]
    }
    assert differences(numbers, published.OF_FUNCTIONS[name]) == {}


def test_slow_leaves_and_calibration():
    slow, factor, _ = published.SLOW
    for name in schemes.names():
        scheme = schemes.get(name)
        group = scheme.scalars
        found = tuple(
            tuple(role.value for role in roles) for roles in (group.roles, group.bias_vectors)
        )
        assert found == slow.get(name, ((), ())), name
        assert scheme.scalar_factor == factor or name.startswith("rescalenet")
    images, _ = published.CALIBRATION_IMAGES
    assert images == training.CALIBRATION_EXAMPLES


def data_of(per_epoch, batch_size):
    """What an experiment loads, of images in memory or streamed, with so many steps an epoch."""
    split = SimpleNamespace(
        labels=np.zeros(batch_size * per_epoch), images=np.zeros((1, 32, 32, 3))
    )
    return SimpleNamespace(
        train=split,
        num_classes=10,
        steps=lambda batch_size, epochs=1: epochs * per_epoch,
        encoded=None,
        reading=None,
    )


def of_experiment(name, per_epoch):
    """The optimizer of an experiment's paper scale, and the learning rate of its run."""
    name, _, part = name.partition(" ")
    experiment, choose = module_of(name).EXPERIMENT, {}
    if name == "fixup_table2_imagenet":
        choose = {"depths": (int(part),), "variants": ("fixup",)}
    elif name == "fixup_table4_regularized":
        choose = {"parts": (part,), "variants": ("fixup_regularized",)}
    elif name == "skipinit_imagenet":
        choose = {"batches": (int(part),), "variants": ("skipinit",), "rates": (0.1,)}
    elif name == "rescale_imagenet":
        choose = {"networks": (part,), "variants": ("rescalenet",)}
    elif name == "skipinit_table1_depth":
        choose = {"depths": (16,), "lines": ("skipinit",), "log2_rates": (0,)}
    settings = dataclasses.replace(experiment.scales["paper"], **choose)
    loaded = data_of(per_epoch, 128)
    loaded = {part: loaded} if name == "fixup_table4_regularized" else loaded
    point = next(
        each
        for each in experiment.points(settings, loaded, ())
        if each.key.get("variant") not in ("batchnorm", "xavier_tenth", "xavier_hundredth")
    )
    setup = experiment.setup(settings, loaded, point)
    return setup.optimizer, point.start.hyper["learning_rate"]


def of_sweep(per_epoch, monkeypatch):
    """The optimizer of the sweep over batch sizes, at batch 128."""
    monkeypatch.setattr(image_task, "make_model", lambda *_: SimpleNamespace(num_branches=0))
    base = skipinit_lr_batch.SCALES["paper"].base
    settings = make({**base, "batch_size": 128, "peak_lr": 1.0})
    kind = image_task.kind_of(settings, data_of(per_epoch, 128))
    return functools.partial(image_task.optimizer, kind), 1.0


@pytest.mark.parametrize("name", published.RATES)
def test_the_rate_falls_as_published(name, monkeypatch):
    per_epoch, rates, _ = published.RATES[name]
    if name == "skipinit_lr_batch":
        optimizer, rate = of_sweep(per_epoch, monkeypatch)
    else:
        optimizer, rate = of_experiment(name, per_epoch)
    seen = {}

    def sgd(learning_rate, **options):
        seen.update(rate=learning_rate, **options)

    monkeypatch.setitem(optim.OPTIMIZERS, "sgd", (sgd, "sgd"))
    optimizer({"learning_rate": rate, "momentum": 0.9, "weight_decay": 5e-4, "scalar_factor": 0.1})
    for epoch, expected in rates.items():
        # In the first step of the epoch, and in its last.
        for step in (epoch * per_epoch, (epoch + 1) * per_epoch - 1):
            assert float(seen["rate"](step)) == pytest.approx(expected, rel=1e-5), epoch  # float32
    assert seen["momentum"] == 0.9


@pytest.mark.parametrize("name", sorted({*published.RECIPES} - {"skipinit_lr_batch"}))
def test_the_settings_of_every_scale_make_other_runs(name):
    experiment = module_of(name).EXPERIMENT
    point = Point(dict.fromkeys(experiment.key, 0), "", None, None, 1, 1)
    keys = {
        ExperimentTask(experiment, settings, None).add([point])[0].key
        for settings in experiment.scales.values()
    }
    # Of figure 3's runs on CIFAR-10 and on digits, one scale has some and the other all.
    assert len(keys) == len(experiment.scales) - 2 * (name == "fixup_fig3_depth")


def test_batches_are_halved_at_10000_layers():
    settings = dataclasses.replace(
        fixup_fig3_depth.SCALES["paper"], depths=(1000, 10_000), schemes=("fixup",)
    )
    points = fixup_fig3_depth.points(settings, data_of(390, 128), ())
    found = {point.key["depth"]: point.batch_size for point in points}
    assert found == {1000: 128, 10_000: 64}  # Fixup 4.1


def test_the_ghost_batches_of_the_sweeps():
    paper = skipinit_table1_depth.SCALES["paper"]
    assert paper.batch_size // paper.bn_groups == 64
    settings = make({**skipinit_lr_batch.SCALES["paper"].base, "batch_size": 128})
    assert (settings.ghost_batch, settings.momentum, settings.weight_decay) == (64, 0.9, 5e-4)
    assert settings.steps == 0 and settings.schedule == "halving"
