"""Trainings of the commands that are cut off, and go on; networks that cannot be written."""

import dataclasses
import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from nf_resnets import data, places, trained
from nf_resnets.trained import command, resume
from nf_resnets.training.checkpoint import CheckpointError, Checkpoints
from tests.trained.conftest import wanted
from tests.trained.networks import assert_same, drawn

ROOT = Path(__file__).parents[2]
RECIPE = wanted("").recipe


@pytest.fixture(autouse=True)
def signals_are_heard():
    """Also where the tests run in a shell's background, which ignores Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted(monkeypatch, number=signal.SIGINT):
    """Lets a signal come at the end of the first epoch, once."""
    real, left = command.Display._print, [number]

    def say(self, line):
        real(self, line)
        if left and " step " in line:
            signal.raise_signal(left.pop())

    monkeypatch.setattr(command.Display, "_print", say)


def fails(wanted, capsys, code=2):
    capsys.readouterr()
    assert command.run(wanted) == code
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_training_that_was_stopped_goes_on_to_the_same_file(
    tmp_path, monkeypatch, capsys, compiled_once, home, number
):
    interrupted(monkeypatch, number)
    out = tmp_path / "net.safetensors"
    err = fails(wanted(out), capsys, 128 + number)
    folder = tmp_path / "net.safetensors.unfinished"
    assert err.startswith(f"Stopped; step 44 is kept in {folder}, and the same command goes on")
    assert err.count("\n") == 1
    assert not out.exists() and folder.is_dir()
    capsys.readouterr()
    assert command.run(wanted(out)) == 0
    found = capsys.readouterr()
    assert f"Going on from {folder}, step 44 of 176." in found.err
    assert "step  44 of 176" not in found.out and "step 176 of 176" in found.out
    assert out.read_bytes() == (home / "digits.safetensors").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["net.safetensors"]


@pytest.mark.slow
def test_a_stop_after_the_last_step_goes_on_with_the_test(
    tmp_path, monkeypatch, capsys, compiled_once, home
):
    out = tmp_path / "net.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(resume, "refuse_labels", stop)
        err = fails(wanted(out), capsys, 130)
    assert "step 176 is kept in" in err
    assert command.run(wanted(out)) == 0
    assert out.read_bytes() == (home / "digits.safetensors").read_bytes()


def stop(*_):
    raise KeyboardInterrupt


def test_before_the_first_checkpoint_nothing_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(command.fit.training, "image_program", stop)
    assert fails(wanted(tmp_path / "net"), capsys, 130) == "Stopped; nothing was written.\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_another_training_does_not_go_on_from_there(tmp_path, capsys):
    out, dataset = tmp_path / "net", data.load("digits")
    folder = tmp_path / "net.unfinished"
    model = command._network(wanted(out), dataset)
    identity = command.fit.identity(model, dataset, RECIPE)
    checkpoints = Checkpoints(folder, identity)
    checkpoints.save(44, {"w": np.zeros(3)})
    checkpoints.close()
    for changes, name in (
        ({"recipe": dataclasses.replace(RECIPE, seed=1)}, "recipe.seed"),
        ({"scheme": "skipinit"}, "network.fields.scheme"),
    ):
        err = fails(wanted(out, **changes), capsys)
        assert "belongs to another run" in err and name in err and str(folder) in err
    assert Checkpoints(folder, {}).steps() == [44] and not out.exists()


def test_other_images_with_the_same_labels_are_another_training():
    dataset = data.load("digits")
    model = command._network(wanted("net"), dataset)
    images = dataset.train.images.copy()
    images[7, 0, 0, 0] += 1
    train = data.Split(images, dataset.train.labels)
    for other in (
        dataclasses.replace(dataset, train=train),
        dataclasses.replace(dataset, mean=np.asarray(dataset.mean) + 1),
    ):
        identities = [command.fit.identity(model, each, RECIPE) for each in (dataset, other)]
        assert {name for name in identities[0] if identities[0][name] != identities[1][name]} == {
            "images"
        }


@pytest.mark.slow
def test_fine_tuning_goes_on_as_well(tmp_path, monkeypatch, capsys):
    out = tmp_path / "net"
    assert command.run(wanted(out)) == 0
    for name in ("one", "other"):
        tuned = command.Tune(out, tmp_path / name, recipe=RECIPE, learn="small")
        if name == "one":
            with monkeypatch.context() as patch:
                interrupted(patch)
                assert "step 44 is kept" in fails(tuned, capsys, 130)
            other = dataclasses.replace(tuned, learn="head")
            assert "identity 'learn' is 'small' there" in fails(other, capsys)
        assert command.run(tuned) == 0
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_a_run_that_diverges_leaves_nothing_that_is_in_the_way(
    tmp_path, monkeypatch, capsys, compiled_once
):
    monkeypatch.setattr(resume, "SECONDS", 1e-6)
    hot = dataclasses.replace(RECIPE, learning_rate=1e9)
    err = fails(wanted(tmp_path / "net", recipe=hot), capsys)
    assert "the run diverged at step" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_saved_does_not_end_a_training(
    tmp_path, monkeypatch, capsys, compiled_once, home
):

    def full(self, step, tree):
        raise CheckpointError(f"step {step} cannot be saved: No space left on device.")

    monkeypatch.setattr(Checkpoints, "save", full)
    monkeypatch.setattr(resume, "SECONDS", 1e-6)
    out = tmp_path / "net.safetensors"
    assert command.run(wanted(out)) == 0
    assert "step 176 cannot be saved: No space left on device. The training goes on without." in (
        capsys.readouterr().err
    )
    assert out.read_bytes() == (home / "digits.safetensors").read_bytes()
    with monkeypatch.context() as patch:
        interrupted(patch)
        assert "step 44 cannot be saved" in fails(wanted(tmp_path / "other"), capsys)


@pytest.fixture
def trained_at_once(monkeypatch):
    """In place of a training: drawn weights, the same each time."""

    def fit(model, dataset, *_, **__):
        notes = {"steps": 14, "test_accuracy": 0.5, "test_loss": 1.0}
        return trained.Trained(model, drawn(model), trained.Images.of(dataset), notes)

    monkeypatch.setattr(command.fit, "fit", fit)


def test_a_network_that_cannot_be_written_is_kept_elsewhere(
    tmp_path, monkeypatch, capsys, trained_at_once
):
    """Beside the file; where that cannot be either, in the temporary folder."""
    real = places.write_whole
    target, spare = tmp_path / "target", tmp_path / "spare"
    spare.mkdir()
    monkeypatch.setattr(command.tempfile, "tempdir", str(spare))
    out = target / "net.safetensors"
    for bad in ("net.safetensors", "target"):

        def full(path, content, *, overwrite, bad=bad):
            if bad in path.parts:
                raise places.PlaceError(f"{path} cannot be written: No space left on device.")
            real(path, content, overwrite=overwrite)

        with monkeypatch.context() as patch:
            patch.setattr(places, "write_whole", full)
            err = fails(wanted(out), capsys)
        assert err.startswith(f"{out} cannot be written: No space left on device; the network is")
        assert err.count("\n") == 1
        kept = Path(err.split("is kept in ")[1].strip().removesuffix("."))
        assert kept.parent == (target if bad == "net.safetensors" else spare)
        found = trained.load(kept)
        assert found.notes["steps"] == 14
        assert_same(found.variables, drawn(found.model))


@pytest.mark.slow
def test_on_a_disk_that_is_too_small_a_network_is_kept_elsewhere(tmp_path, monkeypatch, capsys):
    """A disk of 64 KiB takes the trial, and not the network (beside its checkpoints or not)."""
    disk, spare = tmp_path / "disk", tmp_path / "spare"
    disk.mkdir()
    spare.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    monkeypatch.setattr(command.tempfile, "tempdir", str(spare))
    try:
        err = fails(wanted(disk / "net", scheme="skipinit"), capsys)
        last = err.splitlines()[-1]
        assert last.startswith(str(disk / "net"))
        assert "No space left on device" in last and "the network is kept in" in last
        (kept,) = spare.iterdir()
        assert str(kept) in last and trained.load(kept).notes["steps"] == 176
        # Read-only, it is refused before anything is made.
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        monkeypatch.setattr(command.data, "load", stop)
        assert "Read-only file system" in fails(wanted(disk / "other"), capsys)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("split", "label"), [("train", -1), ("train", 10), ("test", -1), ("test", 10)]
)
def test_a_label_that_is_no_class_is_not_called_divergence(
    tmp_path, monkeypatch, capsys, split, label
):
    """One that was changed after the data set was checked."""
    dataset = data.load("digits")
    copies = {
        name: data.Split(each.images, each.labels.copy())
        for name, each in (("train", dataset.train), ("test", dataset.test))
    }
    dataset = dataclasses.replace(dataset, **copies)
    getattr(dataset, split).labels[5] = label
    monkeypatch.setattr(command.data, "load", lambda *_: dataset)
    err = fails(wanted(tmp_path / "net"), capsys)
    where = "the batch of step" if split == "train" else "the test split"
    assert f"a label in {where}" in err and "diverged" not in err


BAD = ("~nobody-of-that-name/net", "file/net", "n" * 250, "/proc/net", "/dev/null", "loop/net")


@pytest.mark.parametrize("out", BAD)
def test_an_out_path_is_tried_before_anything_is_made(tmp_path, monkeypatch, capsys, out):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    os.symlink("loop", "loop")
    monkeypatch.setattr(command.data, "load", stop)
    monkeypatch.setattr(command.translation, "load_pairs", stop)
    monkeypatch.setattr(command.file, "load", stop)
    commands = [
        wanted(out, overwrite=True),
        command.TrainTranslator(Path(out), overwrite=True),
        command.Tune(Path("net"), Path(out), overwrite=True),
    ]
    if len(out) < 250:  # an export writes nothing else under its name
        commands.append(command.Export(Path("net"), Path(out), overwrite=True))
        if out != "/dev/null":
            monkeypatch.setattr(command.data, "load", stop)
            commands.append(wanted("net", samples=Path(out)))
    for each in commands:
        err = fails(each, capsys)
        assert err.startswith("--") and err.count("\n") == 1, err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "loop"]


def test_a_home_folder_is_expanded(tmp_path, monkeypatch, trained_at_once):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert command.run(wanted(Path("~/a/net"))) == 0
    assert (tmp_path / "a" / "net").is_file()
    assert trained.load("~/a/net").model.depth == 10


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 150, 219])
def test_a_training_that_was_killed_ends_with_the_same_bits(tmp_path, step):
    """SIGKILL at a step, in a process of its own; then the same command to its end."""
    code = """
