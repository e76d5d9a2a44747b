"""Runs of images: what follows from their settings, and what is refused before anything starts."""

from __future__ import annotations

import dataclasses
import math

import jax
import numpy as np
import pytest

from nf_resnets import data
from nf_resnets.sweep import image_task, make_sweep
from nf_resnets.sweep.settings import make
from tests.models.trees import quick_jit
from tests.sweep import small


@pytest.mark.parametrize("scheme", ["fixup", "rescalenet"])
def test_rescalenets_biases_and_multipliers_do_not_decay(scheme):
    kind = image_task.kind_of(make({**small.BASE, "scheme": scheme}), small.load("digits"))
    model = image_task.make_model(kind, small.load("digits"))
    shapes = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, 8, 8, 1)))["params"]
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, leaf.dtype), shapes)
    optimizer = image_task.optimizer(kind, image_task.hyper_of(kind.settings))
    zeros = jax.tree.map(np.zeros_like, params)
    updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    for path, update in jax.tree_util.tree_flatten_with_path(updates)[0]:
        # Without a gradient, whatever moves has decayed; Fixup's code decays all.
        expected = scheme == "fixup" or path[-1].key == "kernel"
        assert bool(np.abs(update).max() > 0) == expected, jax.tree_util.keystr(path)


@pytest.mark.parametrize(
    ("schedule", "rate"),
    [
        ("constant", lambda t: 1),
        ("cosine", lambda t: (1 + math.cos(math.pi * t / 88)) / 2),
        ("step", lambda t: {44: 0.1, 66: 0.01}.get(t, 1)),
        ("inverse_sqrt", lambda t: (22 / max(t + 1, 22)) ** 0.5),
    ],
)
def test_the_rate_follows_the_schedule(schedule, rate):
    """Of 88 steps, of which the first 22 are the warm-up."""
    settings = make({**small.BASE, "epochs": 4, "schedule": schedule, "warmup_epochs": 1})
    kind = image_task.kind_of(settings, small.load("digits"))
    rule = image_task.optimizer(kind, {"learning_rate": 1.0, "momentum": 0.0})
    ones = {"head": {"kernel": np.ones((2, 3), np.float32)}}
    state = rule.init(ones)
    for step in range(67):
        updates, state = quick_jit(rule.update)(ones, state, ones)
        if step in (10, 22, 44, 66):
            expected = rate(step) * min(1, (step + 1) / 22)
            # float32
            np.testing.assert_allclose(-updates["head"]["kernel"], expected, rtol=1e-5)


