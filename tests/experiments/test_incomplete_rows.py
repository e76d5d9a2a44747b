"""Tables and titles of rows that are not all there: runs that diverged, failed or wait."""

import dataclasses
import types

import pytest

from experiments import (
    fixup_multipliers,
    fixup_table1_resnet110,
    fixup_table2_imagenet,
    fixup_table4_regularized,
    rate_transfer,
    rescale_calibration,
    rescale_imagenet,
    skipinit_imagenet,
    theory_signal,
    theory_stable_rate,
)
from experiments.experiment import Results, mean_curves
from experiments.findings import who_trains
from experiments.folder import CurvesFile
from experiments.table import seeds_shown

DATA = types.SimpleNamespace(num_classes=10, name="digits")


def row(**columns):
    return {"status": "finished", "test_accuracy": "0.9", "test_loss": "0.3", **columns}


class Curves:
    """Lines of runs by variant and seed."""

    values = CurvesFile.values

    def __init__(self, of):
        self.lines = of

    def of(self, key):
        return [
            {"step": str(step), "accuracy": "0.5", "loss": "1"}
            for step in self.lines[key["variant"], key["seed"]]
        ]


def titled(monkeypatch, module, results):
    """The words of a figure, and its panels."""
    drawn = {}

    def curves_figure(panels, path, **words):
        drawn.update(words, panels=panels)

    monkeypatch.setattr(module, "curves_figure", curves_figure)
    module.EXPERIMENT.plot(results, None)
    return drawn


def test_a_seed_that_diverges_before_its_first_line_takes_only_its_curve(monkeypatch):
    module = fixup_table1_resnet110
    settings = module.SCALES["laptop"]
    rows = [
        row(variant=variant, title=variant, seed=seed, status=state)
        for variant, seed, state in (
            ("fixup", "0", "finished"), ("fixup", "1", "finished"), ("xavier", "0", "finished"),
            ("xavier", "1", "diverged"),
        )
    ]  # fmt: skip
    lines = {(each["variant"], each["seed"]): (5, 10) for each in rows} | {("xavier", "1"): (3,)}
    results = Results(settings, DATA, rows, {"curves.csv": Curves(lines)}, None)
    assert [curve.title for curve in mean_curves(results, "variant")] == ["fixup"]
    assert "means of 2 seeds" in titled(monkeypatch, module, results)["subtitle"]
    # Of three seeds in the settings one is made.
    one = dataclasses.replace(results, rows=rows[:1])
    said = titled(monkeypatch, module, one)["subtitle"]
    assert "1 seed." in said and "bands" not in said


def test_seeds_are_counted_by_curve():
    rows = [{"variant": "a", "seed": 0}, {"variant": "a", "seed": 1}, {"variant": "b", "seed": 0}]
    assert seeds_shown(rows, "variant") == (
        "means of 1 to 2 seeds, bands from the lowest to the highest"
    )


def test_where_every_run_diverged_no_accuracy_is_named():
    gone = [{"title": "a", "status": "diverged", "test_accuracy": "nan"}]
    assert who_trains(gone, 0.1, where=" here") == "No network trains here: every run diverged"
    rows = [{"title": "a", "status": "finished", "bleu": "2.0"}]
    words = {"column": "bleu", "least": 5, "unit": " BLEU", "guess": "a copy"}
    assert who_trains(rows, 1.1, **words) == (
        "No network trains: the best has 2.0 BLEU, a copy is 1.1 BLEU"
    )


def test_the_norms_are_those_of_runs_that_finished(monkeypatch):
    module = fixup_multipliers
    columns = {"cosine": "0.1", "multiplier_ratio": "1", "slope_ratio": "1"}
    rows = [
        row(variant="fixup", title="Fixup", seed="0", norm_ratio="0.76", **columns),
        row(variant="fixup", title="Fixup", seed="1", norm_ratio="nan", status="diverged"),
        row(variant="batchnorm", title="BatchNorm", seed="0", norm_ratio="nan", status="diverged"),
    ]
    monkeypatch.setattr(module, "shown", lambda results, name: [])
    results = Results(module.SCALES["laptop"], DATA, rows, {}, None)
    said = titled(monkeypatch, module, results)["title"]
    assert said.endswith("0.76 (Fixup), diverged (BatchNorm)")


def test_too_few_steps_for_four_looks_are_refused():
    settings = dataclasses.replace(fixup_multipliers.SCALES["laptop"], steps=60)
    with pytest.raises(
        ValueError, match=r"^steps=60 found; expected 200, which are four looks, or more\.$"
    ):
        fixup_multipliers.check(settings, None)


