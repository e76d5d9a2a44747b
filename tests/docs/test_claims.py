"""The ledger of claims: its page is that of the list and the files, and says what these carry."""

import dataclasses
import re
from pathlib import Path

import pytest

from docs.machinery import claims, results

ROOT = Path(__file__).parents[2]
SECTIONS = claims.load()
LEDGER = [claim for section in SECTIONS.values() for claim in section]
FIG3 = "fixup_fig3_depth-laptop"


def test_every_verdict_has_its_ground():
    faults = []
    for claim in LEDGER:
        try:
            claims.numbers(claim)
        except ValueError as error:
            faults.append(str(error))
    assert not faults, "\n".join(faults)


def test_the_page_is_up_to_date():
    shown = (ROOT / "docs/claims.md").read_text()
    assert shown == claims.page(SECTIONS), "run python -m docs.machinery.claims"


def test_the_readme_has_the_totals():
    text = " ".join((ROOT / "README.md").read_text().split())
    assert "(docs/claims.md)" in text
    assert claims.totals(SECTIONS) in text


def test_every_folder_of_results_is_behind_a_claim():
    committed = {each.name for each in results.committed() if each.module != "benchmarks"}
    named = {folder for claim in LEDGER for folder in [*claim.folders, *claim.smaller]}
    beyond = {"rate_transfer_transformer-laptop"}  # of other papers
    assert named | beyond == committed


def test_every_experiment_carries_a_claim_and_is_there():
    there = {
        path.stem for paper in ("fixup", "skipinit", "rescale", "theory")
        for path in (ROOT / "experiments").glob(f"{paper}_*.py")
    }  # fmt: skip
    assert {claim.experiment for claim in LEDGER} - {""} == there


def test_the_tests_that_carry_claims_are_there():
    named = [test for claim in LEDGER for test in claim.tests]
    assert named
    for test in named:
        file, name = test.split("::")
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.M), test


@pytest.mark.parametrize(
    ("term", "folder", "text"),
    [
        ("test_accuracy% scheme=alpha_one depth=100", FIG3, "diverged (1 of 1)"),
        ("test_accuracy% min scheme=fixup depth=11..", FIG3, "91.7%"),
        ("status diverged scheme=alpha_one depth=10..100", FIG3, "2 of 3 diverged"),
        ("1-test_accuracy% variant=xavier_tenth @fixup_table1_resnet110-laptop", FIG3,
         "92.4 ± 0.2% (2 runs, 1 diverged)"),
        ("test_accuracy% best/log2_rate line=sqrt_half depth=100", "skipinit_table1_depth-laptop",
         "7.78% at 2^-6"),
        ("test_accuracy argbest/peak_lr scheme=fixup batch_size=512", "skipinit_lr_batch-laptop",
         "2^-2"),
        # One of the two seeds trains at 2^-2, too.
        ("test_accuracy largest/peak_lr scheme=skipinit batch_size=8", "skipinit_lr_batch-laptop",
         "2^-5"),
        ("ratio ±error scheme=batchnorm block=1", "theory_backward-laptop", "0.944 ± 0.0307"),
        ("multiplier max curves.csv variant=multipliers step=1200", "rescale_multipliers-laptop",
         "6.63"),
        ("eta best/k", "rescale_variance-laptop", "2.36 ± 0.917 (3 runs) at k 3"),
    ],
)  # fmt: skip
def test_a_number_is_that_of_the_table(term, folder, text):
    """Typed from the committed tables, or counted in the rows."""
    assert claims.read(term, folder).text == text


@pytest.mark.parametrize(
    ("term", "folder", "message"),
    [
        ("test_accuracy depth=11", FIG3, "depth=11"),
        ("test_accuracy largest/log2_rate line=alpha_one depth=304", "skipinit_table1_depth-laptop",
         "no log2_rate trains all runs"),
    ],
)  # fmt: skip
def test_a_term_that_means_nothing_is_refused(term, folder, message):
    with pytest.raises(ValueError, match=message):
        claims.read(term, folder)


def test_a_condition_that_does_not_hold_is_refused():
    claim = next(claim for claim in LEDGER if claim.holds)
    with pytest.raises(ValueError):
        claims.numbers(dataclasses.replace(claim, holds=f"not ({claim.holds})"))
