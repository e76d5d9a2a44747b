"""Which rates are stable, and how far below the largest of them the best one is."""

import pytest

from experiments import skipinit_stable_rate as stable_rate


def run(rate, seed, loss):
    state = "finished" if loss else "diverged"
    return {"peak_lr": rate, "seed": seed, "state": state, "train_loss": loss}


def test_a_rate_is_stable_if_every_seed_learns():
    runs = [
        *(run("0.125", seed, "1.5") for seed in "01"),
        run("0.25", "0", "1.4"), run("0.25", "1", "1.6"),
        run("0.5", "0", "2.2"), run("0.5", "1", "2.2"),
        run("1.0", "0", "1.0"), run("1.0", "1", "2.31"),  # a seed above ln 10
        run("2.0", "0", "1.1"), run("2.0", "1", ""),  # one that diverged
    ]  # fmt: skip
    first, second = stable_rate.rates_of(runs, "fixup", 8)
    assert first["largest_stable"] == second["largest_stable"] == 0.5
    assert (first["best"], first["ratio"], first["diverged"]) == (1.0, 0.5, 1)
    assert (second["best"], second["ratio"], second["train_loss"]) == (0.125, 4.0, 1.5)


@pytest.mark.parametrize("losses", [("", ""), ("2.4", "2.4")])
def test_where_no_rate_is_stable_there_is_no_ratio(losses):
    runs = [run("0.5", seed, loss) for seed, loss in zip("01", losses, strict=True)]
    for row in stable_rate.rates_of(runs, "fixup", 8):
        assert row["best"] is row["largest_stable"] is row["ratio"] is None