import os, signal, sys
from nf_resnets.trained import __main__, resume
resume.SECONDS, at = 1e-6, int(sys.argv.pop(1))
real = resume.train
def train(program, start, *, on_step, **options):
    def killing(step, metrics):
        if step == at:
            os.kill(os.getpid(), signal.SIGKILL)
        on_step(step, metrics)
    return real(program, start, on_step=killing, **options)
resume.train = train
raise SystemExit(__main__.run())
"""

    def call(at, out):
        arguments = ("train", "--model", "wrn-10-1", "--stem-channels", "4", "--out", str(out))
        return subprocess.run(
            [sys.executable, "-c", code, str(at), *arguments],
            cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=240,
        )  # fmt: skip

    twin, out = tmp_path / "twin", tmp_path / "net"
    assert call(0, twin).returncode == 0
    assert call(step, out).returncode == -signal.SIGKILL
    assert not out.exists()
    done = call(0, out)
    assert done.returncode == 0, done.stderr
    # There is a checkpoint after each call that makes steps, and the first one makes one.
    assert ("Going on from" in done.stderr) == (step > 1)
    digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in (twin, out)}
    assert len(digests) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net", "twin"]


@pytest.mark.slow
def test_a_translators_training_goes_on(tmp_path, monkeypatch, capsys):
    pytest.importorskip("sentencepiece")
    pytest.importorskip("sacrebleu")
    from nf_resnets.trained import fit_translation
    from nf_resnets.trained.fit_translation import TranslationRecipe

    recipe = TranslationRecipe(
        layers=1, channels=8, heads=2, steps=12, max_tokens=600, vocabulary=200, dropout=0.1
    )
    real = fit_translation.run_to_end

    def interrupted_at_1(*arguments, on_step, **options):
        def interrupting(step, metrics):
            if step == 1:
                signal.raise_signal(signal.SIGINT)
            on_step(step, metrics)

        return real(*arguments, on_step=interrupting, **options)

    for name in ("one", "other"):
        wanted = command.TrainTranslator(tmp_path / name, recipe=recipe, tested=2)
        if name == "one":
            with monkeypatch.context() as patch:
                patch.setattr(fit_translation, "run_to_end", interrupted_at_1)
                assert "step 1 is kept" in fails(wanted, capsys, 130)
        assert command.run(wanted) == 0
    one, other = (trained.load(tmp_path / name) for name in ("one", "other"))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    assert jax.tree.all(jax.tree.map(np.array_equal, one.variables, other.variables))
