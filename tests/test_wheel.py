"""The wheel in an environment of its own: every kind of command, from an empty folder."""

import configparser
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def test_all_packages_are_installed():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    folders = (path.parent.relative_to(ROOT) for path in ROOT.glob("nf_resnets/**/__init__.py"))
    expected = {".".join(folder.parts) for folder in folders} | {"nf_resnets.experiments"}
    assert set(config["options"]["packages"].split()) == expected


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built by setuptools from a copy, in which nothing of an earlier build is."""
    pytest.importorskip("setuptools", "70.1", reason="setuptools 70.1 is not installed")
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("nf_resnets", "experiments"):
        unmade = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=unmade)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    code = f"from setuptools.build_meta import build_wheel; build_wheel({str(made)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    (found,) = made.iterdir()
    return found


@pytest.fixture(scope="module")
def nf_resnets(wheel, tmp_path_factory):
    """The command of an environment with the wheel; what the wheel needs is this one's."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps"]
    subprocess.run(
        [*install, "--no-index", wheel],
        cwd=folder,
        env=ENVIRONMENT,
        check=True,
        capture_output=True,
    )
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "bin" / "nf-resnets"


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = [Path(name) for name in zipfile.ZipFile(wheel).namelist()]
    assert {name.parts[0] for name in names} == {"nf_resnets", "nf_resnets-0.2.0.dist-info"}
    held = {str(name) for name in names if name.suffix == ".py"}
    package = {str(path.relative_to(ROOT)) for path in (ROOT / "nf_resnets").rglob("*.py")}
    beside = {f"nf_resnets/experiments/{path.name}" for path in ROOT.glob("experiments/*.py")}
    assert held == package | beside
    assert Path("nf_resnets/py.typed") in names


@pytest.mark.slow
def test_commands_run_from_an_empty_folder(nf_resnets, tmp_path):
    def run(line, code=0):
        found = subprocess.run(
            [nf_resnets, *line.split()], cwd=tmp_path, env=ENVIRONMENT, capture_output=True,
            text=True, timeout=300,
        )  # fmt: skip
        assert found.returncode == code, found.stderr
        return found.stdout + found.stderr

    assert "usage: nf-resnets COMMAND" in run("--help")
    assert run("swep", 2).startswith("COMMAND='swep' found; expected one of demo, ")
    run("demo --scale smoke --grid model=wrn-10-1 scheme=fixup")
    run("experiment theory_signal --scale smoke")
    run("analyze --model wrn-10-1")
    run("sweep --grid peak_lr=0.1 --model wrn-10-1 --stem-channels 4 --steps 2 --out runs/sweep")
    run("train --model wrn-10-1 --stem-channels 4 --epochs 0.1 --out net.safetensors --samples d")
    assert "WideResNet" in run("show net.safetensors")
    assert "%" in run(f"predict net.safetensors {next(tmp_path.glob('d/*.png'))}")
    run("tune net.safetensors --out tuned.safetensors --epochs 0.1")
    run("export net.safetensors --out net.stablehlo --platforms cpu")
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png")}
    assert {"runs/fixup_fig3_depth-smoke/figure.png", "runs/theory_signal-smoke/figure.png"} <= made
    assert not list(nf_resnets.parents[1].rglob("runs"))
