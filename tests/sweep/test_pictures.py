"""What a finished sweep makes, and what it says of it."""

import pytest

from nf_resnets.sweep import results
from nf_resnets.sweep.options import Options, check
from nf_resnets.sweep.results import Result

AXES = {"peak_lr": (0.25, 0.5, 1.0), "seed": (0,)}
FILES = {"table.txt", "figure.png", "figure.svg", "report.html", "settings.json"}


def made():
    rows = [
        {
            "key": f"{rate}", "scheme": "fixup", "model": "wrn-10-1", "dataset": "digits",
            "batch_size": 64, "peak_lr": rate, "seed": 0, "epochs": 1.0, "steps": None,
            "state": "finished", "message": None, "test_accuracy": 0.5 + rate / 4,
            "train_loss": 1.0 - rate / 4, "history": [],
        }
        for rate in AXES["peak_lr"]
    ]  # fmt: skip
    return Result(rows, AXES, {}, {"finished": 3}, 0, 1, [])


@pytest.fixture
def quick_figures(monkeypatch):
    """In place of the drawing, which takes seconds."""

    def drawn(sweep, path):
        path.write_text("")
        path.with_suffix(".svg").write_text("<svg/>")

    monkeypatch.setattr("nf_resnets.plotting.sweep.sweep_figure", drawn)


def test_all_is_made_and_a_best_rate_that_passes_over_a_better_mean_is_marked(
    quick_figures, tmp_path, capsys
):
    sweep = made()
    sweep.rows.extend({**each, "seed": 1, "key": each["key"] + "s"} for each in list(sweep.rows))
    sweep.rows[-1] |= {"state": "diverged", "test_accuracy": None, "train_loss": None}
    code = results.finish(sweep, Options(out=tmp_path), title="A sweep")
    out, err = capsys.readouterr()
    assert (code, err) == (0, "") and "3 finished\n1 program compiled." in out
    assert {path.name for path in tmp_path.iterdir()} == FILES and "2^-1*" in out
    assert all(f"  {name}\n" in out for name in FILES)


def test_a_file_that_cannot_be_written_is_a_sentence(quick_figures, tmp_path):
    (tmp_path / "report.html").mkdir()
    with pytest.raises(OSError, match="report.html'?; the runs are kept, and the same command"):
        results.finish(made(), Options(out=tmp_path), title="A sweep")


def test_batch_sizes_have_steps_to_a_target(quick_figures, tmp_path):
    axes = {**AXES, "batch_size": (32, 64)}
    rows = [
        {**row, "batch_size": size, "key": f"{row['key']} {size}",
         "measures": {"curve": {"step": [1, 2], "loss": [2.0, 1.0 / size / row["peak_lr"]]}},
         "history": [{"step": 2, "train_loss": 1.0, "test_accuracy": row["peak_lr"]}]}
        for row in made().rows
        for size in axes["batch_size"]
    ]  # fmt: skip
    for some, of in ((rows, axes), (rows[::2], AXES)):  # both sizes, or one
        result = Result(some, of, {}, {"finished": len(some)}, 0, 1, [])
        results.draw(result, tmp_path, title="", target="test_accuracy=0.6")
        assert "steps to test accuracy (%) 60" in (tmp_path / "report.html").read_text()
    for wrong in ("0.5", "loss=0.5", "train_loss=nan"):
        with pytest.raises(ValueError, match=f"--target '{wrong}' found; expected METRIC=NUMBER"):
            check(Options(target=wrong))
