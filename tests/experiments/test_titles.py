"""The committed figures' titles: drawn again from their rows, and some counted by hand."""

import csv
import dataclasses
import html
import math
import re
from collections import defaultdict
from statistics import fmean

import pytest

from docs.machinery.figures import as_made, redraw, redraw_sweep
from docs.machinery.results import ROOT, committed
from experiments.findings import who_trains
from nf_resnets import schemes

DRAWN = {result.name: result for result in committed() if result.module != "benchmarks"}


def title_of(svg):
    """What a figure's file says that it shows."""
    return html.unescape(re.search("<dc:title>(.*?)</dc:title>", svg.read_text(), re.DOTALL)[1])


def rows_of(folder):
    with open(ROOT / "results" / folder / "rows.csv", newline="") as stream:
        return list(csv.DictReader(stream))


def by(rows, *names):
    """The rows of each group."""
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in names)].append(row)
    return groups


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_the_command_of_a_result_has_the_settings_that_it_was_made_with(name):
    if DRAWN[name].module == "experiments.skipinit_lr_batch":
        pytest.skip("a sweep, whose settings are those of its rows")
    as_made(DRAWN[name])


def test_a_command_with_other_settings_is_refused():
    result = DRAWN["fixup_fig3_depth-laptop"]
    with pytest.raises(
        ValueError, match=r"laptop was made with steps=44, and not 43, as .* 43 has"
    ):
        as_made(dataclasses.replace(result, command=f"{result.command} --steps 43"))


def test_a_folder_whose_name_has_no_scale_is_refused(tmp_path):
    for name in ("results/fixup_fig3_depth-moon", "experiments"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "results/fixup_fig3_depth-moon/table.txt").touch()
    (tmp_path / "experiments/fixup_fig3_depth.py").touch()
    with pytest.raises(ValueError, match=r"moon found; expected the name of an experiment and a "):
        committed(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(DRAWN))
def test_every_title_follows_from_the_rows(name, tmp_path):
    result = DRAWN[name]
    if "cifar" in name or "multi30k" in name or name == "rescale_variance-laptop":
        pytest.skip("its data set is not part of this repository")
    if result.module == "experiments.skipinit_lr_batch":
        redraw_sweep(result, tmp_path / "out")
    else:
        redraw(result, tmp_path / "out")
    kept = {figure.name: title_of(figure) for figure in result.folder.glob("*.svg")}
    assert kept == {figure.name: title_of(figure) for figure in (tmp_path / "out").glob("*.svg")}
    assert kept


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_the_title_that_is_kept_is_the_one_that_is_seen(name):
    for figure in DRAWN[name].folder.glob("*.svg"):
        # Matplotlib names each text in a comment before its letters; exponents are bold there.
        seen = " ".join(re.findall("<!-- (.*?) -->", figure.read_text(), re.DOTALL))
        bold = re.sub(r"\$([^$]+)\$", r"$\\mathbf{\1}$", title_of(figure))
        assert bold in html.unescape(seen)
        assert figure.with_suffix(".png").exists()


@pytest.mark.parametrize("change", [None, ("Fixup", "0.1"), ("BatchNorm", "0.99")])
def test_who_trains_at_1000_layers_counted_by_hand(change):
    folder = "fixup_fig3_depth-laptop"
    deepest = [row for row in rows_of(folder) if row["depth"] == "1000"]
    for row in deepest:
        if change and row["title"] == change[0]:
            row["test_accuracy"] = change[1]
    accuracies = {
        row["title"]: float(row["test_accuracy"])
        for row in deepest
        if row["status"] == "finished"
    }  # fmt: skip
    needed = max((0.1 + max(accuracies.values())) / 2, 0.3)
    trains = sorted((-value, name) for name, value in accuracies.items() if value >= needed)
    title = title_of(ROOT / "results" / folder / "figure.svg")
    found = who_trains(deepest, 0.1, where=" at 1,000 layers")
    assert (found == title) == (change is None)
    names, numbers, others = re.fullmatch(
        r"(.*) trains? at .* layers \((.*)%\); (.*)", found
    ).groups()
    assert re.split(", | and ", names) == [name for _, name in trains]
    assert [float(n) for n in re.split(", | and ", numbers)] == [
        pytest.approx(-100 * value, abs=0.051) for value, _ in trains
    ]
    failed = {row["title"] for row in deepest} - {name for _, name in trains}
    assert set(re.split(", | and ", re.sub(" do(es)? not", "", others))) == failed


@pytest.mark.parametrize("axis", ["depth", "width"])
def test_the_best_of_the_largest_networks_counted_by_hand(axis):
    other = {"depth": "width", "width": "depth"}[axis]
    rows = rows_of("rate_transfer-laptop")
    smallest = min(int(row[other]) for row in rows)
    own = [row for row in rows if int(row[other]) == smallest]
    largest = max(int(row[axis]) for row in own)
    ends, lost = {}, []
    for (scheme,), of in by([row for row in own if int(row[axis]) == largest], "title").items():
        rates = []
        for (power,), runs in by(of, "log2_rate").items():
            losses = [float(r["train_loss"]) for r in runs if r["status"] == "finished"]
            if losses:
                rates.append((len(runs) - len(losses), fmean(losses), int(power)))
        if rates:
            _, ends[scheme], _ = min(rates)  # the fewest diverged runs, then the least loss
        else:
            lost.append(scheme)
    first, second = sorted(ends, key=ends.get)[:2]
    title = title_of(ROOT / "results/rate_transfer-laptop" / f"rates_by_{axis}.svg")
    assert title.startswith(
        f"At {axis} {largest} the lowest training loss is {ends[first]:.3g} with"
    )
    assert f"{first} (rate" in title and f"the next {ends[second]:.3g} with {second} (" in title
    assert ("no run of" in title) == bool(lost) and all(scheme in title for scheme in lost)


def test_the_sweep_s_rates_counted_by_hand():
    folder = ROOT / "results/skipinit_lr_batch-laptop"
    said, spans = [], {"peak_lr": 0.0, "batch_size": 0.0}
    for (name,), rows in by(rows_of(folder.name), "scheme").items():
        states = {float(k): {r["state"] for r in v} for (k,), v in by(rows, "peak_lr").items()}
        power = math.log2(max(rate for rate, found in states.items() if found == {"finished"}))
        said.append(f"{schemes.get(name).title} $2^{{{power:.0f}}}$")
        for field, other in (("peak_lr", "batch_size"), ("batch_size", "peak_lr")):
            best = []
            for (_,), of in by(rows, field).items():
                cells = by(of, other).values()
                gone = [sum(r["state"] == "diverged" for r in cell) for cell in cells]
                means = [
                    fmean(float(r["test_accuracy"]) for r in cell if r["state"] == "finished")
                    if count < len(cell) else -1.0
                    for cell, count in zip(cells, gone, strict=True)
                ]  # fmt: skip
                _, mean = min(zip(gone, (-mean for mean in means), strict=True))
                best += [-mean] if -mean >= 0 else []
            spans[field] = max(spans[field], 100 * (max(best) - min(best)))
    assert title_of(folder / "rates.svg").endswith(f"without a diverged run: {', '.join(said)}")
    numbers = re.findall(r"([\d.]+) points", title_of(folder / "isolation.svg"))
    assert sorted(map(float, numbers)) == [
        pytest.approx(span, abs=0.051) for span in sorted(spans.values())
    ]
