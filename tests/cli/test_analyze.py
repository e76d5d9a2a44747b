"""The command as a user runs it: what it writes, and what it refuses."""

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import tyro
from PIL import Image

from nf_resnets.cli.analyze import Analyze, page_of
from tests.trained.networks import saved


def options(folder, **changes):
    small = {"model": "wrn-16-1", "batch_size": 16, "stem_channels": 4}
    return Analyze(**{**small, "out": folder, **changes})


def rows_of(folder):
    with open(folder / "blocks.csv", newline="") as stream:
        return list(csv.DictReader(stream))


def test_a_page_is_written(tmp_path, capsys):
    arguments = [
        *("--model", "cifar-resnet-8", "--scheme", "fixup", "--batch-size", "16"),
        *("--seed", "3", "--stem-channels", "4", "--out", str(tmp_path / "page")),
    ]
    tyro.cli(Analyze, args=arguments)()
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


MINE = """
import jax, jax.numpy as jnp

def make():
    keys = jax.random.split(jax.random.key(0), 5)
    blocks = [(jax.random.normal(a, (4, 6)), jax.random.normal(b, (6, 4)))
              for a, b in zip(keys[:2], keys[2:4])]
    params = {"blocks": blocks, "out": jnp.zeros((4, 3)), "activation": jax.nn.relu}

    def network(params, x):
        for up, down in params["blocks"]:
            x = x + params["activation"](x @ up) @ down
        return x @ params["out"]

    return network, params, (jax.random.normal(keys[4], (8, 4)),), jnp.arange(8) % 3
"""


def test_a_network_of_the_users_own_has_a_page(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    Analyze(network="mine:make", out=tmp_path / "page")()
    rows = rows_of(tmp_path / "page")
    assert [row["name"] for row in rows] == ["blocks/0", "blocks/1"]
    for row in rows:
        # Its head is 0, and was drawn; nothing in it normalizes.
        assert float(row["gradient_norm"]) >= float(row["bound"]) > 0
        assert float(row["branch"]) > 0 and "closed_sum" not in row
    # Theorem 1 is of networks that are positively homogeneous.
    (tmp_path / "smooth.py").write_text(MINE.replace("jax.nn.relu", "jnp.tanh"))
    assert {row["bound"] for row in page_of(Analyze(network="smooth:make")).rows} == {""}
    with pytest.raises(ValueError, match="expected module:function, and mine has none"):
        Analyze(network="mine:other", out=tmp_path / "new")()
    with pytest.raises(ValueError, match="page has page.png; expected a folder without one"):
        Analyze(network="mine:make", out=tmp_path / "page")()


@pytest.mark.slow
def test_a_trained_network_has_a_page(tmp_path):
    file, trained = saved(tmp_path / "mine.safetensors", "skipinit")
    Analyze(file=file, batch_size=16, out=tmp_path / "page")()
    rows = rows_of(tmp_path / "page")
    for row in rows:
        # At initialisation both are 0.
        assert float(row["scalar"]) != 0 and float(row["branch"]) > 0
    # Images are normalized as the network was trained, whatever they themselves would ask for.
    (std,) = trained.inputs.std
    inputs = dataclasses.replace(trained.inputs, std=(10 * std,))
    dataclasses.replace(trained, inputs=inputs).save(tmp_path / "other.safetensors")
    other = page_of(Analyze(file=tmp_path / "other.safetensors", batch_size=16)).rows
    assert other[0]["input"] < 0.5 * float(rows[0]["input"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "vgg-11"}, "expected a residual network for images"),
        ({"scheme": "t_fixup"}, "is for transformer networks"),
        ({"file": Path("nothing.safetensors")}, "nothing.safetensors"),
        ({"network": "nothing_of_mine:make"}, "nothing_of_mine"),
        ({"network": "../mine.py:make"}, "--network ../mine.py:make found; expected module:"),
        ({"batch_size": 2_000}, "--batch-size 2000 found; expected 1 to 1437"),
        ({"stem_channels": -1}, "stem_channels=-1 found"),
    ],
)
def test_bad_options_end_in_one_sentence(tmp_path, changes, message):
    with pytest.raises((ValueError, OSError, ImportError)) as found:
        options(tmp_path / "new", **changes)()
    assert message in str(found.value) and "\n" not in str(found.value)
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["batchnorm", "rescalenet"])
def test_normalized_and_calibrated_networks_have_a_page(tmp_path, scheme):
    page = page_of(options(tmp_path, scheme=scheme, model="cifar-resnet-8"))
    assert len(page.rows) == 3
    closed = np.array([row["closed_sum"] for row in page.rows])
    measured = np.array([row["sum"] for row in page.rows])
    # One draw of 4 channels: the order of magnitude.
    assert (np.abs(np.log(closed / measured)) < 1.5).all()
