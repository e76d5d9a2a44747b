"""How far a best rate moves from size to size, and what the moved rate costs, by hand."""

import pytest

from nf_resnets.sweep import moves, optima

RATES = (0.125, 0.25, 0.5, 1.0)
# Of each scheme and depth the losses at these rates; None diverged.
LOSSES = {
    ("stays", 10): (0.9, 0.4, 0.6, 1.0), ("stays", 100): (0.8, 0.3, 0.5, None),
    ("falls", 10): (0.9, 0.6, 0.4, 0.7), ("falls", 100): (0.4, 0.5, None, None),
    ("fails", 10): (0.7, 0.5, 0.6, 0.8), ("fails", 100): (None, None, None, None),
    ("costs", 10): (0.9, 0.4, 0.6, 1.0), ("costs", 100): (0.9, 0.6, 0.4, 0.7),
}  # fmt: skip


@pytest.fixture(scope="module")
def found():
    """How far the rates move, by scheme and depth; of two seeds that are 0.1 apart."""
    rows = [
        {
            "state": "finished" if loss is not None else "diverged", "scheme": scheme,
            "depth": depth, "peak_lr": rate, "seed": seed,
            "train_loss": None if loss is None else loss + 0.1 * (seed - 0.5),
        }
        for (scheme, depth), losses in LOSSES.items()
        for rate, loss in zip(RATES, losses, strict=True)
        for seed in (0, 1)
    ]  # fmt: skip

    best = optima(rows, by=("scheme", "depth"), metric="train_loss")
    # In any order.
    return {(m.group["scheme"], m.size): m for m in moves(best[::-1], "depth")}


def test_a_rate_that_stays(found):
    small, large = found["stays", 10], found["stays", 100]
    assert (small.best, small.cost, small.diverged) == (0.25, 0.0, 0.0)
    assert (large.best, large.cost) == (0.25, 0.0)
    assert large.group == {"scheme": "stays"}
    assert found["costs", 100].cost == pytest.approx(0.2)


def test_a_rate_that_falls(found):
    large = found["falls", 100]
    assert (large.best, large.at_edge) == (0.125, "lowest")
    # At the small network's best every run diverges.
    assert (large.at_base, large.cost, large.diverged) == (None, None, 1.0)


def test_no_run_finished(found):
    large = found["fails", 100]
    assert (large.best, large.cost, large.diverged) == (None, None, 1.0)
