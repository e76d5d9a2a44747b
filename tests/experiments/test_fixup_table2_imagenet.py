"""Fixup's table 2 as a user runs it, and its published numbers and recipe."""

import re
from types import SimpleNamespace

import pytest
from PIL import Image

from experiments import fixup_table2_imagenet as table2
from experiments.main import settings_of
from nf_resnets import optim
from tests.experiments.as_a_user import lines_of, make


@pytest.mark.slow
def test_smoke_streams_trains_and_keeps_a_row_of_each(tmp_path):
    out = tmp_path / "out"
    options = ("--scale", "smoke", "--variants", "fixup_mixup", "--out", out)
    shown = make("fixup_table2_imagenet", *options)
    rows, curves = lines_of(out / "rows.csv"), lines_of(out / "curves.csv")
    assert {row["variant"] for row in rows} == {"fixup_mixup"}
    for row in rows:
        assert row["status"] == "finished" and row["steps"] == "2"
        assert float(row["input_wait"]) > 0 and 0 <= float(row["input_share"]) <= 1
        assert len([line for line in curves if line["variant"] == row["variant"]]) == 2
        assert row["title"] in shown
    assert re.search(r"Waiting for input took [0-9.]+ s of the runs' [0-9]+ s", shown)
    assert "published: on ImageNet, by the paper" in shown and "Downloading" not in shown
    assert Image.open(out / "figure.png").size[0] > 400
    assert not (out / "checkpoints").exists()
    again = make("fixup_table2_imagenet", *options)
    assert "1 run is there already." in again and lines_of(out / "rows.csv") == rows


@pytest.mark.slow
def test_smoke_tests_after_every_epoch(tmp_path):
    out = tmp_path / "out"
    options = ("--scale", "smoke", "--variants", "fixup", "fixup_mixup", "--epochs", 2, "--tests")
    make("fixup_table2_imagenet", *options, "--out", out)
    rows, tests = lines_of(out / "rows.csv"), lines_of(out / "tests.csv")
    for row in rows:
        own = [line for line in tests if line["variant"] == row["variant"]]
        # 80 images are two steps of 32 an epoch; the first test is that of the start.
        assert [int(line["step"]) for line in own] == [0, 2, 4]
        assert own[-1]["test_accuracy"] == row["test_accuracy"]
        assert own[-1]["test_loss"] == row["test_loss"]
        # Fixup starts with a loss of ln 10 whatever the images.
        assert own[0]["test_loss"][:6] == "2.3025" != own[-1]["test_loss"][:6]
    assert Image.open(out / "tests.png").size[0] > 800
    again = make("fixup_table2_imagenet", *options, "--out", out)
    assert "2 runs are there already." in again


def test_the_paper_scale_is_the_published_recipe():
    paper = table2.SCALES["paper"]
    assert (paper.batch_size, paper.learning_rate, paper.momentum) == (256, 0.1, 0.9)
    assert (paper.weight_decay, paper.epochs, paper.scalar_factor) == (1e-4, 100, 0.1)
    assert (paper.images.size, paper.images.short_side, paper.images.lowest_area) == (
        224,
        256,
        0.08,
    )
    mixup = {name: variant.mixup for name, variant in table2.VARIANTS.items()}
    assert (mixup["batchnorm_mixup"], mixup["groupnorm_mixup"], mixup["fixup_mixup"]) == (
        0.2,
        0.1,
        0.7,
    )
    # Table 2 of the paper, in its order.
    errors = [variant.published.get(50) for variant in table2.VARIANTS.values()]
    assert errors == [23.6, 23.3, 23.9, 31.5, 27.6, 24.0]
    deeper = {name: v.published[101] for name, v in table2.VARIANTS.items() if 101 in v.published}
    assert deeper == {
        "batchnorm": 22.0,
        "batchnorm_mixup": 20.8,
        "groupnorm_mixup": 21.4,
        "fixup_mixup": 21.4,
    }
    # 1,281,167 images are 5,004 batches of 256 an epoch: divided by 10 after 30, 60 and 90 of 100.
    steps = 100 * 5_004
    boundaries = [round(drop * steps) for drop in paper.drops]
    assert boundaries == [30 * 5_004, 60 * 5_004, 90 * 5_004]
    schedule = optim.step_decay(0.1, boundaries, 0.1)
    rates = [round(float(schedule(step)), 7) for step in (0, boundaries[0] - 1, *boundaries)]
    assert rates == [0.1, 0.1, 0.01, 0.001, 0.0001]
    streamed = SimpleNamespace(steps=lambda batch_size, epochs=1: 5_004 * epochs)
    wanted = table2.points(paper, streamed, ())
    assert len(wanted) == 6 + 4
    found = {point.key["depth"]: point.num_steps for point in wanted}
    assert found == {50: steps, 101: 2 * steps}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"rate": -0.1}, "--rate -0.1 found; expected a finite number above 0"),
        ({"rate": float("nan")}, "--rate nan found"),
        ({"epochs": -1}, "--epochs -1 found; expected at least 1"),
        ({"drops": (0.3, 1.0)}, "--drops 0.3 1 found; expected parts of a run"),
    ],
)
def test_what_cannot_be_is_refused(options, sentence):
    with pytest.raises(SystemExit, match=sentence):
        settings_of(table2.EXPERIMENT, table2.Command(scale="smoke", **options))
