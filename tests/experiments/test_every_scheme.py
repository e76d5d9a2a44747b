"""Every experiment at its smallest scale, with each scheme that any of its scales has."""

import dataclasses
import importlib
import pkgutil

import pytest

import experiments
from experiments.main import main
from tests.experiments.as_a_user import lines_of

NAMES = [
    module.name
    for module in pkgutil.iter_modules(experiments.__path__)
    if hasattr(importlib.import_module(f"experiments.{module.name}"), "EXPERIMENT")
]
# Networks of the smallest scales, and those of three blocks a stage.
THREE_BLOCKS = {8: 20, 10: 22, 16: 22, 26: 50}


def _with_all(experiment):
    """The smallest scale with the schemes of all scales, and with three blocks a stage."""
    smoke, others = experiment.scales["smoke"], experiment.scales.values()
    changed = {
        name: tuple(dict.fromkeys(each for scale in others for each in getattr(scale, name)))
        for name in ("schemes", "variants", "inits")
        if hasattr(smoke, name)
    }
    if hasattr(smoke, "depths"):
        changed["depths"] = tuple(dict.fromkeys(THREE_BLOCKS.get(n, n) for n in smoke.depths))
    if hasattr(smoke, "depth"):
        changed["depth"] = THREE_BLOCKS.get(smoke.depth, smoke.depth)
    return dataclasses.replace(smoke, **changed)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_makes_every_row(name, tmp_path, as_before):
    experiment = importlib.import_module(f"experiments.{name}").EXPERIMENT
    experiment = dataclasses.replace(experiment, scales={"smoke": _with_all(experiment)})
    assert main(experiment, experiment.command(scale="smoke", out=tmp_path)) == 0
    assert lines_of(tmp_path / "rows.csv") and (tmp_path / "figure.png").exists()
    assert not (tmp_path / "failures.txt").exists()
