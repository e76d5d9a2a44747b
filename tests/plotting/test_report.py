"""The report of a sweep: one file, whole and closed in itself."""

import dataclasses
import re
from html.parser import HTMLParser

import pytest

from nf_resnets.plotting.report import SweepResults, report
from nf_resnets.plotting.sweep import table_cells
from nf_resnets.sweep.regimes import regimes_of
from nf_resnets.sweep.select import optima

EVIL = "<script>alert('x')</script> & \"quoted\""


class Reader(HTMLParser):
    """What a browser would make of the page; wrongly nested tags are an error."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.text = [], [], ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag not in ("meta", "path"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.text += f"{data} "


def swept(**changes):
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
    rows.append({**rows[0], "seed": 1, "state": "failed", "message": "no", "test_accuracy": None,
                 "train_loss": None, "traceback": "x" * 100_000 + EVIL, **changes})  # fmt: skip
    best = [
        one for metric in ("test_accuracy", "train_loss") for one in optima(rows, metric=metric)
    ]
    return SweepResults(
        EVIL, rows, [dataclasses.asdict(one) for one in best],
        [dataclasses.asdict(fit) for fit in regimes_of(best)], settings=list(rows[0])[:6],
        command=EVIL, facts={EVIL: {EVIL: EVIL}}, names={"skipinit": EVIL},
    )  # fmt: skip


@pytest.fixture
def page(tmp_path):
    sweep = swept(key=EVIL, message=EVIL)
    path = tmp_path / "report.html"
    report(path, sweep, *table_cells(sweep.optima, names=sweep.names), {"f": "<?xml?><svg></svg>"})
    return path.read_text()


def test_it_has_rates_figure_command_grid_and_failures(page):
    text = re.sub(r"\s+", " ", Reader(page).text)
    assert "10 finished, 1 failed" in text
    assert "90.0" in text and "2^-5" in text
    assert "peak_lr 2^-7, 2^-6, 2^-5" in text and "dropout –" in text
    assert "Failures (1)" in text and page.count("<svg>") == 1
    assert len(page) < 40_000  # of a long traceback the end


def test_all_text_is_escaped_and_it_needs_no_network(page):
    tags = set(Reader(page).tags)
    assert not {"script", "link", "img", "iframe", "object"} & tags
    assert page.count("&lt;script&gt;") > 8 and "<script" not in page
    assert not re.search(r"https?:|url\(|@import", page)


def test_a_file_is_replaced_whole_or_left_alone(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("before")
    with pytest.raises(ValueError, match="substring"):
        report(path, swept(), [[""]], [], {"f": "no figure"})
    assert path.read_text() == "before" and len(list(tmp_path.iterdir())) == 1
