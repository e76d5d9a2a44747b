"""SkipInit's table 1 as a user runs it; started again it makes only what is missing."""

import dataclasses

import pytest

from experiments import skipinit_table1_depth as table1
from experiments.main import main
from experiments.rates import Command
from nf_resnets import models, schemes
from tests.experiments.as_a_user import lines_of, make


@pytest.mark.slow
def test_smoke_and_a_second_start_that_finds_all_there(tmp_path, as_before, capsys):
    out = tmp_path / "out"
    shown = make("skipinit_table1_depth", "--scale", "smoke", "--out", out)
    rows = lines_of(out / "rows.csv")
    settings = table1.SCALES["smoke"]
    assert len(rows) == len(settings.lines) * len(settings.log2_rates)
    assert "α = 0 (SkipInit)" in shown and "(2^" in (out / "table.txt").read_text()
    assert (out / "figure.png").exists()

    assert main(table1.EXPERIMENT, Command(scale="smoke", out=out)) == 0
    assert f"{len(rows)} runs are there already." in capsys.readouterr().out
    assert lines_of(out / "rows.csv") == rows


def test_every_line_is_a_scheme_and_every_depth_a_network():
    for settings in table1.SCALES.values():
        assert set(settings.lines) <= set(table1.LINES)
        for depth in settings.depths:
            assert models.WideResNet(depth=depth, width=settings.width).num_branches > 0
    for line in table1.LINES.values():
        schemes.get(line.scheme)
    assert [name for name, line in table1.LINES.items() if not line.l2] == ["skipinit_no_l2"]
    without = schemes.get(table1.LINES["skipinit_no_bias"].scheme).anatomy
    with_biases = schemes.get(table1.LINES["skipinit"].scheme).anatomy
    assert without == dataclasses.replace(with_biases, conv_biases=False)
