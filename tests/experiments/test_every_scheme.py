"""Every experiment at its smallest scale, with each scheme that any of its scales has."""

import dataclasses
import importlib
import pkgutil
from pathlib import Path

import pytest

import experiments
from benchmarks import fresh
from experiments.main import main
from tests.experiments.as_a_user import one_device

NAMES = [
    module.name
    for module in pkgutil.iter_modules(experiments.__path__)
    if hasattr(importlib.import_module(f"experiments.{module.name}"), "EXPERIMENT")
]
# Networks of the smallest scales, by their depths, and those of three blocks a stage.
THREE_BLOCKS = {8: 20, 10: 22, 16: 22, 26: 50}


def with_all(experiment):
    """The smallest scale with the schemes of all scales, and three blocks a stage at the end."""
    smoke, scales = experiment.scales["smoke"], experiment.scales.values()
    changed = {
        name: tuple(dict.fromkeys(each for scale in scales for each in getattr(scale, name)))
        for name in ("schemes", "variants", "inits")
        if hasattr(smoke, name)
    }
    if hasattr(smoke, "depths"):
        *others, deepest = smoke.depths
        changed["depths"] = (*others, THREE_BLOCKS.get(deepest, deepest))
    if hasattr(smoke, "depth"):
        changed["depth"] = THREE_BLOCKS.get(smoke.depth, smoke.depth)
    return dataclasses.replace(smoke, **changed)


def train(name, out):
    """Makes the experiment's folder, and returns the exit code of its command."""
    experiment = importlib.import_module(f"experiments.{name}").EXPERIMENT
    experiment = dataclasses.replace(experiment, scales={"smoke": with_all(experiment)})
    command = experiment.command(scale="smoke", out=Path(out))
    if hasattr(command, "steps"):
        command = dataclasses.replace(command, steps=4)
    return main(experiment, command)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_scheme_trains(name, tmp_path):
    # So few steps take less time than compiling them well.
    environment = {**one_device(), "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
    train = "tests.experiments.test_every_scheme:train"
    assert fresh.call(train, name, str(tmp_path), **environment) == 0
    assert (tmp_path / "rows.csv").exists() and not (tmp_path / "failures.txt").exists()
