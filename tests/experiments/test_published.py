"""Every number of every recipe against the table that was typed from the papers."""

from __future__ import annotations

import importlib
import inspect
from types import SimpleNamespace

import numpy as np
import pytest

from experiments import imagenet, skipinit_lr_batch
from experiments.grid import about
from nf_resnets import schemes
from nf_resnets.__main__ import experiments
from nf_resnets.sweep import image_task
from nf_resnets.sweep.settings import make
from tests.experiments import published


def of(name):
    return importlib.import_module(f"experiments.{name}").EXPERIMENT


def differences(values, table):
    """The names of a table whose value is another."""
    expected = {name: value for name, (value, _) in table.items()}
    return {
        name: (values.get(name, "missing"), value)
        for name, value in expected.items()
        if values.get(name, "missing") != value
    }


@pytest.mark.parametrize("name", published.RECIPES)
def test_the_paper_scale_is_the_published_recipe(name):
    points = of(name).scales["paper"]
    names = dict.fromkeys(name for point in points for name in point)
    values = {name: tuple(dict.fromkeys(p.get(name) for p in points)) for name in names}
    assert differences(values, published.RECIPES[name]) == {}


def test_every_experiment_with_a_paper_scale_is_in_the_table():
    names = {*experiments()} - {"skipinit_lr_batch"}
    assert {n for n in names if "paper" in of(n).scales} == {*published.RECIPES}


@pytest.mark.parametrize("name", sorted({*experiments()} - {"skipinit_lr_batch"}))
def test_every_scale_has_runs_that_differ(name):
    experiment = of(name)
    for points in experiment.scales.values():
        assert len({str(sorted(point.items())) for point in points}) == len(points)
        assert "seed" in about(points)
        with schemes.registered(*experiment.schemes):
            if experiment.typed is make:
                assert all(make(point) for point in points if "model" in point)


@pytest.mark.parametrize("name", published.OF_USERS)
def test_what_users_get_by_default(name):
    module, _, cls = name.rpartition(".")
    found = vars(getattr(importlib.import_module(module), cls)())
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


def schedule_of(name, per_epoch, monkeypatch):
    """The learning rate of a run of the paper's scale, a function of the step."""
    name, _, part = name.partition(" ")
    if name == "skipinit_lr_batch":
        point = {**skipinit_lr_batch.SCALES["paper"][1], "batch_size": 128, "peak_lr": 1.0}
    else:
        point = next(
            point
            for point in of(name).scales["paper"]
            if part in (point["dataset"], point["model"], str(point["batch_size"]), "")
            and point["peak_lr"] == published.RATES[f"{name} {part}".strip()][1].get(0, 0.4)
            or (name == "rescale_imagenet" and point["model"] == part)
        )
    rates = {}
    if "size" in point:  # streamed
        monkeypatch.setitem(
            imagenet.optim.OPTIMIZERS, "sgd", (lambda rate, **_: rates.update(at=rate), "sgd")
        )
        split = SimpleNamespace(num_examples=point["batch_size"] * per_epoch)
        encoded = SimpleNamespace(splits={"train": split, "validation": split}, num_classes=10)
        scheme = {"scheme": point["scheme"] if name != "rescale_imagenet" else "rescalenet"}
        setup = imagenet.setup(lambda _: {}, point | scheme, encoded)
        setup.optimizer({"learning_rate": point["peak_lr"]})
        return rates["at"]
    monkeypatch.setattr(image_task, "make_model", lambda *_: SimpleNamespace(num_branches=0))
    labels = np.zeros(point["batch_size"] * per_epoch)
    split = SimpleNamespace(labels=labels, images=np.zeros((1, 32, 32, 3)))
    kind = image_task.kind_of(make(point), SimpleNamespace(train=split, num_classes=10))
    return image_task._rate(kind, point["peak_lr"])


@pytest.mark.parametrize("name", published.RATES)
def test_the_rate_falls_as_published(name, monkeypatch):
    per_epoch, rates, _ = published.RATES[name]
    schedule = schedule_of(name, per_epoch, monkeypatch)
    for epoch, expected in rates.items():
        # In the first step of the epoch, and in its last.
        for step in (epoch * per_epoch, (epoch + 1) * per_epoch - 1):
            assert float(schedule(step)) == pytest.approx(expected, rel=1e-5), epoch  # float32
