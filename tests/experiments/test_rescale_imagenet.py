"""RescaleNet on ImageNet as a user runs it, and what its recipe does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import rescale_imagenet as rescale
from nf_resnets import optim
from tests.experiments.as_a_user import lines_of, make


@pytest.mark.slow
def test_smoke_makes_both_kinds_of_networks(tmp_path):
    out = tmp_path / "out"
    shown = make("rescale_imagenet", "--scale", "smoke", "--variants", "rescalenet", "--out", out)
    rows = lines_of(out / "rows.csv")
    assert [row["network"] for row in rows] in (["resnet50", "vgg19"], ["vgg19", "resnet50"])
    assert {row["status"] for row in rows} == {"finished"}
    published = {row["network"]: row["published_accuracy"] for row in rows}
    assert published == {"resnet50": "76.57", "vgg19": ""}
    assert "76.57" in shown and "published: on ImageNet, by the paper" in shown


def test_the_paper_scale_is_the_published_recipe():
    paper = rescale.SCALES["paper"]
    assert (paper.batch_size, paper.epochs, paper.warmup_epochs) == (1024, 100, 5.0)
    assert paper.rate * paper.batch_size / 256 == 0.4
    assert (paper.conv_dropout, paper.dropout, paper.drops) == (0.03, 0.3, (0.3, 0.6, 0.9))
    model = rescale.make_model(paper, "resnet50", rescale.VARIANTS["rescalenet"], 1000)
    assert (model.num_branches, model.conv_dropout, model.dropout) == (16, 0.03, 0.3)
    plain = rescale.make_model(paper, "resnet50", rescale.VARIANTS["plain"], 1000)
    assert (plain.conv_dropout, plain.dropout) == (0.0, 0.0)
    assert rescale.make_model(paper, "vgg19", rescale.VARIANTS["rescalenet"], 1000).depth == 19


def test_biases_and_multipliers_do_not_decay():
    settings = rescale.SCALES["smoke"]
    model = rescale.make_model(settings, "resnet50", rescale.VARIANTS["rescalenet"], 10)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 32, 32, 3)))["params"]
    decays = optim.decay_mask(shapes, undecayed=optim.UNDECAYED)
    named = {
        "/".join(key.key for key in path): value
        for path, value in jax.tree_util.tree_flatten_with_path(decays)[0]
    }
    assert all(type(value) is bool for value in named.values())
    kernels = {name for name, value in named.items() if name.endswith("kernel")}
    assert {name for name, value in named.items() if value} == kernels and kernels
    others = set(named) - kernels
    assert any("bias" in name for name in others) and any("multiplier" in name for name in others)


def test_the_calibrated_variant_differs_in_its_biases_only():
    calibrated, other = rescale.VARIANTS["rescalenet"], rescale.VARIANTS["uncalibrated"]
    assert calibrated.anatomy == other.anatomy and calibrated.init is other.init
    assert calibrated.calibrate is not None and other.calibrate is None
    assert np.isclose(sum(rescale.PUBLISHED.values()), 76.57 + 77.55)
