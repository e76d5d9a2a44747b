"""Fixup's table 3 as a user runs it."""

import dataclasses

import pytest
from PIL import Image

from experiments import fixup_table3_translation as table3
from experiments.main import main, settings_of
from nf_resnets import translation
from tests.experiments.as_a_user import lines_of, make


@pytest.mark.slow
def test_smoke_keeps_a_row_a_curve_and_the_vocabulary(tmp_path):
    out = tmp_path / "out"
    name = "fixup_table3_translation"
    arguments = (name, "--scale", "smoke", "--variants", "fixup", "--steps", 3, "--out", out)
    shown = make(*arguments)
    rows, curves = lines_of(out / "rows.csv"), lines_of(out / "curves.csv")
    assert [row["variant"] for row in rows] == ["fixup"]
    for row in rows:
        curve = [line for line in curves if line["variant"] == row["variant"]]
        assert [int(line["step"]) for line in curve] == list(range(4))
        assert curve[-1]["loss"] == row["last_loss"] and curve[0]["bleu"] and curve[-1]["bleu"]
        assert row["title"] in shown and row["signature"] in shown
        assert float(row["copy_bleu"]) < 10 and row["branches"] == "10"
    model = (out / "vocabulary.model").read_bytes()
    assert translation.Vocabulary(model, model).source_size == 200
    assert Image.open(out / "figure.png").size[0] > 800
    assert "6,000 training pairs de to en" in shown and "0 pairs left out" in shown
    assert "1 run is there already." in make(*arguments)


@pytest.mark.slow
def test_smoke_learns_to_translate(tmp_path):
    make("fixup_table3_translation", "--scale", "smoke", "--out", tmp_path / "out")
    for row in lines_of(tmp_path / "out" / "rows.csv"):
        assert float(row["copy_bleu"]) < 10 and float(row["untrained_bleu"]) < 5
        assert float(row["bleu"]) > 50, row["variant"]


def test_the_published_recipe():
    paper = table3.SCALES["paper"]
    assert (paper.learning_rate, paper.warmup_steps, paper.max_tokens) == (5e-4, 4_000, 4_000)
    assert (paper.dropout, paper.label_smoothing, paper.scalar_factor) == (0.5, 0.1, 1.0)
    sizes = (paper.num_layers, paper.d_model, paper.d_ff, paper.num_heads)
    assert (*sizes, paper.steps) == (6, 512, 1024, 4, 200_000)
    assert table3.SCALES["paper_wmt"].dropout == 0.4


def test_nine_schemes_side_by_side():
    rivals, laptop = table3.SCALES["rivals"], table3.SCALES["laptop"]
    schemes = [table3.VARIANTS[name][1] for name in rivals.variants]
    assert len(set(schemes)) == 9 and "plain" not in schemes
    assert (rivals.learning_rate, rivals.d_model) == (laptop.learning_rate, laptop.d_model)
    points = table3.points(rivals, None, ())
    assert [point.key["variant"] for point in points] == list(rivals.variants)
    assert laptop.variants == ("layernorm", "layernorm_pre", "fixup", "plain")  # as committed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": "paper", "data_dir": "nowhere"}, "iwslt14_translate/de-en is not in"),
        ({"data_dir": "nowhere"}, "multi30k_translate/de-en is not in"),
        ({"variants": ("batchnorm",)}, "--variants batchnorm found; expected some of layernorm"),
        ({"dataset": "cifar10", "data_dir": "nowhere"}, "cifar10 is not in"),
    ],
)
def test_what_cannot_be_done_ends_with_a_sentence(options, message, as_before):
    with pytest.raises(SystemExit) as refused:
        main(table3.EXPERIMENT, table3.Command(**options))
    assert message in str(refused.value)


def test_the_published_depth_by_option():
    settings = settings_of(table3.EXPERIMENT, table3.Command(layers=6))
    assert settings == dataclasses.replace(table3.SCALES["laptop"], num_layers=6)
    with pytest.raises(SystemExit, match="--layers -1 found; expected at least 1"):
        settings_of(table3.EXPERIMENT, table3.Command(layers=-1))
