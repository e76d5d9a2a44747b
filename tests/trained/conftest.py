"""One training of a network for digits, and its compiled program, for all tests here."""

import dataclasses

import jax
import pytest

from nf_resnets.cli import networks as command
from nf_resnets.command_line import finish
from nf_resnets.sweep import RunSettings

EPOCHS = 4  # of 44 steps each
REAL, COMPILE = command.fit.training.image_program, jax.stages.Lowered.compile


def compile_quickly(lowered):
    """In half the time; steps of so small a network take no longer for it."""
    return COMPILE(lowered, {"xla_backend_optimization_level": 0})


def wanted(out, **changes):
    names = [name for name in changes if name in RunSettings.__dataclass_fields__]
    settings = {
        "model": "wrn-10-1", "stem_channels": 8, "epochs": EPOCHS, "batch_size": 32,
        **{name: changes.pop(name) for name in names},
    }  # fmt: skip
    how = dataclasses.replace(command.fit.SETTINGS, **settings)
    return command.Train(**{"out": out, "settings": how, **changes})


@pytest.fixture(scope="session")
def image_program():
    """Compiles once: trainings that differ in their rate alone share a program, as in a sweep."""
    programs = {}

    def image_program(model, dataset, optimizer, mesh, training, start, **options):
        key = model, training
        if key not in programs:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(jax.stages.Lowered, "compile", compile_quickly)
                programs[key] = REAL(model, dataset, optimizer, mesh, training, start, **options)
        return programs[key]

    return image_program


@pytest.fixture
def compiled_once(monkeypatch, image_program):
    monkeypatch.setattr(command.fit.training, "image_program", image_program)


@pytest.fixture(scope="session")
def home(tmp_path_factory, image_program):
    """A folder with digits.safetensors, of an uninterrupted training, and ten sample images."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command.fit.training, "image_program", image_program)
        out = folder / "digits.safetensors"
        assert finish(wanted(out, samples=folder / "digits")) == 0
    return folder
