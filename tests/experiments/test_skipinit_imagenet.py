"""SkipInit on ImageNet as a user runs it, and how its table chooses."""

import dataclasses
from types import SimpleNamespace

import pytest

from experiments import skipinit_imagenet as skipinit
from experiments.experiment import Results
from tests.experiments.as_a_user import lines_of, make


@pytest.mark.slow
def test_smoke_makes_every_batch_size(tmp_path):
    out = tmp_path / "out"
    shown = make(
        "skipinit_imagenet", "--scale", "smoke", "--variants", "regularized_skipinit", "--out", out
    )
    rows = lines_of(out / "rows.csv")
    assert sorted((row["batch"], row["steps"]) for row in rows) == [("16", "5"), ("64", "1")]
    assert {row["status"] for row in rows} == {"finished"}
    # In proportion to the batch: 0.1 at 256.
    assert {float(row["learning_rate"]) for row in rows} == {0.1 / 16, 0.1 / 4}
    assert "too short to show anything" in shown and (out / "figure.png").exists()


def row(rate, seed, accuracy, status="finished", name="skipinit", batch="256"):
    return {
        "variant": name, "title": "SkipInit", "batch": batch, "rate": rate, "learning_rate": rate,
        "seed": seed, "status": status, "test_accuracy": accuracy,
    }  # fmt: skip


def test_the_best_rate_is_that_of_the_highest_mean():
    rows = [
        row("0.1", "0", "0.70"), row("0.1", "1", "0.72"),
        # One seed is the best of all, the other diverged: on the mean it is not.
        row("0.2", "0", "0.80"), row("0.2", "1", "nan", "diverged"),
    ]  # fmt: skip
    chosen = skipinit.best(rows, "strict")
    assert [(r["rate"], r["seed"]) for r in chosen] == [("0.1", "0"), ("0.1", "1")]

    def table(rows, rule="strict"):
        settings = dataclasses.replace(skipinit.SCALES["paper"], best=rule)
        return skipinit.table(Results(settings, None, rows))

    text = table([*rows, row("0.4", "0", "0.99", batch="1024")])
    (line,) = [
        line for line in text.splitlines() if line.startswith("SkipInit") and " 256 " in line
    ]
    assert line.split() == ["SkipInit", "256", "71.0", "0.1!*", "1", "of", "2", "74.9"]
    assert [line[0] for line in text.splitlines()[-2:]] == ["!", "*"]
    trimmed = table(rows, "trimmed")
    assert "80.0 (1 diverged)" in trimmed and "0.2!" in trimmed
    inside = table([*rows, row("0.05", "0", "0.1")])
    assert "71.0" in inside and "0.1!" not in inside


def test_the_published_numbers_and_sizes_stand_as_they_were():
    paper = skipinit.SCALES["paper"]
    assert paper.batches == (256, 1024, 4096) and paper.depth == 50 and len(paper.rates) == 3
    assert [list(row.values()) for row in skipinit.PUBLISHED.values()] == [
        [75.0, 74.9, 74.9],
        [74.8, 74.6, 73.0],
        [74.9, 74.6, 70.8],
        [75.6, 75.5, 72.7],
    ]
    assert skipinit.learning_rate(0.1, 4096) == 1.6


def test_a_cell_whose_best_rate_is_at_an_edge_has_one_rate_more():
    settings = skipinit.SCALES["laptop"]
    streamed = SimpleNamespace(steps=lambda batch_size, epochs=1: 40)

    def rates(rows, name, batch):
        found = [point.key for point in skipinit.points(settings, streamed, rows)]
        return [key["rate"] for key in found if (key["variant"], key["batch"]) == (name, batch)]

    def rows(name, batch, *accuracies):
        pairs = zip(settings.rates, accuracies, strict=True)
        return [row(str(rate), "0", of, name=name, batch=str(batch)) for rate, of in pairs]

    there = rows("batchnorm", 32, "0.1", "0.2", "0.3", "0.4")
    there += rows("alpha_one", 256, "0.4", "0.3", "0.2", "0.1")
    assert rates(there, "batchnorm", 32) == [*settings.rates, 6.4]
    assert rates(there, "alpha_one", 256) == [0.00625, *settings.rates]
    assert rates(there, "batchnorm", 256) == rates((), "batchnorm", 32) == list(settings.rates)
