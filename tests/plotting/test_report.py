"""The report of a sweep: one file, whole and closed in itself, that says what must be said."""

import base64
import dataclasses
import datetime
import re
from html.parser import HTMLParser

import pytest

from nf_resnets.plotting.report import SweepResults, report
from nf_resnets.sweep.regimes import regimes_of
from nf_resnets.sweep.select import optima

SVG = (
    b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"><script>evil()</script></svg>'
)
PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
EVIL = "<script>alert('x')</script> & \"quoted\""
WHEN = datetime.datetime(2026, 3, 1, 12, 30, tzinfo=datetime.UTC)
# The metrics of the paper's protocol.
BOTH = ("test_accuracy", "train_loss")
VOID = {"meta", "img", "br", "hr", "link", "input"}


class Reader(HTMLParser):
    """What a browser would make of the page; wrongly nested tags are an error."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.texts, self.attributes = [], [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", "".join(self.texts))


def rows_of(schemes=("skipinit", "fixup"), sizes=(8, 32, 128, 512), rates=range(-7, 1), seeds=2):
    """A sweep whose best rate is 2^-5 at 8, in proportion to B up to 2^-2, and diverges at 1."""
    rows = []
    for scheme in schemes:
        for size in sizes:
            best = min({8: -5, 32: -3, 128: -1, 512: 1}.get(size, 0), -2)
            for k in rates:
                for seed in range(seeds):
                    off = k - best
                    done = k < 0
                    rows.append({
                        "scheme": scheme, "model": "wrn_16_4", "batch_size": size,
                        "peak_lr": 2.0**k, "seed": seed, "dropout": None,
                        "key": f"{len(rows):064x}", "program": "abc", "attempts": 1, "steps": None,
                        "steps_done": 100,
                        "state": "finished" if done else "diverged",
                        "test_accuracy": 0.9 - 0.01 * off**2 + 1e-4 * seed if done else None,
                        "train_loss": 0.1 + 0.02 * off**2 + 1e-4 * seed if done else None,
                        "seconds": 1.25, "message": None, "finished_at": "now", "resolved": {},
                    })  # fmt: skip
    return rows


def plain(rows, metrics=BOTH):
    found = [one for metric in metrics for one in optima(rows, metric=metric)]
    return {
        "rows": rows,
        "optima": [dataclasses.asdict(one) for one in found],
        "regimes": [dataclasses.asdict(fit) for fit in regimes_of(found)],
    }


def written(tmp_path, rows, *, title="A sweep", figures=None, **more):
    path = tmp_path / "report.html"
    sweep = SweepResults(title=title, **{**plain(rows), **more})
    report(path, sweep, figures or {}, written=WHEN)
    page = path.read_text(encoding="utf-8")
    return page, Reader(page)


def test_it_says_what_a_sweep_found(tmp_path):
    _, reader = written(tmp_path, rows_of(), names={"skipinit": "SkipInit"},
                        figures={"The rates": SVG, "The heat": PNG})  # fmt: skip
    text = reader.text
    assert "128 runs. Written on 2026-03-01 at 12:30 UTC" in text
    assert "112finished" in text and "16diverged" in text and "waiting" not in text
    assert "By test accuracy" in text and "By training loss" in text
    # Mean in percent with its deviation, best rate, range, how many finished and diverged at it,
    # how many diverged of all, rate / B.
    row = re.search(r"SkipInit 8.*?fixup", re.sub(r"\s+", " ", " ".join(reader.texts))).group()
    assert row.startswith("SkipInit 8 90.00 ± 0.01 2 −5 2 −5 2 0 2 of 16 0.00391")
    # Two points on either side with error bars of half an octave: factors of 2^(0.5 / sqrt 2) to
    # either side, and of 2^0.5 for where the parts meet.
    fit = re.search(r"SkipInit both.*?fixup", re.sub(r"\s+", " ", " ".join(reader.texts))).group()
    for value in ("0.00391 (0.00306 to 0.00499)", "64 (45.3 to 90.5)", "0.25 (0.196 to 0.319)"):
        assert value in fit
    assert "The rates" in text and reader.tags.count("img") == 2
    # The grid as it was swept, and what was the same for all.
    assert "batch_size8, 32, 128, 512" in text and "modelwrn_16_4" in text and "dropoutnone" in text
    assert "stepsnone" in text and not any(f"{name}0" in text for name in ("key", "attempts"))
    assert "peak_lr2−7, 2−6, 2−5" in text
    assert "warning" not in text and "Failures" not in text


def test_a_part_that_does_not_show_has_no_number(tmp_path):
    for sizes, shows in (((8, 32), "linear"), ((128, 512), "saturated"), ((8,), "neither")):
        _, reader = written(tmp_path, rows_of(sizes=sizes))
        text = re.sub(r"\s+", " ", " ".join(reader.texts))
        cells = re.search(rf"fixup {shows} (\S+) .*?skipinit|fixup {shows} (\S+)", text)
        assert cells, text
        assert ((cells[1] or cells[2]) == "–") is (shows != "linear")


def test_edges_and_runs_without_a_number_are_warned_of(tmp_path):
    rows = rows_of(schemes=("fixup",), sizes=(8, 128), rates=range(-5, -2))
    rows[1] = {**rows[1], "state": "waiting"}
    rows += [
        {**row, "batch_size": 512, "state": "diverged", "test_accuracy": None, "train_loss": None}
        for row in rows[:4]
    ]
    _, reader = written(tmp_path, rows)
    text = reader.text
    # Each kind once with its groups, a group by both metrics once.
    assert (
        "The best rate is the lowest tried; the true one may be lower: fixup, B = 8 (2−5)." in text
    )
    assert "is the highest tried; the true one may be higher: fixup, B = 128 (2−3)." in text
    assert "Some runs have no number: fixup, B = 8 (1 waiting of 6)" in text
    assert text.count("No run finished, so there is no best rate: fixup, B = 512.") == 1
    assert text.count("lowest rate tried") == 2 and text.count("highest rate tried") == 2
    assert "left out: the best rate, 0.125, is the highest tried: only a lower bound" in text


def test_all_text_is_escaped(tmp_path):
    rows = [
        {**row, "model": EVIL, EVIL: EVIL, "key": EVIL, "state": EVIL if i == 0 else row["state"]}
        for i, row in enumerate(rows_of())
    ]
    page, reader = written(
        tmp_path, rows, title=EVIL, figures={EVIL: SVG}, names={"fixup": EVIL},
        facts={EVIL: EVIL, "versions": {EVIL: EVIL}, "list": [EVIL]},
        failures=[{"key": EVIL, "state": EVIL, "message": EVIL, "traceback": EVIL, EVIL: EVIL},
                  {"key": "k", "traceback": f"Traceback:\n  {EVIL}\n</pre></details>{EVIL}"}],
    )  # fmt: skip
    assert "script" not in reader.tags
    assert "<script" not in page and "alert('x')" not in page
    assert reader.text.count("<script>alert('x')</script> & \"quoted\"") > 12
    # Nor does a text open an attribute of its own.
    assert {name for _, name, _ in reader.attributes} <= {
        "lang", "charset", "name", "content", "class", "src", "alt", "style"
    }  # fmt: skip


def test_it_needs_no_other_file_and_no_network(tmp_path):
    page, reader = written(tmp_path, rows_of(), figures={"a": SVG, "b": PNG},
                           facts={"jax": "0.10.2"})  # fmt: skip
    sources = [value for _, name, value in reader.attributes if name in ("src", "href")]
    assert [source.split(",")[0] for source in sources] == [
        "data:image/svg+xml;base64", "data:image/png;base64"
    ]  # fmt: skip
    assert [base64.b64decode(source.split(",")[1]) for source in sources] == [SVG, PNG]
    assert not re.search(r"https?:|url\(|@import|//", re.sub(r"base64,[^\"]*", "", page))
    assert not {"script", "link", "iframe", "object"} & set(reader.tags)


def test_failures_keep_their_tracebacks_and_a_huge_one_its_end(tmp_path):
    huge = "x" * 3_000_000 + "\nRuntimeError: the end"
    page, reader = written(
        tmp_path,
        rows_of(),
        failures=[
            {"key": "ab" * 32, "state": "failed", "traceback": "Traceback\nValueError: no"},
            {"key": "cd" * 32, "state": "oom", "message": "out of memory", "traceback": None},
            {"key": "ef" * 32, "state": "failed", "traceback": huge, "batch_size": 8},
        ],
    )
    assert "Failures (3)" in reader.text and "abababababab failed: ValueError: no" in reader.text
    assert "cdcdcdcdcdcd oom: out of memoryNo traceback was kept." in reader.text
    assert "RuntimeError: the end" in reader.text and "characters left out" in reader.text
    assert "batch_size = 8" in reader.text
    assert len(page) < 200_000


def test_a_sweep_that_has_not_begun_has_a_report_too(tmp_path):
    waiting = [
        {**row, "state": "waiting", "test_accuracy": None, "train_loss": None, "steps_done": None}
        for row in rows_of(schemes=("fixup",), sizes=(8,))
    ]
    _, reader = written(tmp_path, waiting)
    assert "16waiting" in reader.text and "no run finished" in reader.text
    _, reader = written(tmp_path, [])
    assert "0 runs" in reader.text and "No runs." in reader.text


def test_a_file_is_replaced_whole_or_left_alone(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("before")
    with pytest.raises(ValueError, match=r"figures\['a'\] is neither SVG nor PNG; it begins b'GIF"):
        report(path, SweepResults(title="", **plain(rows_of())), {"a": b"GIF89a"})
    assert path.read_text() == "before"
    report(path, SweepResults(title="", **plain(rows_of())), {})
    assert path.read_text().startswith("<!doctype html>")
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]
    other = tmp_path / "other"
    other.write_text("")
    # As readable as any file that is written here.
    assert path.stat().st_mode == other.stat().st_mode
