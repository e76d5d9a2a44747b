"""Runs of images: what follows from their settings, and what is refused before anything starts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from nf_resnets.sweep import image_task
from nf_resnets.sweep.settings import make
from tests.sweep import small


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
    found = image_task._rate(kind, 1.0)
    for step in (10, 22, 44, 66):
        expected = rate(step) * min(1, (step + 1) / 22)
        assert float(found(step)) == pytest.approx(expected, rel=1e-5)  # float32


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
        ({"batch_size": 2048}, "batch_size=2048"),
        ({"micro_batch": 24}, "micro_batch=24"),
        ({"warmup_epochs": 3.0}, "warmup_epochs=3 found, 66 steps"),
        ({"scheme": "batchnorm", "batch_size": 96}, "ghost_batch=64"),
        ({"scheme": "fixupp"}, "scheme='fixupp' found; expected one of"),
        ({"scheme": "t_fixup"}, "t_fixup"),
        ({"model": "wrn-11-1"}, "11"),
        ({"model": "transformer-6"}, "expected a network for images"),
        ({"dataset": "digit"}, "digits"),
        ({"alpha": 0.5}, "alpha=0.5 found, but scheme='fixup' has no alpha"),
        ({"drops": "0.3"}, "drops=0.3 found, but schedule='halving' has no drops"),
        ({"padding": 8}, "padding=8"),
        ({"cutout": 8}, "cutout=8"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(settings, sentence):
    with pytest.raises(ValueError) as caught:
        small.make({"seed": (0, 1)}, **settings)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "settings", [{"batch_size": 33}, {"scheme": "batchnorm", "batch_size": 32}], ids=str
)
def test_an_indivisible_batch_is_refused_before_anything_starts(tmp_path, settings):
    """Over two devices; on one it is not."""
    sweep = small.make({"seed": (0, 1)}, **settings)
    for plan in sweep.plans:
        sweep.task.check(plan, 1)
    with pytest.raises(ValueError, match="batch_size=33|ghost_batch=64"):
        small.run(tmp_path, sweep.plans, sweep.task, devices=2, devices_per_run=2)


def test_gradient_noise_needs_two_parts_of_a_batch():
    task = image_task.ImageTask()
    run = task.plan(make({"gradient_noise": True}))
    with pytest.raises(ValueError, match="gradient_noise=True found with micro_batch=0; expected"):
        task.check(run, 1)
    task.check(run, 2)
    task.check(task.plan(make({"gradient_noise": True, "micro_batch": 32})), 1)
