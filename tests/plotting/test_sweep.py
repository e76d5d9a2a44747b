"""All pictures of a sweep in one folder, and its table."""

from __future__ import annotations

from nf_resnets import plotting
from nf_resnets.plotting.sweep import table


def optimum(metric="test_accuracy", best=0.25, mean=0.912, std=0.01, at_edge=None, **more):
    rates = [
        {"rate": rate, "n": 2, "mean": 0.9 - abs(rate - 0.25), "std": 0.01,
         "values": (0.9, 0.9), "diverged": 0, "left_out": 0}
        for rate in (0.125, 0.25, 0.5)
    ]  # fmt: skip
    return {
        "group": {"scheme": "fixup", "batch_size": 64}, "metric": metric, "rates": rates,
        "best": best, "mean": mean, "std": std, "low": 0.125, "high": 0.25,
        "as_good": (0.125, 0.25), "contiguous": True, "at_edge": at_edge, "runs": 6,
        "left_out": {}, "rule": "strict", "passed_over": (), **more,
    }  # fmt: skip


def test_the_table_has_both_metrics_on_one_line():
    lines = table(
        [optimum(), optimum("train_loss", mean=0.31, at_edge="lowest", best=0.125)],
        names={"fixup": "Fixup"},
    ).splitlines()
    assert " ".join(lines[1].split()) == (
        "Fixup 64 91.2 ± 1.0 2 of 2 2^-2 (2^-3 to 2^-2) 0.3100 ± 0.0100 2 of 2 2^-3! (2^-3 to 2^-2)"
    )
    assert lines[2].startswith("! at the edge of the grid")


def test_a_group_without_results_says_why():
    gone = dict.fromkeys(("best", "mean", "std", "low", "high"))
    rates = [{"rate": 1.0, "n": 0, "mean": None, "std": None, "values": (), "diverged": 2,
              "left_out": 0}]  # fmt: skip
    diverged = table([optimum(**gone, rates=rates)])
    assert "diverged  0 of 2" in diverged and "edge" not in diverged
    waiting = table([optimum(**gone, rates=[{**rates[0], "diverged": 0, "left_out": 2}])])
    assert "diverged" not in waiting


def test_the_table_says_how_many_runs_finished_and_by_which_rule():
    rates = [{"rate": 0.25, "n": 3, "mean": 0.9, "std": 0.01, "values": (), "diverged": 2,
              "left_out": 0}]  # fmt: skip
    shown = table([optimum(rates=rates, passed_over=(0.5,), rule="trimmed")])
    assert "3 of 5  2^-2* (2^-3 to 2^-2)" in shown
    assert "* another rate has a better mean over the runs that finished" in shown
    assert "Rates at which at least half of the runs finished are compared by the mean" in shown
    assert "finished" not in table([optimum()])


def test_the_folder_has_every_picture_and_nothing_half_done(tmp_path):
    both = [optimum(), optimum("train_loss", mean=0.31)]
    row = {"scheme": "fixup", "batch_size": 64, "peak_lr": 0.25, "seed": 0, "key": "k",
           "state": "finished", "test_accuracy": 0.9, "train_loss": 0.3}  # fmt: skip
    sweep = plotting.SweepResults("A title", [row], both, [], subtitle="settings", chance=0.1)
    files = plotting.sweep_figures(tmp_path, sweep)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(files)
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/svg") + page.count("<svg") >= 3
    assert "The best rate against the batch size" in page
