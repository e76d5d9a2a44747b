"""The command as a user runs it: what it writes, what it refuses, what it leaves alone."""

import csv
import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tyro
from PIL import Image

from nf_resnets import models, roles, schemes, trained
from nf_resnets.analysis import __main__ as command
from nf_resnets.roles import Role

ROOT = Path(__file__).parents[2]


def options(folder, **changes):
    small = {"model": "wrn-16-1", "batch_size": 16, "stem_channels": 4}
    return command.Options(**{**small, "out": folder, **changes})


def rows_of(folder):
    with open(folder / "blocks.csv", newline="") as stream:
        return list(csv.DictReader(stream))


def test_a_page_is_written(tmp_path, capsys):
    arguments = [
        *("--model", "cifar-resnet-8", "--scheme", "fixup", "--batch-size", "16"),
        *("--seed", "3", "--stem-channels", "4", "--out", str(tmp_path / "page")),
    ]
    command.main(tyro.cli(command.Options, args=arguments))
    said = capsys.readouterr().out
    assert "L = 3" in said and "page.png" in said
    rows = rows_of(tmp_path / "page")
    assert [row["k"] for row in rows] == list("123")
    assert [row["transition"] for row in rows] == ["False", "True", "True"]
    assert all(float(row["branch"]) == 0 == float(row["share"]) for row in rows)
    # Theorem 1 holds for the drawn head, through which gradients pass.
    assert all(float(row["gradient_norm"]) >= float(row["bound"]) for row in rows)
    assert float(rows[0]["gradient_norm"]) > 0
    image = Image.open(tmp_path / "page" / "page.png")
    assert image.size[0] > 1500 and len(image.convert("RGB").getcolors(1 << 24)) > 50


def saved(path, alpha=0.0, mean=(4.9,)):
    """A WRN-10-1 with SkipInit as the command starts it with seed 0, but for its alphas."""
    model = models.WideResNet(depth=10, stem_channels=4, scheme="skipinit")
    images, keys = jnp.zeros((2, 8, 8, 1)), jax.random.split(jax.random.key(0), 3)
    params, _ = command._start(model, schemes.get("skipinit"), images, keys)
    params = roles.assign(params).map(
        lambda leaf, value: jnp.full_like(value, alpha) if leaf.role is Role.ALPHA else value,
        params,
    )
    inputs = trained.Images((8, 8, 1), mean, (6.0,), 16.0, tuple("0123456789"))
    return trained.save(path, model, {"params": params}, inputs=inputs)


@pytest.mark.slow
def test_a_trained_network_stands_beside_its_start(tmp_path, capsys):
    file = saved(tmp_path / "digits.safetensors", alpha=0.5)
    assert command.main(command.Options(file=file, batch_size=16, out=tmp_path / "page")) == 0
    assert "digits.safetensors: L = 3" in capsys.readouterr().out
    assert (tmp_path / "page" / "page.png").stat().st_size > 10_000
    for row in rows_of(tmp_path / "page"):
        # Only the alphas differ from the start, and with them everything but the first input.
        assert (float(row["scalar"]), float(row["start_scalar"])) == (0.5, 0.0)
        assert float(row["start_branch"]) == 0.0 < float(row["branch"])
        assert (row["input"] == row["start_input"]) == (row["k"] == "1")


@pytest.mark.slow
def test_a_trained_network_of_other_classes_says_what_its_loss_is_of(tmp_path):
    file = saved(tmp_path / "mine.safetensors")
    page = command.analyse(command.Options(file=file, dataset="digits", batch_size=16))
    assert not [note for note in page.notes if "other classes" in note]
    network = trained.load(file)
    inputs = dataclasses.replace(network.inputs, class_names=tuple("abcdefghij"))
    trained.save(tmp_path / "other.safetensors", network.model, network.variables, inputs=inputs)
    other = command.Options(file=tmp_path / "other.safetensors", batch_size=16)
    page = command.analyse(other)
    assert [note for note in page.notes if "digits has other classes" in note]
    # The network is as it started.
    for row in page.rows:
        assert all(row[name] == row[f"start_{name}"] for name in command.MEASURED)


@pytest.mark.slow
def test_it_is_a_command(tmp_path):
    process = subprocess.run(
        [
            *(sys.executable, "-m", "nf_resnets.analysis", "--model", "wrn-10-1"),
            *("--batch-size", "16", "--stem-channels", "4", "--out", str(tmp_path / "page")),
        ],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert process.returncode == 0, process.stderr
    assert "page.png" in process.stdout


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["batchnorm", "rescalenet"])
def test_normalised_and_calibrated_networks_have_a_page(tmp_path, scheme):
    page = command.analyse(options(tmp_path, scheme=scheme, model="cifar-resnet-8"))
    assert len(page.rows) == 3
    closed = np.array([row["closed_sum"] for row in page.rows])
    measured = np.array([row["sum"] for row in page.rows])
    # One draw of 4 channels: the order of magnitude.
    assert (np.abs(np.log(closed / measured)) < 1.5).all()


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit) as left:
        tyro.cli(command.Options, args=["--help"])
    assert left.value.code == 0
    said = capsys.readouterr().out
    for name in [*command.settings_of(command.Options()), "file"]:
        assert f"--{name.replace('_', '-')}" in said


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "resnet-110"}, "name='resnet-110' found; expected cifar-resnet"),
        ({"model": "wrn-17-1"}, "depth=17 found"),
        ({"model": "vgg-11"}, "expected a residual network for images"),
        ({"scheme": "fixpu"}, "did you mean 'fixup'"),
        ({"scheme": "t_fixup"}, "is for transformer networks"),
        ({"dataset": "digit"}, "digits"),
        ({"batch_size": 1}, "--batch-size 1 found; expected 2 to 1437"),
        ({"seed": -1}, "--seed -1 found"),
        ({"image_size": -1}, "--image-size -1 found; expected 1 to 4,096 pixels a side."),
        ({"image_size": 4096}, "--batch-size 16 images of 4096 x 4096 pixels found; expected at"),
        ({"image_size": 1_000_000}, "--image-size 1000000 found; expected 1 to 4,096 pixels"),
        ({"stem_channels": -1}, "--stem-channels -1 found; expected 0 or more"),
        ({"stem_channels": 999_999}, "with --stem-channels 999999 has 6.76e+14 parameters; exp"),
        ({"file": Path("nothing.safetensors")}, "nothing.safetensors"),
        ({"compile_for": "v5e:4"}, "the slice v5e:4 found, 1 axes; expected the 2"),
    ],
)
def test_bad_options_end_in_one_sentence(tmp_path, changes, message):
    with pytest.raises(SystemExit) as found:
        command.main(options(tmp_path / "new", **changes))
    assert message in str(found.value) and "\n" not in str(found.value)
    assert not list((tmp_path / "new").glob("*"))


def test_what_is_a_users_is_left_alone(tmp_path):
    (tmp_path / "page.png").write_text("mine")
    with pytest.raises(ValueError, match="holds something else already"):
        command.folder_for(options(tmp_path))
    assert (tmp_path / "page.png").read_text() == "mine"
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="file"):
        command.folder_for(options(tmp_path / "file"))


def test_the_same_options_may_write_again_and_others_may_not(tmp_path):
    chosen = options(tmp_path / "page")
    folder = command.folder_for(chosen)
    page = command.Page([{**dict.fromkeys(command.COLUMNS, ""), "k": 1, "sum": 1.0}], [])
    command.write(page, chosen, folder)
    assert command.folder_for(chosen) == folder
    with pytest.raises(ValueError, match="holds something else already"):
        command.folder_for(options(tmp_path / "page", seed=1))