def test_errors_of_two_depths_are_told_apart():
    def at(depth, train, test):
        columns = {"title": "BatchNorm", "mixup": "0", "depth": depth}
        return row(train_accuracy=train, **columns) | {"test_accuracy": test}

    rows = [at("50", "0.8", "0.7"), at("101", "0.9", "0.8")]
    assert fixup_table2_imagenet.gaps(rows) == (
        "BatchNorm (ResNet-50) ends at 20.0% training and 30.0% test error; "
        "BatchNorm (ResNet-101) ends at 10.0% training and 20.0% test error"
    )
    assert fixup_table2_imagenet.gaps([{**rows[0], "mixup": "0.7"}]) == "Test errors with mixup"


def test_two_data_sets_of_one_network_are_told_apart(monkeypatch):
    module = fixup_table4_regularized
    settings = module.SCALES["paper"]
    networks = {
        part: dataclasses.replace(each, depth=16, width=4)
        for part, each in settings.networks.items()
    }
    settings = dataclasses.replace(settings, networks=networks)
    rows = [
        row(part=part, variant="fixup", title="Fixup", seed="0") | {"test_accuracy": accuracy}
        for part, accuracy in (("cifar10", "0.1"), ("svhn", "0.97"))
    ]
    monkeypatch.setattr(module, "mean_curves", lambda *_, **__: [])
    said = titled(monkeypatch, module, Results(settings, None, rows, {}, None))["title"]
    assert said == "Fixup trains only as WRN-16-4 on svhn"


def test_a_size_whose_runs_failed_is_a_dash():
    settings = dataclasses.replace(rate_transfer.SCALES["laptop"], depths=(10, 34), widths=(1,))
    rows = [
        row(line=title, title=title, depth=str(depth), width="1", log2_rate=str(power), seed="0",
            train_loss="0.5")
        for title, depth in (("Fixup", 10), ("Fixup", 34), ("plain", 34))
        for power in (-3, -2)
    ]  # fmt: skip
    lines = rate_transfer.table(Results(settings, DATA, rows, {}, None)).splitlines()
    assert lines[2].split()[:2] == ["plain", "-"] and "2^-3" in lines[2]


def test_there_is_no_best_rate_where_nothing_finished():
    rows = [
        row(variant="alpha_one", title="α = 1", batch="256", rate=rate, learning_rate=rate,
            seed="0", status="diverged") | {"test_accuracy": "nan"}
        for rate in ("0.025", "0.1")
    ]  # fmt: skip
    settings = dataclasses.replace(
        skipinit_imagenet.SCALES["laptop"], variants=("alpha_one",), batches=(256,)
    )
    line = skipinit_imagenet.table(Results(settings, DATA, rows, {}, None)).splitlines()[1]
    assert "(1 diverged)" in line and "0.025" not in line and "!" not in line


def test_a_rate_that_was_not_run_is_a_dash():
    settings = dataclasses.replace(
        rescale_calibration.SCALES["cifar"], images=(0, 128), start_images=(), seeds=(0,)
    )
    rows = [
        row(part="training", images=images, rate=rate, seed="0", gradient="0.3", dead="0",
            dead_after="0")
        for images, rate in (("0", "0.025"), ("128", "0.1"))
    ]  # fmt: skip
    found = rescale_calibration.training_table(Results(settings, DATA, rows, {}, None))
    assert "nan" not in found and found.splitlines()[2].split()[-1] == "-"


def test_every_network_of_a_rate_is_named(monkeypatch):
    settings = rescale_imagenet.SCALES["paper"]
    words = {}
    monkeypatch.setattr(
        rescale_imagenet.imagenet, "plot_panels", lambda *_, **given: words.update(given)
    )
    rescale_imagenet.plot(Results(settings, DATA, [], {}, None), None)
    assert "0.4 (ResNet-50 and ResNet-101), 0.04 (VGG-19)" in words["subtitle"]


def test_second_moments_without_a_closed_form_are_not_compared():
    rows = [{"var": "2", "form": form, "var_error": "0.1"} for form in ("nan", "2.1")]
    for order in (rows, rows[::-1]):
        assert theory_signal.agreement(order).startswith("1 of 1 second moments")
        assert theory_signal.agreement(order).endswith("1.05")
    assert "without closed forms" in theory_signal.agreement(rows[:1])


def test_where_nothing_trains_no_rate_is_named():
    lines = [{"depth": 22, "title": "plain", "largest": None}]
    assert theory_stable_rate.lead(lines) == "At 22 layers no scheme trains at any rate"
