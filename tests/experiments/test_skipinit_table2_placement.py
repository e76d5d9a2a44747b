"""The BatchNorm variants as a user runs them."""

import dataclasses

import pytest

from experiments import skipinit_table2_placement as table2
from nf_resnets import schemes
from tests.experiments.as_a_user import lines_of, make


@pytest.mark.slow
def test_smoke(tmp_path):
    out = tmp_path / "out"
    make("skipinit_table2_placement", "--scale", "smoke", "--out", out)
    settings = table2.SCALES["smoke"]
    rows = lines_of(out / "rows.csv")
    assert [row["line"] for row in rows] == ["batchnorm_last"] * len(settings.log2_rates)
    assert "one BatchNorm, last" in (out / "table.txt").read_text()
    assert (out / "figure.png").exists()


def test_the_variants_are_those_of_the_feedback():
    anatomy = {name: schemes.get(line.scheme).anatomy for name, line in table2.LINES.items()}
    assert anatomy["batchnorm"].norm_place == "default"
    assert anatomy["batchnorm_last"].norm_place == "last"
    assert anatomy["batchnorm_merge"].norm_place == "merge"
    block = anatomy["batchnorm_sqrt_half"]
    # The whole block is multiplied, y = a (x + F).
    assert block.residual == block.identity == 0.5**0.5 and block.norm == "batch"
    for name, a in (("batchnorm_half", 0.5), ("batchnorm_quarter", 0.25)):
        assert anatomy[name] == dataclasses.replace(block, residual=a, identity=a)
    assert anatomy["skipinit"].norm is None
