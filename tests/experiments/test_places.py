"""Out paths of all experiments and of the other commands: tried before anything is made."""

import dataclasses
import importlib
import os
from pathlib import Path

import pytest
import tyro

from experiments.main import main
from nf_resnets.analysis import __main__ as analysis
from nf_resnets.sweep import __main__ as sweep

ROOT = Path(__file__).parents[2]
BAD = ("~nobody-of-that-name/x", "file/x", "/proc/x", "loop/x", "/dev/null")
MODULES = {
    path.stem: importlib.import_module(f"experiments.{path.stem}")
    for path in sorted((ROOT / "experiments").glob("*.py"))
}
EXPERIMENTS = [name for name, module in MODULES.items() if hasattr(module, "EXPERIMENT")]


def test_all_experiments_are_looked_at():
    assert len(EXPERIMENTS) >= 17


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    os.symlink("loop", "loop")

    def made(*arguments, **options):
        raise AssertionError("something was made")

    monkeypatch.setattr("nf_resnets.sweep.engine.make", made)
    return tmp_path


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_try_their_folder_first(here, name, as_before):
    # What they load has nothing to do with the folder, and takes its time.
    experiment = dataclasses.replace(MODULES[name].EXPERIMENT, load=lambda *_: None)
    for bad in BAD:
        with pytest.raises(SystemExit) as found:
            main(experiment, experiment.command(scale="smoke", out=Path(bad)))
        assert str(found.value).startswith("--out") and "\n" not in str(found.value)
    assert sorted(path.name for path in here.iterdir()) == ["file", "loop"]


@pytest.mark.parametrize("bad", BAD)
def test_a_sweep_and_an_analysis_try_their_folder_first(here, bad, monkeypatch):
    monkeypatch.setattr(analysis, "analyse", lambda *_: pytest.fail("something was measured"))
    for command, kind in ((sweep.main, sweep.Command), (analysis.main, analysis.Options)):
        with pytest.raises(SystemExit) as found:
            command(tyro.cli(kind, args=["--out", bad]))
        assert str(found.value).startswith("--out") and "\n" not in str(found.value)


def test_homes_are_expanded_everywhere(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    from experiments.folder import ResultsFolder
    from nf_resnets.sweep import command
    from nf_resnets.sweep.options import Options

    ResultsFolder(Path("~/results"), {}, grid=(), columns=("a",), key=("a",))
    analysis.folder_for(analysis.Options(out=Path("~/page")))
    monkeypatch.setattr(command, "_run", lambda options, *_: options.out)
    assert command.run(Options(out=Path("~/x")), {}, {}, "Sweep") == tmp_path / "x"
    assert {path.name for path in tmp_path.iterdir()} == {"results", "page"}
