"""Every experiment at its smallest scale, as a user runs it."""

import pytest

from nf_resnets.__main__ import experiments
from tests.experiments.as_a_user import lines_of, make

NAMES = [name for name in experiments() if name != "skipinit_lr_batch"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_smoke_and_a_second_start_that_makes_nothing(name, tmp_path):
    options = ("--scale", "smoke", "--out", tmp_path)
    shown = make(name, *options)
    rows, table = lines_of(tmp_path / "rows.csv"), (tmp_path / "table.txt").read_text()
    assert rows and table.strip() in shown and (tmp_path / "figure.png").exists()
    assert {row.get("status") for row in rows} <= {"finished", "diverged", "", None}
    again = make(name, *options)
    assert "compiling" not in again and table.strip() in again
    assert lines_of(tmp_path / "rows.csv") == rows
