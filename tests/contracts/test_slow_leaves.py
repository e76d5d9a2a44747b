"""Which leaves learn slowly and which do not decay, at every entry point that makes an optimizer.

Fixup's scalars learn at a tenth of the rate (its paper, section 4.2; its published code).
SkipInit's alpha and RescaleNet's multipliers learn at the full rate, and RescaleNet's biases and
multipliers have no weight decay (its published code).
"""

import functools
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from experiments import fixup_table2_imagenet, imagenet
from nf_resnets import data, models, optim, training, translation
from nf_resnets.sweep import image_task
from nf_resnets.sweep.settings import make
from nf_resnets.trained import fit
from tests.models.trees import filled_with
from tests.trees import pairs

HYPER = {"learning_rate": 0.5, "momentum": 0.9, "weight_decay": 0.5, "scalar_factor": 0.1}
digits = functools.cache(lambda: data.load("digits"))


def of_sweep(scheme, monkeypatch):
    settings = make({"model": "wrn-10-1", "stem_channels": 4, "epochs": 1.0, "scheme": scheme})
    return image_task.optimizer(
        image_task.kind_of(settings, digits()), image_task.hyper_of(settings)
    )


def of_fit(scheme, monkeypatch):
    def program(model, data, optimizer, *arguments, **options):
        raise RuntimeError(optimizer)  # which ``fit`` would have trained with

    monkeypatch.setattr(training, "image_program", program)
    network = models.WideResNet(depth=10, scheme=scheme, stem_channels=4)
    with pytest.raises(RuntimeError) as error:
        fit.fit(digits(), network=network)
    return error.value.args[0](HYPER)


def of_streamed(scheme, monkeypatch):
    """The optimizer of a run of an experiment on streamed images."""
    point = fixup_table2_imagenet.SCALES["smoke"][0] | {"scheme": scheme, "weight_decay": 0.5}
    split = SimpleNamespace(num_examples=320)
    encoded = SimpleNamespace(splits={"train": split}, num_classes=10)
    return imagenet.setup(lambda _: {}, point, encoded).optimizer(HYPER)


SCHEMES = ("fixup", "skipinit", "rescalenet", "batchnorm")
PUBLISHED = ("fixup_published", "rescalenet_published")  # as the authors' code has them
ENTRIES = {
    "optim.sgd": (
        lambda scheme, _: optim.sgd(0.5, weight_decay=0.5, scheme=scheme),
        SCHEMES + PUBLISHED,
    ),
    "translation.adam": (
        lambda scheme, _: translation.adam(0.5, weight_decay=0.5, scheme=scheme),
        SCHEMES,
    ),
    "sweep": (of_sweep, SCHEMES + PUBLISHED),
    "trained": (of_fit, SCHEMES + PUBLISHED),
    "experiments.imagenet": (of_streamed, ("fixup", "rescalenet")),
}
CASES = [(entry, scheme) for entry, (_, fit_for) in ENTRIES.items() for scheme in fit_for]


def ones(scheme):
    """A small network's tree, all of it 1."""
    return filled_with(1.0, models.WideResNet(depth=10, scheme=scheme, stem_channels=4))


def first_updates(optimizer, params, gradient):
    """The updates of the first step by path, of a gradient that is one number everywhere."""
    gradients = jax.tree.map(lambda leaf: np.full_like(leaf, gradient), params)
    updates, _ = optimizer.update(gradients, optimizer.init(params), params)
    return {path: -float(np.ravel(at)[0]) for path, at in pairs(updates)}


def is_slow(scheme, path):
    name = path.rpartition("/")[2]
    if scheme == "fixup_published" and path == "head/bias":
        return True
    return scheme.startswith("fixup") and (name.startswith("bias_") or name == "multiplier")


@pytest.mark.parametrize(("entry", "scheme"), CASES)
def test_leaves_learn_at_the_published_rates(entry, scheme, monkeypatch):
    optimizer = ENTRIES[entry][0](scheme, monkeypatch)
    params = jax.tree.map(np.zeros_like, ones(scheme))  # of which nothing decays
    updates = first_updates(optimizer, params, 1.0)
    kernel = updates["stem/kernel"]
    assert kernel > 0
    for path, update in updates.items():
        expected = 0.1 if is_slow(scheme, path) else 1.0
        assert update / kernel == pytest.approx(expected, rel=1e-5), path  # float32
    assert any(is_slow(scheme, path) for path in updates) == scheme.startswith("fixup")


@pytest.mark.parametrize(("entry", "scheme"), CASES)
def test_leaves_decay_as_published(entry, scheme, monkeypatch):
    optimizer = ENTRIES[entry][0](scheme, monkeypatch)
    # Without a gradient, whatever moves has decayed; all but RescaleNet's recipe decay all, and its
    # published code the head's bias vector, too.
    for path, update in first_updates(optimizer, ones(scheme), 0.0).items():
        expected = not scheme.startswith("rescalenet") or path.endswith("kernel")
        expected = expected or (scheme == "rescalenet_published" and path == "head/bias")
        assert (update > 0) == expected, path


@pytest.mark.parametrize("make_optimizer", [optim.sgd, translation.adam])
@pytest.mark.parametrize("what", ["rescalenet", "no scalar biases"])
def test_without_a_scheme_nothing_is_guessed(make_optimizer, what):
    params = ones("rescalenet")
    if what == "no scalar biases":
        params = {"head": {"kernel": np.ones((2, 2))}, "block": {"multiplier": np.ones(())}}
    with pytest.raises(ValueError, match="no scheme is given"):
        make_optimizer(0.1).init(params)


def test_a_factor_that_is_given_holds_for_the_slow_leaves_of_the_scheme():
    settings = make({"model": "wrn-10-1", "scheme": "fixup", "scalar_factor": 0.5})
    assert image_task.hyper_of(settings)["scalar_factor"] == 0.5
