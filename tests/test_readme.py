"""The README is true: its links lead somewhere, its code runs, its numbers are the files'."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from experiments import fixup_fig3_depth as fig3
from experiments.folder import read_rows
from nf_resnets import init

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
RESULTS = "results/fixup_fig3_depth-laptop"


def test_links_lead_to_files():
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert links
    for link in links:
        assert link.startswith("http") or (ROOT / link).exists(), link


def test_the_results_table_is_that_of_the_rows():
    marker = re.search(rf"<!-- {RESULTS}/table.txt -->\n```\n(.*?)\n```\n<!-- end -->", TEXT, re.S)
    assert marker, "the README has no table between its two comments"
    assert marker[1].strip() == (ROOT / RESULTS / "table.txt").read_text().strip()
    rows = read_rows(ROOT / RESULTS / "rows.csv", fig3.COLUMNS)
    assert fig3.table(rows, fig3.SCALES["laptop"]).strip() == marker[1].strip()


def test_the_committed_results_show_the_claim():
    rows = read_rows(ROOT / RESULTS / "rows.csv", fig3.COLUMNS)
    deep = {row["scheme"]: row for row in rows if row["depth"] == "1000"}
    for scheme, least in (("fixup", 0.7), ("skipinit", 0.7), ("batchnorm", 0.5)):
        assert float(deep[scheme]["test_accuracy"]) > least, scheme
    for scheme in ("alpha_one", "sqrt_half"):
        gone = deep[scheme]["status"] == "diverged"
        # Chance on 360 test images is 10%, with a standard error of 1.6 points.
        assert gone or float(deep[scheme]["test_accuracy"]) < 0.15, scheme


def test_the_first_example_runs(monkeypatch):
    code = re.search(r"```python\n(import jax\n.*?)```", TEXT, re.S)[1]
    # The network of the example, ten times narrower: its shape is all that the test changes.
    assert "depth=28, width=10" in code
    names = {}
    exec(code.replace("width=10", "width=1"), names)
    assert names["logits"].shape == (8, 10)
    assert float(jnp.abs(names["logits"]).max()) == 0


def test_the_rules_of_the_second_example_fit_a_tree():
    code = re.search(r"```python\n(params = init\.fixup\(my_params.*?)```", TEXT, re.S)[1]
    conv = jnp.ones((3, 3, 4, 4))
    tree = {
        f"stage{s}": {
            f"block_{b}": {"conv_1": {"kernel": conv}, "conv_2": {"kernel": conv}}
            for b in range(18)
        }
        for s in range(3)
    }
    tree |= {"stem": {"kernel": conv}, "downsample_1": {"kernel": conv}}
    tree["dense"] = {"kernel": jnp.ones((4, 10)), "bias": jnp.ones(10)}
    names = {"init": init, "my_params": tree}
    exec(code, names)
    scaled = names["params"]["stage2"]["block_17"]["conv_1"]["kernel"]
    assert float(scaled.max()) == pytest.approx(54**-0.5)
    assert not jax.tree.leaves(names["params"]["dense"])[0].any()


def test_every_scheme_is_named():
    from nf_resnets import schemes

    for name in schemes.names():
        assert f"`{name}`" in TEXT, name
