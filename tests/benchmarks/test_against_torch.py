"""PyTorch's networks compute what this library's do, or the comparison says that they do not."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch")

from benchmarks import against_torch, cases, fresh, torch_networks
from benchmarks.cases import Case


def functions_of(case):
    eager = against_torch.theirs(case, 1, compiled=False)
    return {"ours": cases.make_run(case, 1)[0], "eager": eager}


@pytest.mark.parametrize("case", [Case("cifar-resnet-14", 4, 8), Case("wrn-16-1", 4, 8)])
def test_both_compute_the_same_losses(case):
    """Also after updates, in which the scalars are slower."""
    functions = functions_of(case)
    against_torch.check_losses(case, functions)
    # Six steps are made by now: on one batch the loss has moved.
    assert abs(functions["ours"]()[0] - np.log(cases.NUM_CLASSES)) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["rate", "scalars", "decay"])
def test_another_update_is_noticed(monkeypatch, broken):
    case = Case("wrn-16-1", 8, 8)
    make = torch_networks.make_optimizer

    def wrong(network, learning_rate, weight_decay):
        optimizer = make(network, learning_rate, weight_decay)
        weights, scalars = optimizer.param_groups
        if broken == "rate":
            weights["lr"] *= 1.01
        elif broken == "scalars":
            scalars["lr"] *= 10
        else:
            weights["weight_decay"] = 0.0
        return optimizer

    monkeypatch.setattr(torch_networks, "make_optimizer", wrong)
    functions = functions_of(case)
    with pytest.raises(RuntimeError, match="expected the same"):
        against_torch.check_losses(case, functions)


@pytest.mark.slow
def test_the_steps_are_timed_in_processes_of_their_own():
    case = Case("cifar-resnet-14", 4, 8)
    (row,) = against_torch.step_times(case, rounds=2, compiled=False)
    assert len(row.numbers["ours_ms"]) == len(row.numbers["eager_ms"]) == 2
    with (
        fresh.kept("benchmarks.against_torch:begin", "ours", {"network": "wrn-7-1"}, 1) as call,
        pytest.raises(RuntimeError, match="ended with 1"),
    ):
        call()
