"""The report of a sweep: one file, whole and closed in itself."""

import dataclasses
import re

import pytest

from nf_resnets.plotting.report import SweepResults, report
from nf_resnets.plotting.sweep import table_cells
from nf_resnets.sweep.regimes import regimes_of
from nf_resnets.sweep.select import optima

EVIL = "<script>alert('x')</script> & \"quoted\""


@pytest.fixture
def swept():
    """A sweep whose best rate is 2^-5 at 8, and a run that failed."""
    rows = [
        {
            "scheme": "skipinit", "model": "wrn-16-4", "batch_size": size, "peak_lr": 2.0**k,
            "seed": 0, "dropout": None, "key": f"{size}{k}", "steps_done": 100,
            "state": "finished", "test_accuracy": 0.9 - 0.01 * (k + 5) ** 2,
            "train_loss": 0.1 + 0.02 * (k + 5) ** 2, "seconds": 1.25,
        }
        for size in (8, 32)
        for k in range(-7, -2)
    ]  # fmt: skip
    rows.append({**rows[0], "seed": 1, "key": EVIL, "state": "failed", "message": EVIL,
                 "test_accuracy": None, "train_loss": None,
                 "traceback": "x" * 100_000 + EVIL})  # fmt: skip
    best = optima(rows)
    return SweepResults(
        EVIL, rows, [dataclasses.asdict(one) for one in best],
        [dataclasses.asdict(fit) for fit in regimes_of(best)], settings=list(rows[0])[:6],
        command=EVIL, facts={EVIL: {EVIL: EVIL}}, names={"skipinit": EVIL},
    )  # fmt: skip


def test_all_text_is_escaped_and_it_needs_no_network(swept, tmp_path):
    path, cells = tmp_path / "report.html", table_cells(swept.optima, names=swept.names)
    report(path, swept, *cells, "<?xml?><svg></svg>")
    page = path.read_text()
    assert page.count("&lt;script&gt;") > 8 and page.count("<svg>") == 1
    assert not re.search(r"<(script|link|img|iframe|object)|https?:|url\(|@import", page)
    assert "2^-5" in page
    assert len(page) < 40_000  # of a long traceback the end


def test_a_file_is_replaced_whole_or_left_alone(swept, tmp_path):
    path = tmp_path / "report.html"
    path.write_text("before")
    with pytest.raises(ValueError, match="substring"):
        report(path, swept, [[""]], [], "no figure")
    assert path.read_text() == "before" and len(list(tmp_path.iterdir())) == 1
