"""Whose best rate stays: which runs are made, what the table says, and a run as a user makes it."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import rate_transfer
from experiments.experiment import Results
from experiments.main import main
from nf_resnets import data
from tests.experiments.as_a_user import lines_of, make, redrawn

SETTINGS = dataclasses.replace(
    rate_transfer.SCALES["smoke"], depths=(10, 28), widths=(1, 2, 4), seeds=(0, 1), extend=2
)


@pytest.fixture(scope="module")
def digits():
    return data.load("digits")


def row(line, depth, power, loss, seed=0, width=1):
    status = "finished" if loss is not None else "diverged"
    title = {"skipinit": "SkipInit", "completep": "CompleteP"}[line]
    return {
        "line": line, "depth": str(depth), "width": str(width), "log2_rate": str(power),
        "seed": str(seed), "title": title, "status": status, "train_loss": str(loss),
    }  # fmt: skip


def test_rates_go_on_until_the_best_is_inside(digits):
    first = rate_transfer.points(SETTINGS, digits, [])
    sizes = {(point.key["depth"], point.key["width"]) for point in first}
    assert sizes == {(10, 1), (28, 1), (10, 2), (10, 4)}
    assert len(first) == 4 * 2 * 2 * 2  # sizes, schemes, rates, seeds
    rows = [row("skipinit", 10, power, loss, seed)
            for power, loss in ((-5, 2.0), (-3, 1.0)) for seed in (0, 1)]  # fmt: skip
    more = rate_transfer.points(SETTINGS, digits, rows)
    new = [point.key for point in more if point.key not in [each.key for each in first]]
    assert {(key["line"], key["depth"], key["width"], key["log2_rate"]) for key in new} == {
        ("skipinit", 10, 1, -1)
    }


@pytest.mark.parametrize("depths", [(10, 28), (28, 16)])
def test_networks_know_their_base(digits, depths):
    """CompleteP's branches and rates at 28 layers, as those of 10 layers and width 2 say."""
    settings = dataclasses.replace(SETTINGS, depths=depths)
    by_line = {
        point.key["line"]: point
        for point in rate_transfer.points(settings, digits, [])
        if (point.key["depth"], point.key["width"]) == (28, 1)
    }
    model, optimizer, _, _ = rate_transfer.setup(settings, digits, by_line["completep"])
    np.testing.assert_allclose(model.scheme.constants(12).residual, 3 / 12)
    assert by_line["completep"].start.scheme is model.scheme
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.ones((1, 8, 8, 1)))["params"]
    ones = jax.tree.map(lambda leaf: jnp.ones(leaf.shape), {"head": shapes["head"]})
    assert ones["head"]["kernel"].shape == (16, 10)  # 4 stem channels, width 1, stage 3
    rule = optimizer({"learning_rate": 1.0}).init(shapes)
    assert jax.tree.structure(rule)  # all leaves have a counterpart in the base
    plain = rate_transfer.setup(settings, digits, by_line["skipinit"]).model
    assert plain.scheme == "skipinit"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"depths": (12,)}, "depth=12 found; a WRN-n-k has n = 6N"),
        ({"widths": (0,)}, "width=0 found; expected k >= 1"),
        ({"log2_rates": (-3, 2000)}, "--log2_rates 2000 found; expected -126 to 127"),
    ],
)
def test_what_no_run_can_be_is_refused_before_anything_is_made(option, message, tmp_path):
    command = rate_transfer.Command(scale="smoke", out=tmp_path / "out", **option)
    with pytest.raises(SystemExit, match=f"^{message}"):
        main(rate_transfer.EXPERIMENT, command)
    assert not (tmp_path / "out").exists()


def test_the_table_says_how_far_a_rate_moved_and_what_it_costs():
    rows = [
        row(line, depth, power, loss)
        for line, depth, losses in (
            ("skipinit", 10, (0.9, 0.5, 0.7)), ("skipinit", 28, (0.4, 0.6, None)),
            ("completep", 10, (0.9, 0.5, 0.7)), ("completep", 28, (0.8, 0.4, 0.6)),
        )
        for power, loss in zip((-5, -4, -3), losses, strict=True)
    ]  # fmt: skip
    text = rate_transfer.table(Results(SETTINGS, None, rows))
    by_depth, by_width = text.split("\n\n")[0], text.split("\n\n")[-1]
    skipinit, completep = by_depth.splitlines()[-2:] if "SkipInit" in by_depth else by_depth
    assert skipinit.split()[:2] == ["SkipInit", "2^-4"] and "2^-5!, +0.2" in skipinit
    assert skipinit.split()[-1] == f"{math.log(0.5) / math.log(2.8):.2f}"
    assert completep.split() == ["CompleteP", "2^-4", "2^-4", "0.00"]
    assert "width 1" in by_width


@pytest.mark.slow
def test_runs_are_made_drawn_and_kept(tmp_path):
    options = "--scale", "smoke", "--depths", "10"
    given = *options, "--out", tmp_path / "out"
    output = make("rate_transfer", *given)
    rows = lines_of(tmp_path / "out" / "rows.csv")
    assert len(rows) == 2 * 2 * 2  # widths, schemes, rates
    assert all(float(each["train_loss"]) > 0 for each in rows)
    for name in ("figure", "rates_by_depth", "width", "rates_by_width"):
        assert (tmp_path / "out" / f"{name}.png").stat().st_size > 10_000
    assert "CompleteP" in output
    assert "8 runs are there already." in make("rate_transfer", *given)
    assert redrawn("rate_transfer", options, tmp_path) == 8
