"""Transformers' best rates against depth and width: which networks are made, and a run."""

import dataclasses
import types

import numpy as np
import pytest

from experiments import rate_transfer_transformer
from experiments.main import settings_of
from tests.experiments.as_a_user import lines_of, make, redrawn

SMOKE = rate_transfer_transformer.SCALES["smoke"]
SENTENCES = types.SimpleNamespace(vocabulary=types.SimpleNamespace(target_size=20), train=None)


@pytest.mark.parametrize("depths", [(2, 4), (4,)])
def test_networks_know_their_base(depths):
    """CompleteP's branches at 4 layers, as those of 2 layers say."""
    settings = dataclasses.replace(
        SMOKE, lines=("completep",), depths=depths, widths=(16,), log2_rates=(-6,)
    )
    points = rate_transfer_transformer.EXPERIMENT.points(settings, SENTENCES, [])
    assert [(p.key["line"], p.key["depth"]) for p in points] == [("completep", d) for d in depths]
    deep = rate_transfer_transformer.setup(settings, SENTENCES, points[-1]).model
    assert (deep.num_branches, deep.scheme.title) == (10, "CompleteP with LayerNorm")
    np.testing.assert_allclose(deep.scheme.constants(10).residual, 1 / 2)
    assert deep.scheme.constants(5).residual.tolist() == [1.0] * 5


@pytest.mark.parametrize(
    ("option", "message"),
    [("depths", "--depths 3 found; expected multiples of 2"),
     ("widths", "--widths 3 found; expected multiples of 16")],
)  # fmt: skip
def test_sizes_that_no_network_has(option, message):
    command = rate_transfer_transformer.Command(**{option: (3,)})
    with pytest.raises(SystemExit) as refused:
        settings_of(rate_transfer_transformer.EXPERIMENT, command)
    assert message in str(refused.value)


@pytest.mark.slow
def test_runs_are_made_drawn_and_drawn_again(tmp_path):
    given = "--scale", "smoke", "--depths", "2"
    output = make("rate_transfer_transformer", *given, "--out", tmp_path / "out")
    rows = {tuple(row[name] for name in ("line", "width", "log2_rate")): row
            for row in lines_of(tmp_path / "out" / "rows.csv")}  # fmt: skip
    assert len(rows) == 2 * 2 * 2 and "CompleteP with LayerNorm" in output  # schemes, widths, rates
    for rate in ("-8", "-6"):
        base, same = (rows[line, "16", rate] for line in SMOKE.lines)
        assert base["train_loss"] == same["train_loss"]  # at the base they are one network
        wide, slower = (rows[line, "32", rate] for line in SMOKE.lines)
        assert wide["train_loss"] != slower["train_loss"]
    assert redrawn("rate_transfer_transformer", given, tmp_path) == 8
