"""What was run before a laptop scale was chosen is kept, can be made again, and is stated."""

import ast
import dataclasses
import importlib
import json
import re
import shlex

import pytest
import tyro

from docs.machinery import results
from experiments.main import settings_of
from tests.experiments.as_a_user import ROOT, lines_of

OF_TABLE_1 = "fixup_table1_resnet110-laptop-depth-{}-seeds-0-variants-batchnorm-fixup"
EARLIER = (
    OF_TABLE_1.format(20),
    OF_TABLE_1.format(56),
    "fixup_table2_imagenet-laptop-rate-0.1",
    "fixup_table2_imagenet-laptop-rate-0.1-epochs-10-drops-0.3-0.6-0.9",
    "fixup_table3_translation-laptop-layers-6",
    "fixup_table4_regularized-laptop-epochs-20-seeds-0-1-2-3-4",
)
COMMITTED = {result.name: result for result in results.committed()}


@pytest.mark.parametrize("name", EARLIER)
def test_the_folder_names_the_options_that_make_it_again(name):
    command = shlex.split(COMMITTED[name].command)
    experiment = importlib.import_module(command[2]).EXPERIMENT
    options = tyro.cli(experiment.command, args=command[3:])
    made = json.loads(json.dumps(dataclasses.asdict(settings_of(experiment, options))))
    kept = json.loads((ROOT / "results" / name / "settings.json").read_text())["settings"]
    # How many points a curve has is no part of a run; fields that came later were not kept.
    differ = {key for key in kept if made[key] != kept[key]} - {"points"}
    if differ == {"variants"}:  # a table may have more rows now
        differ = {*kept["variants"]} - {*made["variants"]}
    assert differ == set()
    assert made != json.loads(json.dumps(dataclasses.asdict(experiment.scales["laptop"])))


def errors_of(name):
    """The mean test error in percent of each variant, as the tables round it."""
    rows = lines_of(ROOT / "results" / name / "rows.csv")
    found = {}
    for row in rows:
        found.setdefault(row["variant"], []).append(100 - 100 * float(row["test_accuracy"]))
    return {variant: sum(errors) / len(errors) for variant, errors in found.items()}


def tried_of(name):
    source = (ROOT / f"experiments/{name.split('-')[0]}.py").read_text()
    paragraphs = ast.get_docstring(ast.parse(source)).split("\n\n")
    return " ".join(next(p for p in paragraphs if p.startswith("Tried ")).split())


@pytest.mark.parametrize(
    ("name", "stated"),
    [
        (OF_TABLE_1.format(20), {"batchnorm": 0.83, "fixup": 1.94}),
        (OF_TABLE_1.format(56), {"batchnorm": 4.17, "fixup": 0.83}),
        (
            "fixup_table2_imagenet-laptop-rate-0.1",
            {"fixup": 92.5, "batchnorm": 5.8, "xavier": 9.2, "fixup_mixup": 11.1},
        ),
        (
            "fixup_table2_imagenet-laptop-rate-0.1-epochs-10-drops-0.3-0.6-0.9",
            {"fixup": 73.6, "fixup_mixup": 89.7, "batchnorm": 25.0, "xavier": 11.7},
        ),
        (
            "fixup_table4_regularized-laptop-epochs-20-seeds-0-1-2-3-4",
            {
                "batchnorm": 0.94,
                "batchnorm_regularized": 1.83,
                "fixup": 7.94,
                "fixup_regularized": 42.33,
            },
        ),
    ],
)
def test_the_docstring_tells_the_earlier_numbers(name, stated):
    errors, text = errors_of(name), tried_of(name)
    for variant, error in stated.items():
        digits = len(str(error).split(".")[1])
        assert round(errors[variant], digits) == error, variant
        assert re.search(rf"(?<!\d){re.escape(str(error))}%", text), (variant, text)
    assert f"`--{name.split('-laptop-')[1].split('-')[0]}" in text


def test_the_docstring_tells_the_bleu_at_the_published_depth():
    name = "fixup_table3_translation-laptop-layers-6"
    text = tried_of(name)
    for row in lines_of(ROOT / "results" / name / "rows.csv"):
        if row["variant"] != "plain":
            assert f"{float(row['bleu']):.1f}" in text, row["variant"]
    assert "`--layers 6`" in text


def test_the_page_of_results_tells_them_too():
    pytest.importorskip("sphinx", reason="sphinx is not installed: make docs installs it")
    from docs.machinery import pages

    shown = pages.results_page(tuple(COMMITTED.values()))
    for name in EARLIER:
        assert f"## {name}" in shown
    assert "92.5% test error" in " ".join(shown.split())
