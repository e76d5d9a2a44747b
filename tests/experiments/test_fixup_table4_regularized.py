"""Fixup's table 4 as a user runs it."""

import pytest
from PIL import Image

from experiments import fixup_table4_regularized as table4
from experiments.main import settings_of
from tests.experiments.as_a_user import lines_of, make


@pytest.mark.slow
def test_smoke_makes_the_twins(tmp_path):
    out = tmp_path / "out"
    shown = make(
        "fixup_table4_regularized", "--scale", "smoke", "--variants", "fixup", "fixup_regularized",
        "--out", out,
    )  # fmt: skip
    rows = {row["variant"]: row for row in lines_of(out / "rows.csv")}
    assert set(rows) == {"fixup", "fixup_regularized"}
    assert (rows["fixup"]["mixup"], rows["fixup"]["cutout"]) == ("0.0", "0")
    assert (rows["fixup_regularized"]["mixup"], rows["fixup_regularized"]["cutout"]) == ("1.0", "3")
    # Fixup begins at ln 10 whatever the images; then the twins see other ones.
    assert (
        rows["fixup"]["first_loss"][:6] == rows["fixup_regularized"]["first_loss"][:6] == "2.3025"
    )
    assert rows["fixup"]["last_loss"] != rows["fixup_regularized"]["last_loss"]
    assert "Fixup + mixup + cutout" in shown and "WRN-10-1" in shown
    assert Image.open(out / "figure.png").size[0] > 800


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"parts": ("svhn",)}, "--parts svhn found; --scale smoke has digits only"),
        ({"depth": 17}, r"--depth 17 found; expected 6N \+ 4 layers"),
        ({"width": -1}, "--width -1 found; expected at least 1"),
        ({"epochs": -1}, "--epochs -1 found; expected at least 1"),
    ],
)
def test_what_cannot_be_is_refused(options, sentence):
    with pytest.raises(SystemExit, match=sentence):
        settings_of(table4.EXPERIMENT, table4.Command(scale="smoke", **options))


def test_variants_leave_out_what_their_titles_say():
    part = table4.DIGITS
    recipes = {name: table4.recipe_of(part, of) for name, of in table4.VARIANTS.items()}
    assert recipes["fixup_regularized"] == recipes["batchnorm_regularized"] == part.recipe
    assert (part.recipe.mixup, part.recipe.cutout, part.recipe.scalar_factor) == (1.0, 3, 0.1)
    for name, recipe in recipes.items():
        assert (recipe.mixup > 0) == (recipe.cutout > 0) == name.endswith("regularized"), name
        assert recipe.scalar_factor == (1.0 if "full_rate" in name else 0.1), name
    assert not any("full_rate" in name for name in table4.SCALES["paper"].variants)


def test_a_smaller_network_by_option():
    command = table4.Command(scale="paper", parts=("cifar10",), depth=16, width=4)
    settings = settings_of(table4.EXPERIMENT, command)
    assert settings.parts == ("cifar10",) and table4.network_name(settings.networks["cifar10"]) == (
        "WRN-16-4"
    )
    assert settings.networks["cifar10"].recipe == table4.CIFAR10.recipe
