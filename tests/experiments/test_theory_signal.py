"""The experiment on signal propagation as a user runs it, and its numbers."""

import numpy as np
import pytest
from PIL import Image

from experiments import theory_signal as experiment
from experiments.main import main
from experiments.untrained import in_order
from nf_resnets import analysis, schemes
from tests.experiments.as_a_user import lines_of, make


@pytest.mark.slow
def test_the_smoke_scale_runs_and_a_second_start_makes_nothing_anew(tmp_path):
    arguments = ("--scale", "smoke", "--schemes", "alpha_one", "batchnorm", "--out", tmp_path)
    make("theory_signal", *arguments)
    rows = lines_of(tmp_path / "rows.csv")
    assert len(rows) == 2 * 2 * 3 and tuple(rows[0]) == experiment.EXPERIMENT.columns
    assert all(float(row["form"]) > 0 for row in rows)
    assert Image.open(tmp_path / "figure.png").size[0] > 1000
    assert "pre_activation, alpha_one" not in make("theory_signal", *arguments)


def test_without_the_relu_the_gains_alone_are_multiplied():
    form = analysis.propagate_rectified([2.0, 2.0, 2.0])
    found = experiment.without_relu(form, schemes.get("alpha_one"))
    np.testing.assert_allclose(found, [3, 9, 27], rtol=1e-6)
    form = analysis.propagate_rectified([1.0, 1.0, 1.0], normalized=True)
    found = experiment.without_relu(form, schemes.get("batchnorm"))
    np.testing.assert_allclose(found, [2, 3, 4], rtol=1e-6)


def test_rows_are_in_the_order_of_the_settings():
    rows = [{"scheme": name, "k": str(k)} for k in (10, 9) for name in ("alpha_one", "fixup", "x")]
    found = in_order(rows, scheme=("fixup", "alpha_one"), k=(9, 10))
    expected = [("fixup", "9"), ("fixup", "10"), ("alpha_one", "9"), ("alpha_one", "10")]
    assert [(row["scheme"], row["k"]) for row in found] == expected


def test_an_unknown_scheme_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="did you mean 'fixup'"):
        main(experiment.EXPERIMENT, experiment.Command(schemes=("fixpu",), out=tmp_path))
