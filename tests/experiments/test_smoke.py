"""Every experiment at its smallest scale, as a user runs it."""

import importlib
import re
from pathlib import Path

import pytest

from experiments import main
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


@pytest.mark.slow
def test_the_example_of_contributing_is_an_experiment(tmp_path, as_before):
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
    (code,) = re.findall(r"```py\n(.*?)```", text, re.S)
    names = {"__name__": "experiments.digits_rate", "__package__": "experiments"}
    exec(code, names)
    assert main.main(names["EXPERIMENT"], main.Command(scale="smoke", out=tmp_path)) == 0
    table = (tmp_path / "table.txt").read_text()
    assert re.fullmatch(r"scheme +test accuracy\nFixup +\d+\.\d\nSkipInit +\d+\.\d\n", table)
    assert (tmp_path / "figure.png").exists()
