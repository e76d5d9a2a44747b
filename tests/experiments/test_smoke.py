"""Every experiment at its smallest scale, as a user runs it."""

import importlib

import pytest

from nf_resnets import schemes
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


# Its schemes are one for each network; the smallest scale has every kind of them.
BY_NETWORK = "rescale_imagenet"


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != BY_NETWORK])
def test_every_scheme_of_the_figure_trains(name, tmp_path):
    scales = importlib.import_module(f"experiments.{name}").EXPERIMENT.scales
    names = {scale: {point.get("scheme") for point in scales[scale]} for scale in scales}
    missing = sorted(set().union(*names.values()) - names["smoke"])
    if not missing:
        pytest.skip("the smallest scale has every scheme")
    make(name, "--scale", "smoke", "--grid", f"scheme={','.join(missing)}", "--out", tmp_path)
    rows = lines_of(tmp_path / "rows.csv")
    if "scheme" in rows[0]:
        assert {row["scheme"] for row in rows} >= {*missing}
    else:  # such rows begin with the scheme's title
        titles = " ".join(row["title"] for row in rows)
        assert all(schemes.get(name).title in titles for name in missing)
