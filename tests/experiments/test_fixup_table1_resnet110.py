"""Fixup's table 1 as a user runs it."""

import pytest
from PIL import Image

from experiments import fixup_table1_resnet110 as table1
from experiments import fixup_table4_regularized as table4
from experiments.main import settings_of
from nf_resnets import data
from tests.experiments.as_a_user import lines_of, make


@pytest.mark.slow
def test_smoke_makes_the_rows_of_the_table(tmp_path):
    out = tmp_path / "out"
    variants = ("fixup", "xavier_tenth", "xavier_hundredth")
    shown = make(
        "fixup_table1_resnet110", "--scale", "smoke", "--steps", 4, "--variants", *variants,
        "--out", out,
    )  # fmt: skip
    rows = lines_of(out / "rows.csv")
    assert {row["variant"] for row in rows} == set(variants)
    assert {row["learning_rate"] for row in rows} == {"0.1", "0.01", "0.001"}
    curves = lines_of(out / "curves.csv")
    for row in rows:
        assert row["title"] in shown and row["branches"] == "3"
        curve = [line for line in curves if line["variant"] == row["variant"]]
        assert [int(line["step"]) for line in curve] == [1, 2, 3, 4]
        assert curve[-1]["loss"] == row["last_loss"]
    # Of eight layers nothing is published.
    line = next(line for line in shown.splitlines() if line.startswith("Fixup  "))
    error = 100 - 100 * float(next(r for r in rows if r["variant"] == "fixup")["test_accuracy"])
    assert line.split() == ["Fixup", "0.1", f"{error:.2f}", f"{error:.2f}", "1", "0", "-"]
    assert "shows that the command works, and nothing else" in shown
    assert Image.open(out / "figure.png").size[0] > 800


def test_a_depth_that_is_none_is_refused():
    with pytest.raises(SystemExit, match=r"--depth 111 found; expected 6n \+ 2 layers"):
        settings_of(table1.EXPERIMENT, table1.Command(scale="smoke", depth=111))


def test_the_published_epochs():
    # 390 steps an epoch on CIFAR-10, 604,388 // 128 on SVHN with its extra images.
    recipe = table1.SCALES["paper"].recipe
    assert table1.boundaries(recipe, 200 * 390) == (100 * 390, 150 * 390)
    parts = table4.SCALES["paper"].networks
    cifar, svhn = parts["cifar10"].recipe, parts["svhn"].recipe
    assert table1.boundaries(cifar, 200 * 390) == (60 * 390, 120 * 390, 160 * 390)
    assert table1.boundaries(svhn, 160 * 4_721) == (80 * 4_721, 120 * 4_721)
    assert (cifar.factor, svhn.factor) == (0.2, 0.1)
    digits = data.load("digits")
    found = table1.run_lengths(table1.Recipe(batch_size=64, epochs=3), digits, None)
    assert found == {"num_steps": 3 * 22, "steps_per_epoch": 22, "batch_size": 64}
