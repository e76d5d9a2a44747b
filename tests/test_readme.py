"""The README and the pages that it links to are true: links, code, commands, numbers."""

import csv
import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from benchmarks.__main__ import targets
from benchmarks.rows import Row
from benchmarks.timing import Ratio
from experiments.table import grouped
from nf_resnets.sweep import optima
from tests.experiments.as_a_user import lines_of
from tests.test_main import run

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
PAGES = ("README.md", *(
    f"docs/{name}.md"
    for name in ("results", "speed", "limits", "overview", "notebooks", "how_to/sweep",
                 "how_to/analyse", "schemes/index")
))  # fmt: skip
RESULTS = "results/fixup_fig3_depth-laptop"
TABLES = (
    RESULTS,
    "results/fixup_fig4_ablation-laptop",
    "results/skipinit_table1_depth-laptop",
    "results/skipinit_table2_placement-laptop",
    "results/skipinit_lr_batch-laptop",
    "results/fixup_table3_translation-laptop",
    "results/fixup_table1_resnet110-laptop",
    "results/bench-cpu",
    "results/bench-cpu-rest",
)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page):
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert links or "results/" not in text
    for link in links:
        assert link.startswith("http") or ((ROOT / page).parent / link).exists(), link


def test_it_is_one_screen_then_links():
    assert len(TEXT.split()) <= 900


def test_the_results_tables_are_those_of_the_files():
    text = "".join((ROOT / page).read_text() for page in PAGES)
    found = re.findall(
        r"<!-- (results/\S+/table.txt) -->\n```\n(.*?)\n```\n<!-- end -->", text, re.S
    )
    assert {f"{folder}/table.txt" for folder in TABLES} <= {file for file, _ in found}
    for file, text in found:
        assert text.strip() == (ROOT / file).read_text().strip(), file


def test_a_number_that_links_to_a_table_is_in_it():
    found = re.findall(r"\[([^\]]*\d[^\]]*)\]\((results/\S+/table\.txt)\)", TEXT)
    assert len(found) >= 8
    for words, file in found:
        numbers = re.findall(r"[\d.]+\d|\d", re.sub(r"rule \d", "", words))
        table = re.findall(r"[\d.]+\d|\d", (ROOT / file).read_text())
        assert numbers and not {*numbers} - {*table}, words
        assert "diverged" not in words or "diverged" in (ROOT / file).read_text()


def options():
    """The options that README and pages show, by the ``nf-resnets`` command they are shown with."""
    pages = [
        path
        for path in (ROOT / "docs").rglob("*.md")
        if not {"generated", "_build"} & {*path.parts}
    ]
    text = "\n".join([TEXT, *(path.read_text() for path in pages)]).replace("\\\n", " ")
    found = {}
    for line in re.findall(r"(?:^|`)nf-resnets ([^`\n]+)", text, re.M):
        words = line.partition("#")[0].split()
        name = tuple(words[:2] if words[0] == "experiment" else words[:1])
        found.setdefault(name, set()).update(word for word in words if word.startswith("--"))
    return {name: shown for name, shown in found.items() if "NAME" not in name}


def test_the_commands_of_the_shell_examples_are_there(monkeypatch, capsys):
    assert len(options()) >= 12 and "--topology" in options()[("sweep",)]
    for name, shown in options().items():
        assert run(monkeypatch, *name, "--help") == 0
        said = capsys.readouterr().out
        for option in shown - {"--help"}:
            assert re.search(rf"{option}\b", said), (name, option)


@pytest.mark.parametrize("folder", ["bench-cpu", "bench-cpu-rest"])
def test_the_table_of_the_benchmarks_is_that_of_its_rows(folder):
    kept = json.loads((ROOT / f"results/{folder}/bench.json").read_text())
    rows = []
    for row in kept["rows"]:
        held = row.pop("held")
        rows.append(Row(**{**row, "ratio": Ratio(**row["ratio"])}))
        assert rows[-1].held is held
    assert targets(rows).strip() == (ROOT / f"results/{folder}/table.txt").read_text().strip()