def test_a_gradient_is_clipped_and_the_limit_is_data():
    """By its norm as a whole, then each unit by the norm of its weights."""
    dataset, ones = small.load("digits"), np.ones((3, 3, 1, 4), np.float32)
    params = {"stem": {"kernel": ones}}

    def moved(**limits):
        settings = make(
            {**small.BASE, "momentum": 0, "weight_decay": 0, "nesterov": False, **limits}
        )
        rule = image_task.optimizer(
            image_task.kind_of(settings, dataset),
            {**image_task.hyper_of(settings), "learning_rate": 1.0},
        )
        updates, _ = rule.update(params, rule.init(params), params)
        return -float(updates["stem"]["kernel"][0, 0, 0, 0])

    # The gradient's norm is 6; that of each of the four units is 3, as is that of its weights.
    assert moved() == 1.0
    assert moved(clip_norm=1.5) == pytest.approx(1.5 / 6, rel=1e-6)
    assert moved(adaptive_clip=0.25) == pytest.approx(0.25, rel=1e-6)
    assert moved(clip_norm=1.5, adaptive_clip=0.5) == pytest.approx(0.25, rel=1e-6)
    programs = [plan.program for plan in small.make({"clip_norm": (0.0, 0.5, 1.5)}).plans]
    assert programs[0] != programs[1] == programs[2]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"batch_size": 2048}, "batch_size=2048 found for a training split of 1437"),
        ({"micro_batch": 24}, "micro_batch=24 found; expected a divisor of batch_size=64"),
        ({"warmup_epochs": 3.0}, "warmup_epochs=3 found, 66 steps; expected no more than"),
        ({"scheme": "batchnorm", "batch_size": 96}, "ghost_batch=64 found; expected a divisor"),
        ({"scheme": "fixupp"}, "did you mean 'fixup'?"),
        ({"scheme": "layernorm_pre"}, "layernorm_pre"),
        ({"scheme": "t_fixup"}, "t_fixup"),
        ({"model": "wrn-11-1"}, "11"),
        ({"model": "resnet-110"}, "name='resnet-110' found; expected cifar-resnet"),
        ({"model": "transformer-6"}, "expected a network for images"),
        ({"dataset": "digit"}, "digits"),
        ({"alpha": 0.5}, "alpha=0.5 found, but scheme='fixup' has no alpha, nor has another"),
        ({"dropout": 0.1}, "dropout=0.1 found, but scheme='fixup' has no dropout"),
        ({"drops": "0.3"}, "drops=0.3 found, but schedule='halving' has no drops, nor has another"),
        ({"padding": 8}, "padding=8 found; expected less than the 8 pixels of an image's side"),
        ({"cutout": 8}, "cutout=8 found; expected less than the 8 pixels of an image's side"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(settings, sentence):
    with pytest.raises(ValueError) as caught:
        small.make({"seed": (0, 1)}, **settings)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_axis_that_makes_the_same_runs_twice_is_refused():
    with pytest.raises(
        ValueError, match=r"^scalar_factor=0.1 found, but scheme='skipinit' has no "
    ):
        small.make({"scalar_factor": (0.1, 1.0)}, scheme="skipinit")
    assert small.make({"scalar_factor": (0.1, 1.0), "scheme": ("skipinit", "fixup")}).size == 4


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"batch_size": 33}, "batch_size=33 does not divide evenly"),
        ({"scheme": "batchnorm", "batch_size": 32}, "ghost_batch=64 found, 1 in a batch of 32"),
    ],
)
def test_an_indivisible_batch_is_refused_before_anything_starts(tmp_path, settings, sentence):
    """Over two devices; on one it is not."""
    sweep = small.make({"seed": (0, 1)}, **settings)
    for plan in sweep.plans:
        sweep.task.check(plan, 1)
    with pytest.raises(ValueError) as caught:
        small.run(tmp_path, sweep.plans, sweep.task, devices=2, devices_per_run=2)
    assert sentence in str(caught.value)


def with_labels(split, label):
    """The digits, a label of which is another one after they were checked."""
    digits = data.load("digits")
    copies = {
        name: data.Split(each.images, each.labels.copy())
        for name, each in (("train", digits.train), ("test", digits.test))
    }
    copies[split].labels[7] = label
    return lambda name: dataclasses.replace(digits, **copies)


def test_a_sweep_on_bad_data_does_not_begin():
    """What is checked is tested in tests/data/test_sources.py."""
    with pytest.raises(ValueError, match="digits, train split: label 7 is 10"):
        make_sweep({"seed": (0, 1)}, small.BASE, load=with_labels("train", 10))


@pytest.mark.slow
@pytest.mark.parametrize(("split", "label"), [("train", -1), ("test", 10)])
def test_labels_that_are_changed_after_the_check_are_a_failure_and_no_divergence(
    tmp_path, monkeypatch, split, label
):
    """A run that failed can be tried again with the data set mended; one that diverged cannot."""
    monkeypatch.setattr(data.Dataset, "__post_init__", lambda self: None)
    base = {**small.BASE, "model": "cifar-resnet-8", "epochs": 1.0}
    sweep = make_sweep({"seed": (0,)}, base, load=with_labels(split, label))
    (row,) = small.run(tmp_path, sweep.plans, sweep.task)[0].values()
    where = "the batch of step" if split == "train" else "the test split"
    assert row["state"] == "failed" and f"a label in {where}" in row["message"]