def test_the_committed_results_show_the_claim():
    rows = lines_of(ROOT / RESULTS / "rows.csv")
    deep = {row["scheme"]: row for row in rows if row["depth"] == "1000"}
    for scheme, least in (("fixup", 0.7), ("skipinit", 0.7), ("batchnorm", 0.5)):
        assert float(deep[scheme]["test_accuracy"]) > least, scheme
    for scheme in ("alpha_one", "sqrt_half"):
        gone = deep[scheme]["status"] == "diverged"
        # Chance on 360 test images is 10%, with a standard error of 1.6 points.
        assert gone or float(deep[scheme]["test_accuracy"]) < 0.15, scheme


def test_the_committed_ablation_shows_its_order():
    rows = lines_of(ROOT / TABLES[1] / "rows.csv")
    means = {
        name: np.mean([float(row["mean_accuracy"]) for row in of_variant])
        for (name,), of_variant in grouped(rows, "variant").items()
    }
    order = ("batchnorm", "fixup", "no_bias", "tenth", "tenfold")
    assert sorted(means, key=means.get, reverse=True)[0] == "batchnorm"
    assert [means[name] for name in order] == sorted((means[n] for n in order), reverse=True)
    assert means["tenfold"] < 0.15


def _best(folder, line, depth):
    """The best test accuracy over the rates; a run that diverged is at chance."""
    rows = lines_of(ROOT / folder / "rows.csv")
    found = [row for row in rows if (row["line"], row["depth"]) == (line, depth)]
    assert found
    return max(0.1 if row["status"] == "diverged" else float(row["test_accuracy"]) for row in found)


def test_the_committed_tables_show_who_trains_when_deep():
    # Chance on 360 test images is 10%, with a standard error of 1.6 points.
    for line in ("batchnorm", "alpha_rsqrt_depth", "skipinit", "skipinit_no_l2"):
        assert _best(TABLES[2], line, "304") > 0.85, line
    for line in ("alpha_one", "sqrt_half"):
        assert _best(TABLES[2], line, "304") < 0.15, line
    for line in ("batchnorm", "skipinit"):
        assert _best(TABLES[3], line, "1000") > 0.5, line
    for line in ("batchnorm_last", "batchnorm_sqrt_half", "batchnorm_merge"):
        assert _best(TABLES[3], line, "1000") < 0.15, line


def test_the_committed_sweep_shows_where_large_rates_matter():
    """Alike at small batches; at the largest one BatchNorm uses rates at which the others fail."""
    with open(ROOT / "results/skipinit_lr_batch-laptop/rows.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        row["peak_lr"], row["seed"] = float(row["peak_lr"]), int(row["seed"])
        row["batch_size"] = int(row["batch_size"])
        for name in ("test_accuracy", "train_loss"):
            row[name] = float(row[name]) if row[name] else None
    best = {
        (one.group["scheme"], one.group["batch_size"]): one
        for one in optima(rows, metric="test_accuracy")
    }
    for scheme in ("skipinit", "regularized_skipinit", "fixup"):
        for size in (8, 32):
            gap = best["batchnorm", size].mean - best[scheme, size].mean
            assert abs(gap) < 0.01
        assert best["batchnorm", 512].mean - best[scheme, 512].mean > 0.3
        assert best["batchnorm", 512].best > 4 * best[scheme, 512].best
        assert best[scheme, 8].best < best[scheme, 128].best <= best[scheme, 512].best


def test_the_examples_run_as_pasted(capsys):
    first, second = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    exec(first, {})
    # Fixup's head is zero, and 0 @ x is 0 exactly.
    assert capsys.readouterr().out == "3 branches, logits (8, 10) all 0.0\n"
    names = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(second, names)
    assert "3 residual branches, each of 2 layers" in capsys.readouterr().out
    assert not names["params"]["head"].any() and names["params"]["stem"].any()


def test_every_scheme_is_named():
    from nf_resnets import schemes

    text = (ROOT / "docs/schemes/index.md").read_text()
    for name in schemes.names():
        assert f"`{name}`" in text, name
